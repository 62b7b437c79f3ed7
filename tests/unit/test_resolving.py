"""Questions about undecided captures: all of them are asked, and every one is answered, whatever goes wrong."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relay.capture.resolver import Resolution, Resolver, State
from relay.delivery.batch import Counts
from relay.log.ended import Decision
from relay.log.holds import HoldBudget, Waiting
from relay.log.intake import Intake
from relay.message.envelope import ResourceName
from relay.message.errors import Unreachable
from relay.message.record import LogPartition
from relay.resources import open_resource
from relay.run import resolving
from relay.run.asking import ASK_AGAIN_S, Inquiring
from relay.run.progress import Progress
from relay.run.resolving import UNNAMED, Resolving
from relay.run.status_record import StatusRecord
from tests.unit.test_intake import SHOP, Fake, captured

PLACE = LogPartition("orders", 0)
IDENTITY = {"relay": "shop", "route": "r", "worker": "shop.r.a.0"}


class Answering:
    """A resolver that notes what it is asked."""

    def __init__(self, answer: Callable[[bytes], Resolution]) -> None:
        self.asked: list[bytes] = []
        self._answer = answer

    def resolve(self, captures: Sequence[tuple[bytes, ResourceName]]) -> dict[bytes, Resolution]:
        self.asked += [capture for capture, _ in captures]
        return {capture: self._answer(capture) for capture, _ in captures}


def waiting(count: int) -> Intake:
    made = Intake([], "none", budget=HoldBudget(1 << 20), marker_wait_s=1, askable=frozenset({"shop"}))
    made.start({PLACE: 0}, {"orders": b"i" * 16})
    made.take([captured(n, n.to_bytes(16, "big")) for n in range(count)], 0)
    return made


def turn_until(one: Resolving, intake: Intake, now: float, done: Callable[[], bool]) -> None:
    limit = time.monotonic() + 10
    while not done():
        assert time.monotonic() < limit, "no answer"
        one.turn(intake, now)


def test_every_due_capture_is_asked_for_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "QUESTIONS_MAX", 10)
    resolver = Answering(lambda _: Resolution(State.COMMITTED))
    intake = waiting(35)
    one = Resolving(resolver, lambda _: 35)

    turn_until(one, intake, 2, lambda: intake.ready() == 35)

    assert len(resolver.asked) == 35
    one.close()


def test_what_finds_no_room_among_the_questions_is_asked_a_moment_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "QUESTIONS_MAX", 1)
    goes_on = threading.Event()

    def answer(_: bytes) -> Resolution:
        assert goes_on.wait(10)
        return Resolution(State.COMMITTED)

    intake = waiting(35)
    one = Resolving(Answering(answer), lambda _: 35)
    one.turn(intake, 2)
    goes_on.set()

    turn_until(one, intake, 2, lambda: intake.ready() >= 16)
    turn_until(one, intake, 3, lambda: intake.ready() >= 32)
    turn_until(one, intake, 4, lambda: intake.ready() == 35)

    one.close()


def test_no_resource_is_asked_before_the_log_was_read_to_where_it_ended_when_the_wait_was_over() -> None:
    resolver = Answering(lambda _: Resolution(State.COMMITTED))
    intake = waiting(1)
    one = Resolving(resolver, lambda _: 5)

    for now in (2, 3):
        one.turn(intake, now)
    assert one._thread is None, "the marker may be among what is not read yet"
    intake.passed(PLACE, 5)
    turn_until(one, intake, 3, lambda: intake.ready() == 1)

    one.close()


@pytest.mark.parametrize("failure", [Unreachable("away"), KeyError("a defect")])
def test_a_resolver_that_fails_is_asked_again_later(failure: Exception) -> None:
    tries: list[bytes] = []

    def answer(capture: bytes) -> Resolution:
        tries.append(capture)
        if len(tries) == 1:
            raise failure
        return Resolution(State.ABORTED)

    intake = waiting(1)
    one = Resolving(Answering(answer), lambda _: 1)
    (hold,) = intake.partitions[PLACE].holds()

    turn_until(one, intake, 2, lambda: hold.waiting is Waiting.UNREACHABLE)
    assert intake.held() == 1
    assert hold.detail == ("away" if isinstance(failure, Unreachable) else "KeyError"), "a stranger's words may hold a password"
    turn_until(one, intake, 4, lambda: intake.held() == 0)

    assert intake.partitions[PLACE].aborted == 1
    one.close()


def test_the_process_that_holds_the_file_is_shown_while_a_capture_waits_for_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    resource = open_resource("shop", url, lock_timeout_s=0.05)
    resource.create_tables()
    intake = waiting(0)
    named = resource.identity().encode()
    intake.take([Fake(0, [("ce_id", b"a"), ("ce_relaycapture", b"ab" * 16), ("ce_relayresource", named)])], 0)
    one = Resolving(Resolver({"shop": resource}), lambda _: 1)
    records: list[StatusRecord] = []
    progress = Progress(IDENTITY, lambda record, _: records.append(StatusRecord.model_validate(record)))
    destination: Any = SimpleNamespace(counts=Counts(), in_doubt={})
    (hold,) = intake.partitions[PLACE].holds()

    with frozen_writer(tmp_path / "shop.db") as writer:
        turn_until(one, intake, 2, lambda: hold.waiting is Waiting.RESOURCE)
        progress.beat(1.0, intake, destination, {PLACE: 0})
    one.close()

    (shown,) = records[-1].partitions[0].waiting
    assert shown.why.startswith(Waiting.RESOURCE.value)
    assert f"process {writer} holds the file" in shown.why


@contextmanager
def frozen_writer(path: Path) -> Iterator[int]:
    """A process that has begun to write into the file, and goes no further; its number."""
    code = f"import sqlite3; c = sqlite3.connect({str(path)!r}, isolation_level=None); c.execute('begin immediate'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def test_a_message_that_names_no_resource_is_stuck_and_never_dropped() -> None:
    intake = waiting(0)
    intake.take([Fake(0, [("ce_id", b"a"), ("ce_relaycapture", b"ab" * 16)])], 0)
    resolver = Answering(lambda _: Resolution(State.ABORTED))
    one = Resolving(resolver, lambda _: 1)
    (hold,) = intake.partitions[PLACE].holds()

    turn_until(one, intake, 2, lambda: hold.waiting is Waiting.STUCK)

    assert (intake.held(), resolver.asked) == (1, [])


def test_a_person_is_asked_about_a_message_that_names_no_resource() -> None:
    intake = waiting(0)
    intake.take([Fake(0, [("ce_id", b"a"), ("ce_relaycapture", b"ab" * 16)])], 0)
    named: list[ResourceName] = []

    class Persons:
        def resolve(self, captures: Sequence[tuple[bytes, ResourceName]]) -> dict[bytes, Resolution]:
            named.extend(resource for _, resource in captures)
            return {capture: Resolution(State.ABORTED) for capture, _ in captures}

    one = Resolving(Persons(), lambda _: 1, hears_persons=True)

    turn_until(one, intake, 2, lambda: intake.held() == 0)

    assert named == [UNNAMED]
    one.close()


@pytest.mark.parametrize(
    ("state", "asked"),
    [(State.WRONG_RESOURCE, True), (State.UNREACHABLE, True), (State.UNDECIDED, False), (State.COMMITTED, False)],
)
def test_the_publishers_process_is_asked_where_its_database_cannot_be(state: State, asked: bool) -> None:
    intake = waiting(1)
    (hold,) = intake.partitions[PLACE].holds()
    inquiries: list[object] = []
    one = Resolving(
        Answering(lambda _: Resolution(state)), lambda _: 1, lambda *inquiry: inquiries.append(inquiry)
    )

    turn_until(one, intake, 2, lambda: intake.held() == 0 or hold.waiting is not Waiting.MARKER)

    assert inquiries == ([(hold.capture, hold.resource, [PLACE], 2)] if asked else [])
    one.close()


@pytest.mark.parametrize("nonce", [b"n" * 16, None])
def test_what_a_decision_row_says_is_told_to_the_log_where_a_marker_is_missing(nonce: bytes | None) -> None:
    intake = waiting(1)
    (hold,) = intake.partitions[PLACE].holds()
    added: list[object] = []
    state = State.ABORTED if nonce is None else State.COMMITTED
    found = Resolution(state, nonce, of_row=True)
    one = Resolving(Answering(lambda _: found), lambda _: 1, add_marker=lambda *marker: added.append(marker))

    turn_until(one, intake, 2, lambda: intake.held() == 0)

    assert added == [(hold.capture, hold.resource, nonce, [PLACE])]
    one.close()


def test_what_a_person_or_a_topic_of_decisions_says_is_not_told_to_the_log() -> None:
    intake = waiting(1)
    added: list[object] = []
    said = Answering(lambda _: Resolution(State.COMMITTED, b"n" * 16))
    one = Resolving(said, lambda _: 1, add_marker=lambda *marker: added.append(marker))

    turn_until(one, intake, 2, lambda: intake.held() == 0)

    assert added == []
    one.close()


def test_an_aborted_marker_that_has_the_row_asked_does_not_bring_forth_another() -> None:
    intake = waiting(1)
    (hold,) = intake.partitions[PLACE].holds()
    intake.partitions[PLACE].mark(hold.capture, Decision.ABORTED, trusted=False, now=0)
    added: list[object] = []
    found = Resolution(State.ABORTED, of_row=True)
    one = Resolving(Answering(lambda _: found), lambda _: 1, add_marker=lambda *marker: added.append(marker))

    turn_until(one, intake, 2, lambda: intake.held() == 0)

    assert added == []
    one.close()


def test_closing_does_not_wait_for_a_resource_that_does_not_answer() -> None:
    asked, silent = threading.Event(), threading.Event()

    def answer(_: bytes) -> Resolution:
        asked.set()
        silent.wait(30)
        return Resolution(State.UNREACHABLE)

    intake = waiting(0)
    one = Resolving(Answering(answer), lambda _: 1000)
    intake.passed(PLACE, 1000)
    for n in range(40):  # each turn finds another overdue capture: the questions pile up behind the first
        intake.take([captured(1000 + n, n.to_bytes(16, "big"))], float(n))
        one.turn(intake, n + 2.0)
        assert asked.wait(10)

    closing = threading.Thread(target=one.close, daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive(), "a worker that is told to end waits for its resolver"
    silent.set()


def test_publishers_are_asked_about_many_captures_without_looking_through_all_of_them_each_time() -> None:
    put: list[bytes] = []
    one = Inquiring(lambda key, _value: put.append(key), "w")
    captures = [n.to_bytes(16, "big") for n in range(30_000)]

    began = time.thread_time()
    for at in (100.0, 101.0, 101.0 + ASK_AGAIN_S):
        for capture in captures:
            one.ask(capture, ResourceName("shop", "u"), [PLACE], at)

    assert len(put) == 2 * len(captures), "asked again after a while, and not before"
    assert time.thread_time() - began < 10, "the worker's loop stands still meanwhile"
    one.ask(b"x" * 16, ResourceName("shop", "u"), [PLACE], 1000.0)
    assert len(one._asked) == 1


@pytest.mark.parametrize("named", [b"other/u-2", b"decisions:q%2F7/run", None])
def test_nobody_has_a_capture_aborted_by_naming_another_resource_for_it(named: bytes | None) -> None:
    """Whoever may write the log knows the captures in it, and may publish, not decide."""
    capture, strange = b"c" * 16, LogPartition("orders", 1)
    intake = Intake([], "none", budget=HoldBudget(1 << 20), marker_wait_s=1, askable=frozenset({"shop", "other"}))
    intake.start({PLACE: 0, strange: 0}, {"orders": b"i" * 16})
    forged = Fake(0, [("ce_relaycapture", capture.hex().encode()), ("ce_relayresource", named)], place=strange)
    intake.take([forged, captured(0, capture)], 0)
    answers = {SHOP: State.UNDECIDED}

    class Databases:
        def resolve(self, captures: Sequence[tuple[bytes, ResourceName]]) -> dict[bytes, Resolution]:
            return {one: Resolution(answers.get(resource, State.ABORTED)) for one, resource in captures}

    one = Resolving(Databases(), lambda _: 1, hears_persons=True)
    turn_until(one, intake, 2, lambda: intake.partitions[strange].held == 0)
    (hold,) = intake.partitions[PLACE].holds()
    turn_until(one, intake, 2, lambda: hold.waiting is Waiting.RESOURCE)
    assert intake.partitions[PLACE].held == 1

    answers[SHOP] = State.COMMITTED
    turn_until(one, intake, 4, lambda: intake.ready() == 1)
    assert intake.partitions[strange].aborted == 1
    one.close()
