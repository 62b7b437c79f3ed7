"""The parts of what looks for the unshown, by themselves: which entries are asked for, whose records show them, what is read again."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from relay.delivery.evidence_reading import BeginScan, MonitorView
from relay.delivery.topic import hanging, unshown
from relay.delivery.topic.sealed import SealedProducer
from relay.message.envelope import DEAD_CODE, OUT_DIGEST, OUT_INSTANCE, OUT_N, REDRIVEN
from relay.message.errors import InDoubt, Retriable
from relay.message.record import LogPartition
from relay.monitor.entries import Begin, Entry, OutputStart, Page, Proof, Seal, SettleSeal, encode, pages
from tests.unit.memory_kafka import MemoryKafka
from tests.unit.test_recovery_again import LOG, MESSAGES, MONITOR, OUT, message, view, work


class OfLog:
    """A log that has offsets 3 to 6, or less by now; whoever reads past its end waits without one."""

    def __init__(self, low: int) -> None:
        self.low = low
        self.asked: list[tuple[int, int]] = []

    def watermarks(self, _place: LogPartition) -> tuple[int, int]:
        return self.low, 7

    def read(self, ranges: dict[LogPartition, tuple[int, int]]) -> Any:
        for first, following in ranges.values():
            self.asked.append((first, following))
            assert self.low <= first < following <= 7
            yield [SimpleNamespace(offset=lambda at=at: at) for at in range(first, following)]


@pytest.mark.parametrize(
    ("low", "asked", "found"), [(3, [(3, 7)], [None, 3, None, 6, None]), (4, [(5, 7)], [None, None, None, 6, None]), (7, [], [None] * 5)]
)
def test_what_is_missing_is_read_from_what_the_log_still_has(low: int, asked: list[tuple[int, int]], found: list[int | None]) -> None:
    log, another = OfLog(low), b"a" * 16
    rows = [
        unshown.Row(another if offset == 5 else message(offset).digest, b"c" * 8, LOG, offset, False, 0, 1)
        for offset in (6, 5, 7, 3, 2)
    ]

    missing = list(unshown.missing_of(log, log, rows, lambda record, _topic, _partition: message(record.offset() or 0)))  # type: ignore[arg-type]

    assert log.asked == asked
    assert [one.row.offset for one in missing] == [2, 3, 5, 6, 7]
    assert [one.message and one.message.offset for one in missing] == found


@pytest.mark.parametrize(("is_dead", "replay", "by_another"), [(False, 0, True), (True, 0, False), (False, 1, False)], ids=["plain", "dead", "redriven"])
def test_of_what_died_or_was_redriven_the_record_of_its_own_transaction_counts(*, is_dead: bool, replay: int, by_another: bool) -> None:
    one, other, stranger = b"1" * 16, b"2" * 16, b"3" * 16
    row = unshown.Row(message(4).digest, b"c" * 8, LOG, 4, is_dead, replay, 7)

    def shows(instance: bytes, n: int, digest: bytes = row.digest, *, hidden: bool = False) -> tuple[bool, bool]:
        shown = unshown.Shown([one, other])
        headers = [(OUT_INSTANCE, instance.hex().encode()), (OUT_N, b"%d" % n), (OUT_DIGEST, digest.hex().encode())]
        shown.take(SimpleNamespace(headers=lambda: headers), hidden=hidden)  # type: ignore[arg-type]
        return shown.has(row, one), shown.hides(row, one)

    assert shows(one, 7) == (True, False)
    assert shows(one, 6) == shows(other, 7) == (by_another, False)
    assert shows(stranger, 7) == shows(one, 7, b"d" * 16) == (False, False)
    assert shows(one, 7, hidden=True) == (False, True)
    assert shows(one, 6, hidden=True) == shows(other, 7, hidden=True) == (False, False)


@pytest.mark.parametrize("broken", [(OUT_N, b"seven"), (OUT_N, None), (OUT_DIGEST, b"no hex"), (OUT_DIGEST, b"\xff")])
def test_marks_that_nobody_of_ours_has_written_are_passed_over(broken: tuple[str, bytes | None]) -> None:
    shown, row = unshown.Shown([b"1" * 16]), unshown.Row(message(4).digest, b"c" * 8, LOG, 4, False, 0, 7)
    headers = {OUT_INSTANCE: b"31" * 16, OUT_N: b"7", OUT_DIGEST: row.digest.hex().encode()} | dict([broken])

    shown.take(SimpleNamespace(headers=lambda: list(headers.items())), hidden=False)  # type: ignore[arg-type]

    assert not shown.has(row, b"1" * 16)


def test_what_the_stored_position_is_past_and_no_output_shows_is_written_again() -> None:
    (page,) = pages([message(offset) for offset in range(6)], worker="w", instance=b"1" * 16, n=7)
    redriven = replace(page, replays=b"\1" * 6)
    present = {message(1).digest}

    def offsets(page: Page, at: int, note: str) -> list[int]:
        return [row.offset for row in unshown.passed([page], present, {LOG: (at, note)})]

    assert offsets(page, 4, "ours") == [0, 2, 3]
    assert offsets(page, 4, "") == [], "a person has stored it"
    assert offsets(redriven, 4, "ours") == [], "its order is open still"
    assert unshown.passed([page], present, {OUT: (4, "ours")}) == []


@pytest.mark.parametrize(
    ("entry", "begun", "sealed"),
    [
        (Begin("w", "t", b"1" * 16, 7, 6, [], []), 7, 6),
        (Seal("w", b"1" * 16, 7), 7, 7),
        (next(pages([message(0)], worker="w", instance=b"1" * 16, n=7)), 7, 6),
        (SettleSeal("w", b"1" * 16, 7), None, None),
    ],
    ids=["begin", "seal", "page", "settle seal"],
)
def test_what_an_entry_tells_of_its_instance(entry: Entry, begun: int | None, sealed: int | None) -> None:
    """Of what lies there it tells that it was begun; of what shows there that it, or the one before it, was committed."""
    key, value = encode(entry)
    record: Any = SimpleNamespace(key=lambda: key, value=lambda: value)

    assert hanging._begun(record) == (begun and (b"1" * 16, begun))
    assert hanging._sealed(record) == (sealed and (b"1" * 16, sealed))


@pytest.mark.parametrize(
    ("key", "headers", "number"),
    [
        (b"k", {OUT_INSTANCE: b"31" * 16, OUT_N: b"7"}, (b"1" * 16, 7)),
        (b"k", {OUT_INSTANCE: b"31" * 16}, None),
        (b"k", {OUT_INSTANCE: b"no hex", OUT_N: b"7"}, None),
        (b"k", {}, None),
        (hanging.TOUCH, {}, hanging.UNNAMED),
        (b"k", {DEAD_CODE: REDRIVEN.encode()}, hanging.UNNAMED),
    ],
    ids=["ours", "no number", "no instance", "a stranger's", "a touch", "takes a dead letter back"],
)
def test_whose_an_output_is(key: bytes, headers: dict[str, bytes], number: tuple[bytes, int] | None) -> None:
    record: Any = SimpleNamespace(key=lambda: key, headers=lambda: list(headers.items()))

    assert hanging._written(record) == number


def begun(instance: bytes, n: int, offset: int) -> tuple[int, Begin]:
    return offset, Begin("w", instance.decode()[0], instance, n, n - 1, [], [], closed=0)


def seen_of(begins: list[tuple[int, Begin]], shown: list[tuple[int, Begin | Seal]]) -> MonitorView:
    """A monitor partition of which the last begins of instances are these, and this shows."""
    seen = view()
    seen.scan = BeginScan(0)
    for offset, begin in begins:
        seen.scan.begun(offset, begin)
    for offset, entry in shown:
        seen.evidence.add(offset, entry)
    return seen


ONE, TWO, THREE = b"1" * 16, b"2" * 16, b"3" * 16


@pytest.mark.parametrize("heir", [begun(ONE, 1, 10), begun(ONE, 2, 14)], ids=["its claim", "more that does not show"])
def test_who_claimed_last_is_whose_begin_shows_last_and_what_lies_behind_that_is_in_question(heir: tuple[int, Begin]) -> None:
    former, before = begun(TWO, 5, 12), begun(THREE, 7, 3)
    shown = [begun(THREE, 7, 3), begun(TWO, 4, 5), begun(ONE, 1, 10), (11, Seal("w", ONE, 1))]

    found = unshown.since_last_claim(seen_of([former, heir, before], shown))

    assert found == [heir, former], "a former owner that stood still begins behind its heir's claim"


def test_a_claim_that_does_not_show_is_none() -> None:
    owner, claiming = begun(ONE, 5, 3), begun(TWO, 1, 10)

    assert unshown.since_last_claim(seen_of([owner, claiming], [begun(ONE, 5, 3)])) == [owner, claiming]
    assert unshown.since_last_claim(seen_of([claiming], [])) == [claiming]
    assert unshown.question(seen_of([claiming], [])) is None
    asked = unshown.question(seen_of([owner, claiming], [begun(ONE, 5, 3)]))
    assert asked is not None
    assert asked.begin.instance == ONE


@pytest.mark.parametrize(
    ("changed", "asked"),
    [({}, True), ({"n": 5}, False), ({"instance": TWO}, False), ({"proof": Proof.PROVEN}, False), ({"recovery": "a person"}, False)],
    ids=["since", "seen closed", "another's", "proven otherwise", "a person's word"],
)
def test_only_what_a_seal_alone_proves_of_what_was_not_seen_closed_is_in_question(changed: dict[str, Any], *, asked: bool) -> None:
    offset, begin = begun(ONE, 7, 10)
    (page,) = pages([message(0)], worker="w", instance=ONE, n=6)
    question = unshown.Question(view(), replace(begin, closed=5), offset)

    question.take(replace(page, **changed))

    assert (message(0).digest in question.rows) is asked


@pytest.mark.parametrize("floors", [(2, 5), (5, 2)])
def test_an_output_of_several_claimants_is_read_from_the_lowest_of_their_beginnings(floors: tuple[int, int]) -> None:
    gone = set[LogPartition]()
    starts = [OutputStart(*LOG, floor) for floor in floors]

    spans = unshown._spans(OfLog(1), starts, unshown.Outputs([LOG], [], b""), 100, gone)  # type: ignore[arg-type]

    assert spans == {LOG: (2, 7)}
    assert not gone


@pytest.mark.parametrize(("floor", "low", "most", "is_gone"), [(7, 1, 9, False), (8, 1, 9, True), (2, 2, 9, False), (2, 3, 9, True), (2, 1, 4, True), (3, 1, 4, False)])
def test_an_output_whose_beginning_is_not_read_or_lies_beyond_its_end_has_lost_what_it_showed(floor: int, low: int, most: int, *, is_gone: bool) -> None:
    gone = set[LogPartition]()

    unshown._spans(OfLog(low), [OutputStart(*LOG, floor)], unshown.Outputs([LOG], [], b""), most, gone)  # type: ignore[arg-type]

    assert gone == ({LOG} if is_gone else set())


@pytest.mark.parametrize("shows", [False, True])
def test_what_vanished_is_read_from_the_first_of_its_begins_and_is_none_where_its_begin_shows(
    *, shows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A former owner that stood still may have begun before the owner's last begin."""
    former, heir = begun(TWO, 5, 12), begun(ONE, 2, 14)
    asked: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(unshown, "trace_of", lambda *_: lambda _begin: True)
    monkeypatch.setattr(unshown, "entries", lambda _scanner, _monitor, spans: asked.update(spans) or iter(()))
    seen = seen_of([former, heir], [begun(ONE, 1, 10), (11, Seal("w", ONE, 1)), *([heir] if shows else [])])
    reader: Any = None

    found = unshown.vanished(reader, reader, "monitor", [seen], {0: (0, 20)}, (), unshown.Outputs([], [], b""))

    assert [(one.offset, one.begin) for one in found] == ([] if shows else [former, heir])
    assert asked == ({} if shows else {0: (12, 20)})


