"""What a message costs beside its handler, in calls of Python functions: time would only tell how busy the machine is."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import relay
from relay.queue.message import Audience, Group, NewMessage
from relay.queue.port import Holder
from relay.queue.settings import QueueSettings
from relay.work.coroutines import AwaitedRunner, Coroutines
from relay.work.dispatch import Dispatch
from relay.work.hands import Hands
from relay.work.message import Message
from relay.work.place import Place
from relay.work.running import Runner
from relay.work.subscriber import subscriber
from relay.world import clock, schedule
from tests.contracts.queue_book import QueueBook

WAIT_S = 60.0
HOLDER = b"a worker--------"
MESSAGES, LANES = 400, 50
FOLDER = str(Path(relay.__file__).parent)


async def awaited(_: Message) -> None:
    """Do nothing, on the event loop."""


def called(_: Message) -> None:
    """Do nothing, in a thread."""


@pytest.mark.parametrize(("function", "calls_max"), [(called, 35), (awaited, 45)])
def test_a_message_costs_few_calls_beside_its_handler(function: Callable[[Message], Any], calls_max: int) -> None:
    """A coroutine that goes on counts as called once more."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and (code.co_filename.startswith(FOLDER) or code.co_filename.endswith(("enum.py", "contextlib.py"))):
            calls[f"{code.co_filename}: {code.co_name}"] += 1

    book = QueueBook(QueueSettings("q", Audience((Group("s", ("s",)),))))
    book.enter(Holder(HOLDER, "s", 0, None))
    book.put([NewMessage("p", str(n), b"", lane=b"%d" % (n % LANES)) for n in range(MESSAGES)], 1)
    handler = subscriber("q")(function)
    runner = Runner(handler, Place("q", "s", "queue:q", {"q": book}, {"q": schedule.lock()}), None)
    lock, wake, dispatch = schedule.lock(), schedule.event(), Dispatch(8, 5)
    threading.setprofile(count)  # of threads that are started from now on: those of the handlers
    try:
        hands: Hands | Coroutines
        if handler.is_async:
            hands = Coroutines(dispatch, AwaitedRunner(handler, runner, 1), lock, wake)
        else:
            hands = Hands(dispatch, 1, runner, lock, wake)
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    with lock:
        dispatch.add(book.take("s", HOLDER, MESSAGES, 1))
        hands.feed()
    limit = clock.monotonic() + WAIT_S
    while dispatch.ended_count < MESSAGES and clock.monotonic() < limit:
        wake.wait(0.1)
    assert hands.close(WAIT_S)

    assert len(dispatch.writes().done) == MESSAGES
    assert calls.total() / MESSAGES <= calls_max, calls.most_common(12)
