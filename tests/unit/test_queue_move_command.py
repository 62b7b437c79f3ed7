"""`relay queue migrate`: which steps it records in which order, whom it waits for, and what it refuses."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from relay.config.loading import load
from relay.control import queue_moving
from relay.control.queue_moving import move_queue
from relay.message.errors import CheckFailed, ConfigError
from relay.queue import moving
from relay.queue.desired import Desired, Move, Step
from relay.queue.message import NewMessage
from relay.queue.port import Filter, Holder, QueueStore, Retired
from relay.run.queues import open_at, queue_of
from relay.setup.queue_tables import create_tables

HOLDER = b"a worker--------"
WAIT_S = 20.0


class Desk:
    """Writes down how far a move has come where it reads it; its queue has six messages, two of them over, one held."""

    def __init__(self, folder: Path, *, routed: bool = True, store: str = "old.db") -> None:
        self.folder, self.who, self.desired = folder, "ann", Desired()
        self.steps: list[Step] = []
        self.told: list[str] = []
        path = folder / "relay.toml"
        route = '[routes.main]\nfrom = ["orders"]\nto = { queue = "credit" }\n' if routed else ""
        path.write_text(
            '[relay]\nname = "shop"\ninstance = "a"\n[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n'
            f'[queues.credit]\nstore = "sqlite:///{store}"\nsubscribers = {{ clerk = {{}} }}\n{route}'
        )
        self.config = load(path)
        self.queue = queue_of(self.config, "credit")
        create_tables(self.config, self.queue, self.queue.store)
        with closing(sqlite3.connect(folder / store, isolation_level=None)) as file:
            file.execute(
                "insert into relay_position (relay, route, topic_id, topic, partition, position, epoch, worker)"
                " values ('shop', 'main', ?, 'orders', 0, 17, 3, 'w')",
                (bytes(16),),
            )
        with closing(self.store()) as old:
            old.enter(Holder(HOLDER, "clerk", 0, None))
            old.put([NewMessage("/till", f"m-{number}", b"") for number in range(6)], 1)
            over = old.take("clerk", HOLDER, 2, 2)
            old.finish("clerk", [one.ticket for one in over], 3)
            (self.held,) = old.take("clerk", HOLDER, 1, 4)

    def at(self, name: str) -> str:
        return f"sqlite:///{self.folder}/{name}"

    def store(self, where: str | None = None) -> QueueStore:
        return open_at(self.config, self.queue, where or self.queue.store)

    def latest(self) -> Desired:
        return self.desired

    def moved(self, move: Move) -> None:
        self.desired.add(*move.encode())
        self.steps.append(move.step)

    def was(self, step: Step, source: str, target: str) -> None:
        """Let a move have come so far before."""
        self.desired.add(*Move("credit", "u", source, target, step, "bob", 1).encode())

    def move(self, target: str, wait_s: float = 0.0) -> dict[str, Any]:
        return move_queue(self, "credit", target, wait_s=wait_s, tell=self.told.append)  # type: ignore[arg-type]


class Clock:
    """Passes when somebody sleeps."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.now = 0.0
        self.steps: list[Step] = []
        self.happens: Callable[[], object] = bool

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.steps = list(self._desk.steps)
        self.happens()

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 1


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(desk)
    monkeypatch.setattr(queue_moving, "clock", made)
    return made


def names(store: QueueStore) -> list[str]:
    return [view.id for view in store.find(Filter(), limit=100)]


def test_a_queue_and_its_routes_cursors_are_moved_once(desk: Desk, time: Clock) -> None:
    done = desk.move("sqlite:///new.db")

    assert done == {"queue": "credit", "to": desk.at("new.db"), "messages": 6, "moved": True}
    assert desk.steps == [Step.COPYING, Step.RETIRING, Step.MOVED]
    assert [sentence.split()[0] for sentence in desk.told] == ["copying", "waiting", "copying"]
    with closing(desk.store()) as old, closing(desk.store(desk.at("new.db"))) as new:
        assert names(new) == [f"m-{number}" for number in range(6)]
        with pytest.raises(Retired):
            old.put([NewMessage("/till", "late", b"")], 5)
        assert new.held(HOLDER), "what its holder did not give back in time moves with it"
    with closing(sqlite3.connect(desk.folder / "new.db")) as file:
        assert file.execute("select position, epoch from relay_position").fetchall() == [(17, 3)]
    assert desk.move("sqlite:///new.db") == {"queue": "credit", "to": desk.at("new.db"), "messages": 0, "moved": False}
    assert len(desk.steps) == 3


def test_workers_have_time_to_read_the_wish_and_to_give_back_what_they_hold(desk: Desk, time: Clock) -> None:
    def given_back() -> None:
        if time.now > 5.0:
            with closing(desk.store()) as old:
                old.free("clerk", [desk.held.ticket], 5)

    time.happens = given_back
    desk.move("sqlite:///new.db", WAIT_S)

    assert time.steps[-1] is Step.RETIRING, "said before it is waited for"
    assert 5.0 < time.now < 6.0
    with closing(desk.store(desk.at("new.db"))) as new:
        assert not new.held(HOLDER)


