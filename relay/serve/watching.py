"""Looks at routes and queues now and then, in one thread; requests are answered from what was seen last.

So a thousand scrapes ask the brokers no more than one, and a broker that is silent holds up no request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Protocol, Self

import structlog

from relay.config.model import RelayConfig
from relay.control.queue_desk import QueueDesk
from relay.control.silence import Silence
from relay.control.status import RouteView, handlers_lately
from relay.control.status_reading import StatusReader
from relay.message.errors import RelayError
from relay.run.status_record import StatusRecord
from relay.world import clock, schedule

log = structlog.get_logger("relay.serve")

PERIOD_S: Final = 5.0
QUEUES_EVERY_S: Final = 15.0
"""Counting a queue costs its store more than the status of a route costs anybody."""
STALE_AFTER_S: Final = 60.0
HUNG_AFTER_S: Final = 300.0
"""Every question has a bound, that to a store which fell silent a minute: a look that takes so long never ends."""
CLOSE_S: Final = 5.0

QueueRows = Mapping[str, Mapping[str, Any] | None]
"""Queue -> what `relay queue list --json` prints of it, None if its store does not answer."""


@dataclass(frozen=True)
class Sight:
    """Everything as it was at ``at_ms``, in wall milliseconds."""

    at_ms: int
    routes: tuple[RouteView, ...] = ()
    records: tuple[StatusRecord, ...] = ()
    handlers: tuple[StatusRecord, ...] = ()
    """What processes of `relay work` said that followed others."""
    queues: QueueRows = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    is_whole: bool = True
    """Did every database and store answer? If not, more may be wrong than was seen."""
    alarm_s: float | None = None
    """After how long in doubt the configuration wants an alarm."""


class Eyes(Protocol):
    """Sees; may block for as long as its questions are bounded. Raises Unreachable, ConfigError."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def look(self) -> Sight:
        """Return what is there now."""


class RelayEyes:
    """Sees what `relay status` and `relay queue list` see."""

    def __init__(self, config: RelayConfig) -> None:
        self._config = config
        self._stack = ExitStack()
        self._queues: QueueRows = {}
        self._queue_notes: tuple[str, ...] = ()
        self._queues_at = float("-inf")

    def __enter__(self) -> Self:
        self._status = self._stack.enter_context(StatusReader(self._config))
        self._desk = self._stack.enter_context(QueueDesk(self._config, "relay serve"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def look(self) -> Sight:
        """Return what is there now; queues as they were a short while ago."""
        routes = tuple(self._status.read())
        shown = {worker.worker for route in routes for worker in route.workers}
        said = self._status.records()
        records = tuple(one for one in said if one.worker in shown)
        handlers = tuple(handlers_lately(said, clock.wall_ms()))
        now = clock.monotonic()
        if self._config.queues and now - self._queues_at >= QUEUES_EVERY_S:
            self._queues_at = now
            self._look_at_queues()
        notes = (*self._status.notes, *self._queue_notes)
        whole = self._status.unseen is None and None not in self._queues.values()
        alarm_s = self._config.timing.in_doubt_alarm
        return Sight(clock.wall_ms(), routes, records, handlers, self._queues, notes, whole, alarm_s)

    def _look_at_queues(self) -> None:
        self._desk.reach()
        rows: dict[str, Mapping[str, Any] | None] = {}
        notes = []
        silence = Silence(self._desk.place)
        for name in self._desk.names():
            try:
                rows[name] = silence.ask(name, self._desk.row)
            except RelayError as away:
                # Go on with the others: this one is shown as one that does not answer.
                rows[name] = None
                notes.append(f"queue {name}: {away}")
        self._queues, self._queue_notes = rows, tuple(notes)


class Watching:
    """Keeps the last sight; a look that fails leaves it, and says why in ``problem``."""

    def __init__(self, open_eyes: Callable[[], Eyes], period_s: float = PERIOD_S) -> None:
        self._open = open_eyes
        self._period_s = period_s
        self.sight: Sight | None = None
        self.problem: str | None = "nothing was looked at yet"
        self._looked_at = clock.monotonic()
        self._seen_at = float("-inf")
        self._stop = schedule.event()
        self._thread = schedule.start_thread("relay-serve-watching", self._work)

    @property
    def is_alive(self) -> bool:
        """Did the last look end, whatever it saw?"""
        return self._thread.is_alive() and clock.monotonic() - self._looked_at < HUNG_AFTER_S

    @property
    def is_ready(self) -> bool:
        """Is what can be told of now?"""
        return self.problem is None and self.age_s() < STALE_AFTER_S

    def age_s(self) -> float:
        """Return how old the last sight is; infinite if there is none."""
        return clock.monotonic() - self._seen_at

    def close(self) -> None:
        """Stop looking; a look under way is not waited for beyond a few seconds."""
        self._stop.set()
        self._thread.join(CLOSE_S)

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                with self._open() as eyes:
                    self._look_on(eyes)
            except Exception as failure:  # noqa: BLE001 - whatever it is, the next look may see
                # Retry with new clients. The words of a strange error are left out: they may quote an address.
                self.problem = str(failure) if isinstance(failure, RelayError) else type(failure).__name__
                log.warning("nothing seen", reason=self.problem)
            self._looked_at = clock.monotonic()
            self._stop.wait(self._period_s)

    def _look_on(self, eyes: Eyes) -> None:
        while not self._stop.is_set():
            self.sight = eyes.look()
            self._seen_at = self._looked_at = clock.monotonic()
            self.problem = None
            self._stop.wait(self._period_s)
