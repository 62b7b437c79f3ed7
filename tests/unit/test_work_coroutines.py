"""One event loop over one dispatch: whatever a handler does to the loop, the loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

import pytest

from relay.queue.message import Taken, Ticket
from relay.run import clock, schedule
from relay.work.coroutines import Coroutines
from relay.work.dispatch import Dispatch, Ended, Outcome, Work

WAIT_S = 5.0
Handle = Callable[[int], Awaitable[None]]


class Site:
    """A dispatch that an event loop works off; ``ends`` are the outcomes by handle."""

    def __init__(self, handle: Handle) -> None:
        self.ends: dict[int, Outcome] = {}
        self._handle = handle
        self._lock = schedule.lock()
        self._dispatch = Dispatch(4, 5)
        self.coroutines = Coroutines(self._dispatch, self._run, self._lock, schedule.event())

    def add(self, *handles: int) -> None:
        """Let these messages run, each by itself."""
        with self._lock:
            self._dispatch.add([taken(handle) for handle in handles])
            self.coroutines.feed()

    def wait(self, *handles: int) -> None:
        """Return when these have ended."""
        limit = clock.monotonic() + WAIT_S
        while not set(handles) <= self.ends.keys():
            assert clock.monotonic() < limit, f"only {self.ends} ended"
            clock.sleep(0.01)

    async def _run(self, work: Work) -> Sequence[Ended]:
        (one,) = work.messages
        outcome = Outcome.DONE
        try:
            await self._handle(one.ticket.handle)
        except GeneratorExit:
            raise
        except BaseException:  # noqa: BLE001 - as the runner does
            outcome = Outcome.FAILED
        self.ends[one.ticket.handle] = outcome
        return [Ended(one, outcome)]


def taken(handle: int) -> Taken:
    return Taken(Ticket(handle, 1), "shop", str(handle), None, b"", (), None, None, 0, 0, 0, ())


@pytest.fixture
def site(handle: Handle) -> Iterator[Site]:
    made = Site(handle)
    yield made
    assert made.coroutines.close(WAIT_S)


async def part_exits(handle: int) -> None:
    async def part() -> None:
        raise SystemExit(3)

    if handle == 1:
        await asyncio.gather(part())


async def left_behind_exits(handle: int) -> None:
    async def part() -> None:
        raise KeyboardInterrupt

    if handle == 1:
        # Looked at, or the collector prints it in the middle of another test.
        asyncio.get_running_loop().create_task(part()).add_done_callback(asyncio.Task.exception)


async def stops_the_loop(handle: int) -> None:
    if handle == 1:
        asyncio.get_running_loop().stop()


@pytest.mark.parametrize(
    ("handle", "outcome"),
    [(part_exits, Outcome.FAILED), (left_behind_exits, Outcome.DONE), (stops_the_loop, Outcome.DONE)],
)
def test_what_a_task_does_to_the_loop_holds_up_no_other_message(site: Site, outcome: Outcome) -> None:
    site.add(1)
    site.wait(1)
    site.add(2)
    site.wait(2)

    assert site.ends == {1: outcome, 2: Outcome.DONE}