@pytest.mark.parametrize(("wait_s", "waited"), [(0.0, queue_moving.OBEY_S), (WAIT_S, WAIT_S)])
def test_nobody_who_holds_something_is_waited_for_without_end(desk: Desk, time: Clock, wait_s: float, waited: float) -> None:
    desk.move("sqlite:///new.db", wait_s)

    assert waited <= time.now < waited + 1


def test_workers_that_hold_nothing_yet_have_time_to_read_the_wish(desk: Desk, time: Clock) -> None:
    """Else one takes a message between the look and the retirement: it would run on, and its DONE be refused."""
    with closing(desk.store()) as old:
        old.free("clerk", [desk.held.ticket], 5)

    desk.move("sqlite:///new.db", WAIT_S)

    assert time.now == queue_moving.OBEY_S


def test_one_who_holds_something_is_waited_for_though_others_hold_nothing(desk: Desk, time: Clock) -> None:
    with closing(desk.store()) as old:
        old.enter(Holder(b"an idle worker--", "clerk", 0, None))

    desk.move("sqlite:///new.db", 5.0)

    assert time.now >= 5.0


def test_a_move_that_was_copying_when_it_ended_stops_the_workers_before_the_cut(desk: Desk, time: Clock) -> None:
    desk.was(Step.COPYING, desk.queue.store, desk.at("new.db"))

    assert desk.move("sqlite:///new.db")["messages"] == 6
    assert desk.steps == [Step.COPYING, Step.RETIRING, Step.MOVED]


def test_a_move_that_was_retiring_when_it_ended_lets_nobody_take_a_message_again(desk: Desk, time: Clock) -> None:
    desk.was(Step.RETIRING, desk.queue.store, desk.at("new.db"))

    assert desk.move("sqlite:///new.db")["messages"] == 6
    assert desk.steps == [Step.RETIRING, Step.MOVED]


@pytest.mark.parametrize("step", ["move.copying", "move.page", "move.retiring", "move.retired", "move.copied", "move.cursors"])
def test_a_run_that_stood_still_while_another_one_finished_changes_nothing_any_more(
    desk: Desk, time: Clock, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """What was done in the new store since would be given to the subscribers once more."""
    there = desk.at("new.db")
    again: list[str] = []

    def stands_still(name: str) -> None:
        if name != step or again:
            return
        again.append(name)
        desk.move("sqlite:///new.db")
        with closing(desk.store(there)) as new, closing(sqlite3.connect(desk.folder / "new.db", isolation_level=None)) as file:
            new.enter(Holder(b"another worker--", "clerk", 0, None))
            taken = new.take("clerk", b"another worker--", 10, 10)
            assert len(taken) == 3
            assert all(new.finish("clerk", [one.ticket for one in taken], 11))
            file.execute("update relay_position set position = 18")

    for module in (queue_moving, moving):
        monkeypatch.setattr(module, "crash_point", stands_still)
    with pytest.raises(CheckFailed, match=r"by another run of this command \(ann\)"):
        desk.move("sqlite:///new.db")

    assert desk.desired.moves["credit"].step is Step.MOVED
    with closing(desk.store(there)) as new, closing(sqlite3.connect(desk.folder / "new.db")) as file:
        assert new.take("clerk", b"another worker--", 10, 12) == []
        assert file.execute("select position from relay_position").fetchall() == [(18,)]


def test_stores_that_differ_in_the_end_leave_the_queue_stopped(desk: Desk, time: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "differences", lambda *_: iter(["message 3 differs between the stores"]))

    with pytest.raises(CheckFailed, match="message 3 differs"):
        desk.move("sqlite:///new.db")

    assert desk.steps == [Step.COPYING, Step.RETIRING]
    assert not desk.desired.may_take("credit", "clerk")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("elsewhere", "or name one of those: there is none"),
        ("postgresql://u@h/d", "a server's address"),
        ("sqlite:///old.db", "lies in that database already"),
        ("log+sqlite:///old.db", "lies in that database already"),
        ("files:///folder", "flat files take none"),
    ],
)
def test_what_is_no_place_for_the_queue_is_refused_before_anything_is_recorded(desk: Desk, target: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        desk.move(target)
    assert desk.steps == []


def test_a_queue_that_no_route_fills_may_go_into_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path, routed=False)
    monkeypatch.setattr(queue_moving, "clock", Clock(desk))

    assert desk.move("files:///folder")["messages"] == 6


@pytest.mark.parametrize("step", [Step.COPYING, Step.RETIRING])
def test_a_move_that_has_begun_is_finished_before_another_one(desk: Desk, step: Step) -> None:
    desk.was(step, desk.queue.store, desk.at("other.db"))

    with pytest.raises(ConfigError, match="is on its way to"):
        desk.move("sqlite:///new.db")


def test_a_queue_that_has_moved_is_moved_on_from_where_it_lies_by_now(desk: Desk, time: Clock) -> None:
    desk.was(Step.MOVED, desk.at("before.db"), desk.queue.store)
    assert desk.move("sqlite:///new.db")["moved"]

    with pytest.raises(ConfigError, match="into the configuration first"):
        desk.move("sqlite:///newer.db")