def test_of_what_vanished_only_what_it_settled_itself_is_taken_for_its_own() -> None:
    mine, others = (next(pages([message(0)], worker="w", instance=instance, n=1)) for instance in (ONE, TWO))
    found = unshown.Vanished(0, 10, begun(ONE, 1, 10)[1])

    for offset, entry in enumerate(
        [SettleSeal("w", THREE, 3), begun(ONE, 1, 10)[1], mine, others, SettleSeal("w", THREE, 4), Seal("w", TWO, 1),
         SettleSeal("w", THREE, 5), Seal("w", ONE, 1), SettleSeal("w", THREE, 6), None], 9
    ):  # fmt: skip
        found.take(offset, entry)

    assert found.pages == [mine]
    assert found.settled == {(THREE, 4), (THREE, 5)}


class Asking:
    """A watch by which all is closed; the output as told, and whether what is asked for then shows."""

    def __init__(self, now: list[float], *, takes: float = 0.0, shows: bool = True) -> None:
        self._now, self._takes, self._shows = now, takes, shows
        self.asked = 0
        self.end: dict[LogPartition, int] = {}

    def wait(self, *_: object) -> dict[LogPartition, int]:
        self._now[0] += self._takes
        return self.end

    def show(self, _records: object) -> bool:
        self.asked += 1
        return self._shows


