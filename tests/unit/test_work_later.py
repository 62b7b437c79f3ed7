"""A handler that says when its message is to be tried again, and whether that try counts; what it closes at its worker's end."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from structlog.testing import capture_logs

from relay.queue.message import Audience, Group, NewMessage
from relay.queue.port import Holder
from relay.queue.settings import QueueSettings
from relay.work import coroutines
from relay.work.backoff import JITTER, Backoff
from relay.work.coroutines import Coroutines
from relay.work.dispatch import Dispatch, Ended, Outcome, Work
from relay.work.message import Message
from relay.work.place import Place
from relay.work.running import Runner
from relay.work.states import Report, States
from relay.work.subscriber import Handler, Later
from relay.world import clock, schedule
from tests.contracts.queue_book import QueueBook

HOLDER = b"a worker--------"


def raising(later: Later) -> Handler:
    def handle(message: Message) -> None:
        raise later

    return Handler("q", handle, None, 0, "queue")


def at_work() -> tuple[QueueBook, Dispatch, States]:
    """Return a queue with one message, which its only worker has taken."""
    store = QueueBook(QueueSettings("q", Audience((Group("s", ("s",)),))))
    store.enter(Holder(HOLDER, "s", 0, None))
    store.put([NewMessage("p", "1", b"1")], 1)
    dispatch = Dispatch(1, 5)
    dispatch.add(store.take("s", HOLDER, 1, 1))
    return store, dispatch, States(store, "s", HOLDER, Backoff(1.0, 300.0), Report())


def place_of(store: QueueBook) -> Place:
    return Place("q", "s", "queue:q", {"q": store}, {"q": schedule.lock()})


def next_of(dispatch: Dispatch) -> Work:
    work = dispatch.next()
    assert work is not None
    return work


@pytest.mark.parametrize(
    ("later", "outcome", "failures", "waits_s"),
    [
        (Later("busy", after_s=30.0), Outcome.FAILED, 1, 30),
        (Later("away", after_s=7.0, counted=False), Outcome.AWAY, 0, 7),
        (Later("away", counted=False), Outcome.AWAY, 0, 1),
        (Later("in a day", after_s=86_400.0), Outcome.FAILED, 1, 300),
    ],
)
def test_the_message_waits_for_as_long_as_the_handler_says_within_the_queues_bound(
    later: Later, outcome: Outcome, failures: int, waits_s: int
) -> None:
    store, dispatch, states = at_work()

    (end,) = Runner(raising(later), place_of(store), None)(next_of(dispatch))
    dispatch.ended([end])
    before = clock.wall_ms()
    states.write_and_take(dispatch.writes(), 0, ())

    assert end.outcome is outcome
    view = store.view(1)
    assert view is not None
    (mine,) = view.subscribers
    assert mine.failures == failures
    assert mine.again_at is not None
    assert before + waits_s * 1000 <= mine.again_at <= clock.wall_ms() + waits_s * 1000 * (1 + JITTER)


class Busy(Later):
    """As an application writes its own, without a word to its base."""

    def __init__(self, code: int) -> None:
        self.code = code

    def __str__(self) -> str:
        return f"Busy {self.code}"


@pytest.mark.parametrize(
    ("kind", "given", "cause"),
    [
        (Later, {"cause": "busy", "after_s": None}, "TypeError in handle"),
        (Later, {"cause": "busy", "after_s": "soon"}, "ValueError in handle"),
        (Later, {"cause": "busy", "after_s": timedelta(minutes=1)}, "TypeError in handle"),
        (Later, {"cause": "busy", "after_s": "30"}, "busy"),
        (Later, {"cause": "busy", "after_s": Decimal(30)}, "busy"),
        (Busy, {"code": 503}, "Busy"),
    ],
)
def test_a_pause_that_is_no_number_or_is_not_said_fails_the_message_and_not_the_worker(
    kind: type[Later], given: dict[str, Any], cause: str
) -> None:
    """Else every worker that gets the message ends with it, until all of them are given up."""

    def handle(message: Message) -> None:
        raise kind(**given)

    store, dispatch, states = at_work()
    (end,) = Runner(Handler("q", handle, None, 0, "queue"), place_of(store), None)(next_of(dispatch))
    dispatch.ended([end])
    states.write_and_take(dispatch.writes(), 0, ())

    assert end.outcome is Outcome.FAILED
    assert end.cause.startswith(cause)
    view = store.view(1)
    assert view is not None
    assert [mine.failures for mine in view.subscribers] == [1]


async def nothing(work: Work) -> list[Ended]:
    return []


def test_what_the_handler_has_open_is_closed_on_its_loop() -> None:
    closed: list[bool] = []

    async def close() -> None:
        await asyncio.sleep(0)
        closed.append(asyncio.get_running_loop().is_running())

    assert Coroutines(Dispatch(1, 5), nothing, schedule.lock(), schedule.event(), close).close(60.0)
    assert closed == [True]


async def fails() -> None:
    raise ValueError("canary-payload")


async def hangs() -> None:
    await asyncio.sleep(3600)


@pytest.mark.parametrize("close", [fails, hangs])
def test_what_cannot_be_closed_holds_nobody_up_and_is_said(close: coroutines.Callable, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[type-arg]
    monkeypatch.setattr(coroutines, "LAST_S", 0.5)

    with capture_logs() as said:
        assert Coroutines(Dispatch(1, 5), nothing, schedule.lock(), schedule.event(), close).close(60.0)

    assert [one["event"] for one in said] == ["what the handler had open was not closed"]
    assert "canary" not in str(said)
