"""Upkeep of decision rows: what a publisher marks again and trims, beside others on the same database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from relay.capture import upkeep as upkeep_module
from relay.capture.marking import Ended
from relay.capture.outcomes import Placed
from relay.capture.upkeep import DAY_S, DOUBTFUL_S, REFRESH_S, TICK_S, Decided, Upkeep, horizon_s
from relay.kafka.topics import TopicFacts
from relay.message.envelope import ResourceName
from relay.message.errors import ConfigError, Unreachable
from relay.message.identity import capture_id
from relay.resources import open_resource
from relay.resources.port import AgedRow, DecisionRow, Decisions, Resource, RowLocked, Session, UnmarkedRow
from relay.world import clock, schedule

CANARY = "a canary"
NONCE = b"o" * 16
LEFT = 3
"""Captures that a dead publisher left without markers."""
ENOUGH = 20
"""So often a round asks that is not going to end."""


class Marking:
    """Takes what would be marked."""

    given_up = False
    backlog = 0

    def __init__(self) -> None:
        self.submitted: list[Ended] = []

    def submit(self, ended: Ended) -> None:
        self.submitted.append(ended)


class Appender:
    """Has no right to see the topic ``payroll``; ``gone`` was deleted."""

    def known_topics(self) -> list[TopicFacts]:
        return []

    def describe(self, names: Sequence[str]) -> dict[str, TopicFacts]:
        if "payroll" in names:
            raise ConfigError("cannot describe topic payroll: the broker does not allow it")
        known = (name for name in names if name != "gone")
        return {name: TopicFacts(name, b"i" * 16, 1, 1, {"retention.ms": "0", "segment.ms": "0"}) for name in known}


class BusyDatabase:
    """Decision rows of others: whenever it is asked, somebody has just committed one more."""

    def __init__(self) -> None:
        self.rows = [(clock.monotonic() - 60.0, self.row(number)) for number in range(LEFT)]
        self.asked = 0

    def uuid(self) -> str:
        return "u"

    def unmarked(self, older_than_s: float, limit: int) -> list[UnmarkedRow]:
        self.asked += 1
        assert self.asked < ENOUGH
        now = clock.monotonic()
        self.rows.append((now, self.row(len(self.rows))))
        return [row for begun, row in self.rows if begun <= now - older_than_s][:limit]

    @staticmethod
    def row(number: int) -> UnmarkedRow:
        return UnmarkedRow(b"%016d" % number, b"nonce", orjson.dumps([["orders", 0, number + 1, 1]]))


@pytest.fixture(autouse=True)
def turned_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "start_thread", lambda *_: SimpleNamespace(join=lambda _: None, is_alive=lambda: False))


def upkeep_of(decisions: Any, marking: Marking, name: ResourceName) -> Upkeep:
    return Upkeep(cast("Any", Appender()), decisions, cast("Any", marking), name)


def database(folder: Path, name: str) -> Resource:
    resource = open_resource("shop", f"sqlite:///{folder}/{name}.db", 0.2)
    resource.create_tables()
    return resource


def test_marking_again_ends_beside_publishers_that_never_pause() -> None:
    busy, marking = BusyDatabase(), Marking()

    upkeep_of(lambda: busy, marking, ResourceName("shop", "u")).mark_again()

    assert {ended.capture for ended in marking.submitted} >= {BusyDatabase.row(n).capture for n in range(LEFT)}


def test_what_nobody_foresaw_ends_neither_upkeep_nor_what_is_in_doubt(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    shop, marking = database(tmp_path, "shop"), Marking()
    opened = iter([ZeroDivisionError(CANARY), None])

    def decisions() -> Decisions:
        if (error := next(opened)) is not None:
            raise error
        return shop.decisions()

    upkeep = upkeep_of(decisions, marking, shop.identity())
    upkeep.doubt(Ended(capture_id(NONCE), NONCE, [Placed("orders", 0, 1, 1)], "i"))
    pauses: list[float] = []
    monkeypatch.setattr(upkeep._stop, "wait", lambda seconds: pauses.append(seconds) or len(pauses) > 1)

    upkeep._run()

    assert "ZeroDivisionError" in caplog.text
    assert CANARY not in caplog.text
    assert pauses == [REFRESH_S, TICK_S]
    assert upkeep.doubtful == 0
    upkeep.close(0)


def test_another_database_under_the_right_name_does_not_end_a_capture_in_doubt(tmp_path: Path) -> None:
    original, other = database(tmp_path, "original"), database(tmp_path, "other")
    marking = Marking()
    upkeep = upkeep_of(other.decisions, marking, original.identity())
    upkeep.doubt(Ended(capture_id(NONCE), NONCE, [Placed("orders", 0, 1, 1)], "i"))

    with pytest.raises(ConfigError, match="identity changed"):
        upkeep.find_out_once()

    assert marking.submitted == [], "an aborted marker, which a relay without that database would believe"
    assert upkeep.doubtful == 1
    decisions = other.decisions()
    assert decisions.read([capture_id(NONCE)]) == {}
    decisions.close()


def decided(session: Session, topic: str) -> bytes:
    """Commit a capture with a message in that topic, and return its id."""
    begun, _ = session.begin()
    session.decide(begun, orjson.dumps([[topic, 0, 1, 1]]))
    return begun


@pytest.mark.parametrize(
    ("settings", "kept_s"),
    [
        ({"retention.ms": "1000", "segment.ms": "2000"}, 3 + DAY_S),
        ({"retention.ms": "1000"}, 1 + 7 * DAY_S + DAY_S),
        ({"retention.ms": "-1", "segment.ms": "2000"}, float("inf")),
        ({}, float("inf")),
    ],
)
def test_a_topics_decisions_may_be_asked_for_until_its_last_segment_is_gone_and_a_day_more(
    settings: dict[str, str], kept_s: float
) -> None:
    assert horizon_s(TopicFacts("orders", b"i" * 16, 1, 1, settings)) == kept_s


@pytest.mark.parametrize(("longest", "left"), [("0", 0), ("600000000", 1), ("-1", 1)])
def test_a_decision_is_kept_for_as_long_as_any_topic_keeps_its_messages(tmp_path: Path, longest: str, left: int) -> None:
    """Five days old, in topics that are kept for no time, and perhaps for a week or for ever."""
    shop = database(tmp_path, "shop")
    session = shop.session()
    begun = decided(session, "orders")
    session._run("update relay_capture set marked = 1, created_at = created_at - 432000")
    session.close()
    upkeep = upkeep_of(shop.decisions, Marking(), shop.identity())
    facts = [TopicFacts(name, b"i" * 16, 1, 1, {"retention.ms": kept, "segment.ms": "0"}) for name, kept in (("orders", "0"), ("bills", longest))]
    upkeep._appender.known_topics = lambda: facts  # type: ignore[method-assign]

    upkeep.trim()

    decisions = shop.decisions()
    assert len(decisions.read([begun])) == left
    decisions.close()


def test_what_is_found_out_of_captures_in_doubt_is_marked_as_their_rows_say(tmp_path: Path) -> None:
    shop, marking = database(tmp_path, "shop"), Marking()
    upkeep = upkeep_of(shop.decisions, marking, shop.identity())
    session = shop.session()
    begun, nonce = session.begin()
    session.decide(begun, orjson.dumps([["orders", 0, 1, 1]]))
    session.close()
    placed = [Placed("orders", 0, 1, 1)]
    committed, unknown = Ended(begun, nonce, placed, "i"), Ended(capture_id(NONCE), NONCE, placed, "i")
    for ended in (committed, unknown, Ended(capture_id(b"x" * 16), b"x" * 16, [], "i")):
        upkeep.doubt(ended)

    upkeep.find_out_once()

    assert marking.submitted == [committed, unknown._replace(nonce=None)], "a nonce in a marker proves a commit"
    assert upkeep.doubtful == 0
    upkeep.close(0)


def test_one_whose_row_is_held_does_not_hold_up_the_others_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop, marking = database(tmp_path, "shop"), Marking()
    upkeep = upkeep_of(shop.decisions, marking, shop.identity())
    placed = [Placed("orders", 0, 1, 1)]
    held, free = (Ended(capture_id(nonce), nonce, placed, "i") for nonce in (NONCE, b"f" * 16))
    for ended in (held, free):
        upkeep.doubt(ended)
    settle = upkeep_module.settle

    def held_one(decisions: Decisions, capture: bytes) -> Any:
        if capture == held.capture:
            raise RowLocked("its publisher has it")
        return settle(decisions, capture)

    monkeypatch.setattr(upkeep_module, "settle", held_one)
    upkeep.find_out_once()

    assert marking.submitted == [free._replace(nonce=None)]
    assert upkeep.doubtful == 1
    upkeep.close(0)


class Frozen:
    """Decision rows of blocks whose answers were lost: some are held, each for a second whenever it is asked about."""

    def __init__(self, held: Sequence[bytes], committed: bytes, wait: Callable[[float], None]) -> None:
        self.held = list(held)
        self.asked: list[bytes] = []
        self._wait = wait
        self._rows = {committed: DecisionRow(committed=True, nonce=NONCE, proved=True)}

    def uuid(self) -> str:
        return "u"

    def read(self, captures: Sequence[bytes]) -> dict[bytes, DecisionRow]:
        return {capture: self._rows[capture] for capture in captures if capture in self._rows}

    def abort_if_undecided(self, capture: bytes) -> None:
        self.asked.append(capture)
        if capture in self.held:
            self._wait(1.0)
            raise RowLocked("a backend that froze has it")
        self._rows.setdefault(capture, DecisionRow(committed=False, nonce=None, proved=False))


def test_hundreds_of_rows_that_are_held_keep_the_upkeep_from_nothing_and_all_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    now, marking = [0.0], Marking()
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    placed = [Placed("orders", 0, 1, 1)]
    *held, free, committed = (Ended(b"%016d" % number, NONCE, placed, "i") for number in range(202))
    frozen = Frozen([ended.capture for ended in held], committed.capture, lambda seconds: now.__setitem__(0, now[0] + seconds))
    upkeep = upkeep_of(lambda: frozen, marking, ResourceName("shop", "u"))
    for ended in (*held, free, committed):
        upkeep.doubt(ended)

    upkeep.find_out_once()

    assert marking.submitted == [committed], "what is decided waits for nobody"
    assert now[0] <= DOUBTFUL_S + 1, "inquiries, and what is to be trimmed, wait meanwhile"
    for _ in range(len(held)):
        upkeep.find_out_once()
    assert marking.submitted == [committed, free._replace(nonce=None)]
    assert set(frozen.asked) == {ended.capture for ended in (*held, free)}
    assert upkeep.doubtful == len(held)


def test_captures_whose_marking_was_given_up_are_brought_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, marking, waited = SlowDatabase(10, 0), Marking(), list[float]()
    rows = [[], [BusyDatabase.row(1)]]
    monkeypatch.setattr(quick, "unmarked", lambda *_: rows.pop(0) if rows else [])
    upkeep = upkeep_of(lambda: quick, marking, ResourceName("shop", "u"))
    monkeypatch.setattr(clock, "monotonic", lambda: sum(waited))
    monkeypatch.setattr(upkeep._appender, "refresh", lambda: None, raising=False)

    def wait(seconds: float) -> bool:
        marking.given_up = marking.given_up or not waited
        waited.append(seconds)
        return sum(waited) > 2 * REFRESH_S

    monkeypatch.setattr(upkeep._stop, "wait", wait)
    upkeep._run()

    assert [ended.capture for ended in marking.submitted] == [BusyDatabase.row(1).capture]
    assert not marking.given_up


def test_a_capture_whose_answer_was_lost_is_found_out_by_its_row(tmp_path: Path) -> None:
    shop, other = database(tmp_path, "shop"), database(tmp_path, "other")
    uuid, unknown, soon = shop.identity().uuid, capture_id(NONCE), clock.monotonic() - 1
    session = shop.session()
    begun = decided(session, "orders")
    by_itself, _ = session.begin()
    session.execute("commit")
    session.close()

    def asked(resource: Resource, capture: bytes) -> Decided | None:
        return upkeep_module.find_out(resource.decisions, uuid, capture, soon)

    assert asked(other, unknown) is asked(other, begun) is None, "the empty table of another database says nothing"
    assert asked(shop, begun) is Decided.COMMITTED
    assert asked(shop, by_itself) is Decided.COMMITTED_EARLY, "what came behind that COMMIT is no part of it"
    assert asked(shop, unknown) is Decided.ABORTED, "whoever asks decides, where nobody has"
    assert asked(shop, unknown) is Decided.FENCED, "somebody had"
    decisions = other.decisions()
    assert decisions.read([unknown, begun]) == {}
    decisions.close()


def test_anothers_topic_that_may_not_be_seen_does_not_end_the_upkeep_of_the_own_ones(tmp_path: Path) -> None:
    shared, marking = database(tmp_path, "shared"), Marking()
    session = shared.session()
    foreign, own = (decided(session, topic) for topic in ("payroll", "orders"))
    session._run("update relay_capture set created_at = created_at - 1000000")
    session.close()
    upkeep = upkeep_of(shared.decisions, marking, shared.identity())

    upkeep.mark_again()

    assert [ended.capture for ended in marking.submitted] == [own]

    decisions = shared.decisions()
    assert {row.capture for row in decisions.unmarked(0.0, 10)} == {own, foreign}, "neither marker is in the log yet"
    decisions.mark([own, foreign])
    upkeep.trim()

    assert list(decisions.read([own, foreign])) == [foreign]
    decisions.close()


def test_markers_go_where_their_messages_may_still_be_and_what_has_none_there_counts_as_marked(tmp_path: Path) -> None:
    shop, marking = database(tmp_path, "shop"), Marking()
    session = shop.session()
    begun, nonce = session.begin()
    session.decide(begun, orjson.dumps([["orders", 0, 1, 1], ["orders", 1, 5, 2], ["gone", 0, 1, 1]]))
    decided(session, "gone")
    session.close()
    upkeep = upkeep_of(shop.decisions, marking, shop.identity())

    upkeep.mark_again()

    assert marking.submitted == [Ended(begun, nonce, [Placed("orders", 0, 1, 1)], None)]
    decisions = shop.decisions()
    assert [row.capture for row in decisions.unmarked(0.0, 10)] == [begun]
    decisions.close()


def test_however_many_are_unmarked_each_is_marked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_module, "_PAGE", 2)
    shop, marking = database(tmp_path, "shop"), Marking()
    session = shop.session()
    all_of_them = [decided(session, "orders") for _ in range(7)]
    session.close()

    upkeep_of(shop.decisions, marking, shop.identity()).mark_again()

    assert sorted(ended.capture for ended in marking.submitted) == sorted(all_of_them)


def test_anothers_rows_are_not_read_again_with_every_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, page, read = database(tmp_path, "shared"), 50, []
    monkeypatch.setattr(upkeep_module, "_PAGE", page)
    others = 20 * page
    session = shared.session()
    for number in range(others + page):
        topics = [["orders", 0, 1, 1], ["payroll", 0, 1, 1]] if number < others else [["orders", 0, 1, 1]]
        session.execute(
            "insert into relay_capture (capture, nonce, outcome, partitions, marked, created_at)"
            " values (?, 'n', 'committed', ?, 1, 0)",
            (b"%016d" % number, orjson.dumps(topics).decode()),
        )

    def counting() -> Any:
        decisions = shared.decisions()
        aged = decisions.aged
        monkeypatch.setattr(decisions, "aged", lambda *given: read.append(rows := aged(*given)) or rows)
        return decisions

    upkeep_of(counting, Marking(), shared.identity()).trim()

    assert session.execute("select count(*) from relay_capture").fetchone() == (others,)
    assert sum(map(len, read)) <= 4 * page
    session.close()


class SlowDatabase:
    """Aged decision rows; it has no time to look for unmarked ones, nor to delete more than so many at once."""

    def __init__(self, able: int, rows: int) -> None:
        self.able = able
        self.left = [b"%016d" % number for number in range(rows)]

    def uuid(self) -> str:
        return "u"

    def unmarked(self, older_than_s: float, limit: int) -> list[UnmarkedRow]:
        raise Unreachable("canceling statement due to statement timeout")

    def aged(self, older_than_s: float, limit: int, without: Sequence[str] = ()) -> list[AgedRow]:
        return [AgedRow(capture, None, 1e9) for capture in self.left[:limit]]

    def trim(self, captures: Sequence[bytes]) -> None:
        if len(captures) > self.able:
            raise Unreachable("canceling statement due to statement timeout")
        del self.left[: len(captures)]

    def close(self) -> None:
        pass


def test_rows_are_trimmed_though_the_database_is_too_slow_for_the_rest_and_for_many_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = SlowDatabase(1_500, 10_000)
    upkeep = upkeep_of(lambda: slow, Marking(), ResourceName("shop", "u"))
    rounds: list[float] = []
    monkeypatch.setattr(clock, "monotonic", lambda: len(rounds) * (REFRESH_S + 1))
    monkeypatch.setattr(upkeep._appender, "refresh", lambda: None, raising=False)
    monkeypatch.setattr(upkeep._stop, "wait", lambda seconds: rounds.append(seconds) or len(rounds) > 11)

    upkeep._run()

    assert slow.left == []


def test_a_database_that_comes_back_is_not_met_by_hundreds_of_connections_for_each_lost_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed, opened = [0.0], []

    def away() -> Decisions:
        opened.append(passed[0])
        raise Unreachable("away")

    moved = SimpleNamespace(monotonic=lambda: passed[0], sleep=lambda seconds: passed.__setitem__(0, passed[0] + seconds))
    monkeypatch.setattr(upkeep_module, "clock", moved)

    assert upkeep_module.find_out(away, "u", b"c" * 16, 10.0) is None

    assert opened[1] <= 0.1, "the server is mostly back at once"
    assert opened[-1] >= 9.0
    assert len(opened) <= 20


def test_a_file_that_is_held_at_the_hour_of_trimming_is_trimmed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    held = SlowDatabase(1_500, 10)
    waited: list[float] = []

    def unmarked(_older_than_s: float, _limit: int) -> list[UnmarkedRow]:
        if sum(waited) < REFRESH_S / 2:
            raise RowLocked("another writer holds the file")
        return []

    monkeypatch.setattr(held, "unmarked", unmarked)
    upkeep = upkeep_of(lambda: held, Marking(), ResourceName("shop", "u"))
    monkeypatch.setattr(clock, "monotonic", lambda: sum(waited))
    monkeypatch.setattr(upkeep._appender, "refresh", lambda: None, raising=False)
    monkeypatch.setattr(upkeep._stop, "wait", lambda seconds: waited.append(seconds) or sum(waited) > 2 * REFRESH_S)

    upkeep._run()

    assert held.left == []


def test_closing_leaves_the_connection_to_a_thread_that_still_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    busy = BusyDatabase()
    monkeypatch.setattr(busy, "close", lambda: closed.append(True), raising=False)
    upkeep = upkeep_of(lambda: busy, Marking(), ResourceName("shop", "u"))
    upkeep._decisions = busy
    alive = [True]
    upkeep._thread = SimpleNamespace(join=lambda _: None, is_alive=lambda: alive[0])

    upkeep.close(0.0)
    assert closed == [], "under its statement SQLite would end the process"
    alive[0] = False
    upkeep.close(0.0)
    assert closed == [True]