@pytest.mark.parametrize(
    ("takes", "shows", "asked", "is_told"),
    [(0.0, False, 0, True), (60.0, True, 1, True), (60.0, False, 1, False)],
    ids=["closed in time", "closed late", "aborted where it hung"],
)
def test_what_is_closed_late_is_delivered_only_if_its_seal_shows(
    takes: float, *, shows: bool, asked: int, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("relay.world.clock.monotonic", lambda: now[0])
    worker = MemoryKafka().transaction("w")
    worker.init()
    watch: Any = Asking(now, takes=takes, shows=shows)
    producer = SealedProducer(worker, "w", "monitor", {OUT: 0}, watch)

    with nullcontext() if is_told else pytest.raises(InDoubt, match="was aborted where it hung"):
        producer.run(work(MESSAGES[:3], 3, producer, 3))

    assert watch.asked == asked


def test_that_outputs_are_closed_is_news_until_a_begin_has_said_so() -> None:
    worker = MemoryKafka().transaction("w")
    worker.init()
    watch: Any = Asking([100.0])
    producer = SealedProducer(worker, "w", "monitor", {OUT: 0}, watch)

    producer.run(work(MESSAGES[:2], 2, producer, 2))
    assert producer.news == {}, "nobody has seen them closed"
    watch.end = {OUT: 100}
    producer.run(work(MESSAGES[2:4], 2, producer, 4))
    assert producer.news == {0: 2}
    producer.run(work(MESSAGES[4:], 0, producer, 4))
    assert producer.news == {}


def hangings(kafka: MemoryKafka | None = None) -> hanging.HangingTransactions:
    return hanging.HangingTransactions(kafka or MemoryKafka(), "own", MONITOR.topic, unshown.Outputs([OUT], [], b""))


def test_the_last_of_an_instance_is_the_highest_whatever_partition_it_was_read_in() -> None:
    assert hanging._last([(ONE, 8), (TWO, 3), None, (ONE, 9), (ONE, 7)]) == {ONE: 9, TWO: 3}


class Monitors:
    """Two monitor partitions of which what is read by whoever reads committed ends at 300; nothing shows there."""

    def partitions(self, _topic: str) -> int:
        return 2

    def watermarks(self, _place: LogPartition) -> tuple[int, int]:
        return 0, 300

    def read(self, spans: dict[LogPartition, tuple[int, int]]) -> Any:
        self.spans = spans
        return iter(())


def test_nothing_is_taken_for_aborted_where_the_monitor_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is just being started may know no topic yet, and the client then counts no partitions."""
    monitors: Any = Monitors()
    monkeypatch.setattr(Monitors, "partitions", lambda *_: 0)
    with pytest.raises(Retriable, match=f"{MONITOR.topic} is not known to the broker that was asked"):
        hangings()._committed(monitors, monitors, [], [MONITOR], lambda _: False)


@pytest.mark.parametrize(
    ("offset", "is_sealed", "hangs", "traced", "committed", "torn"),
    [
        (250, True, True, True, True, False),
        (250, True, False, True, False, False),
        (199, True, False, True, True, False),
        (200, True, False, True, False, False),
        (250, True, True, False, False, False),
        (250, False, True, True, False, True),
        (250, False, False, True, False, False),
        (199, False, False, True, False, False),
        (250, False, True, False, False, False),
    ],
    ids=["sealed where it hangs", "its seal would show", "too far back for that", "just read", "no trace", "torn", "no seal shows", "nor far back", "not torn"],
)  # fmt: skip
def test_what_left_a_trace_was_committed_where_its_seal_cannot_show_and_torn_without_one(
    offset: int, *, is_sealed: bool, hangs: bool, traced: bool, committed: bool, torn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hanging, "TAIL", 100)
    asked = [hanging.Begun(MONITOR.partition, offset, begun(ONE, 7, offset)[1], is_sealed)]
    places = {MONITOR} if hangs else {OUT}
    reader: Any = Monitors()

    assert hangings()._committed(reader, reader, asked, places, lambda _: traced) == ({ONE: 7} if committed else {})
    assert set(reader.spans.values()) == {(200, 300)}
    assert hangings()._torn(asked, places, lambda _: traced) == ({ONE: 7} if torn else {})


def test_behind_what_a_stranger_left_open_a_bounded_part_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hanging, "READ_MAX", 50)
    for end, parts in [(900, [(300, 301), (850, 900)]), (340, [(300, 301), (301, 340)])]:
        read: list[tuple[int, int]] = []
        reader: Any = SimpleNamespace(
            watermarks=lambda _place: (0, 300), read=lambda spans, read=read: read.extend(spans.values()) or iter(())
        )
        assert hangings()._found(reader, reader, {OUT: end}) == ({}, {OUT: {}})
        assert read == parts


@pytest.mark.parametrize("commit", [False, True])
def test_what_touches_a_place_shows_there_if_and_only_if_that_is_to_be_committed(*, commit: bool) -> None:
    kafka = MemoryKafka()
    kafka.transaction("own").init()

    hangings(kafka)._touch("own", [OUT], {}, b"", commit=commit)

    assert [one.key() for one in kafka.visible(OUT)] == [hanging.TOUCH] * commit
    assert not kafka.open


def test_what_hangs_again_where_all_was_closed_meanwhile_is_ended_again() -> None:
    found = hangings()
    closed: Any = SimpleNamespace(still_open=lambda *_: set())

    def ends() -> bool:
        return found._end_under("own", [OUT], (), commit=False)

    assert [ends() for _ in range(hanging.ROUNDS_MAX + 1)] == [True] * hanging.ROUNDS_MAX + [False]
    found.end(closed, closed, [], {OUT: 5}, ())
    assert ends()


@pytest.mark.parametrize(
    ("place", "number", "first", "committed", "torn", "ended"),
    [
        (MONITOR, (ONE, 7), TWO, 7, 0, ("1", True, False)),
        (MONITOR, (ONE, 8), TWO, 7, 0, ("1", False, False)),
        (MONITOR, (ONE, 7), TWO, 0, 7, ("1", True, False)),
        (MONITOR, (ONE, 8), TWO, 0, 7, ("1", False, False)),
        (OUT, (ONE, 7), TWO, 0, 7, ("1", False, False)),
        (OUT, (ONE, 8), ONE, 7, 0, ("1", False, True)),
        (OUT, (ONE, 7), ONE, 7, 0, ("1", False, True)),
        (OUT, (ONE, 7), TWO, 7, 0, None),
        (OUT, (TWO, 7), TWO, 0, 0, ("own", False, False)),
        (OUT, (TWO, 7), TWO, 7, 0, None),
    ],
    ids=[
        "committed", "behind what was committed", "torn", "behind what was torn", "an output of a torn one", "first there", "first there and committed",
        "committed, behind a stranger", "of whom nothing is known", "of whom nothing is known, committed",
    ],
)  # fmt: skip
def test_under_whose_id_and_how_what_hangs_is_ended(
    place: LogPartition, number: tuple[bytes, int], first: bytes, committed: int, torn: int, ended: tuple[str, bool, bool] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, seen, done = hangings(), seen_of([begun(ONE, 7, 10)], []), list[Any]()
    reader: Any = SimpleNamespace(still_open=lambda *_: {place})
    told = {
        "_found": ({place: first}, {place: dict([number])}),
        "_committed": {number[0]: committed} if committed else {},
        "_torn": {number[0]: torn} if torn else {},
    }
    for name, answer in told.items():
        monkeypatch.setattr(found, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(found, "_end_under", lambda one, places, sure, *, commit: done.append((one, places, commit, place in sure)) or True)

    with pytest.raises(Retriable) if ended else nullcontext():
        found.end(reader, reader, [seen], {place: 30}, ())

    assert done == ([(ended[0], [place], *ended[1:])] if ended else [])


@pytest.mark.parametrize(("stable", "ended"), [(3, ["own"]), (4, ["own"]), (2, [])], ids=["the first", "the last", "somebody else's"])
def test_a_touch_that_hangs_itself_is_ended_until_it_is_over(stable: int, ended: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is nobody's by its marks, so it was given up after two rounds, and the next commit under its id showed it to readers."""
    kafka = MemoryKafka()
    other = kafka.transaction("other")
    other.init()
    for _ in range(3):
        other.produce(OUT, None, b"v")
    found, done = hangings(kafka), list[Any]()
    for _ in range(hanging.ROUNDS_MAX):
        found._end_under("own", [OUT], (), commit=False)
    monkeypatch.setattr(found, "_found", lambda *_: ({OUT: b""}, {OUT: {b"": 1}}))
    monkeypatch.setattr(found, "_committed", lambda *_: {})
    monkeypatch.setattr(found, "_touch", lambda one, places, *_, commit: done.append((one, places, commit)))
    reader: Any = SimpleNamespace(still_open=lambda *_: {OUT}, watermarks=lambda _: (0, stable))

    for _ in range(3):
        with pytest.raises(Retriable) if ended else nullcontext():
            found.end(reader, reader, [], {OUT: 6}, ())

    assert done == [(one, [OUT], False) for one in ended for _ in range(3)]
