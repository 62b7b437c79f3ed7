"""Mark: outcome records follow their capture in the background, as often as it takes; nobody waits.

A marker travels with the next messages that are appended to its partition: a request costs the broker more than a record
in it. Where none come soon, markers go by themselves, in batches, and at once where nothing was sent lately. A committed capture is `marked` in its database only
after its markers are acknowledged in every partition; until then every start of a publisher writes them again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from relay.capture.outcomes import Placed, encode_marker, marker_headers
from relay.kafka.appender import Appender, Receipt, Record
from relay.message.envelope import ResourceName
from relay.message.errors import CaptureError, ConfigError, Unreachable, whence
from relay.resources.port import Decisions, RowLocked
from relay.world import clock, schedule
from relay.world.crash import crash_point

_log = logging.getLogger("relay.capture")

GATHER_S: Final = 0.006
"""How long markers wait for messages to travel with, once others were sent: the price is latency until theirs show."""
RETRY_S: Final = 0.5
TRIES: Final = 5
"""After so many the upkeep, which reads the database, brings the capture again; an aborted marker is only a hint."""
NOTE_EVERY_S: Final = 0.5
NOTE_AT: Final = 1000
NOTED_AT_ONCE: Final = 2000
"""What gathered while no connection was to be had may be more than one statement has time for."""
_BATCH: Final = 500
TRAVELLERS_MAX: Final = 50
"""What an earlier process left may be thousands of markers: a capture does not wait for them."""


class Ended(NamedTuple):
    """A capture that has ended; committed if the nonce is given. ``incarnation`` None: of an earlier process."""

    capture: bytes
    nonce: bytes | None
    placed: list[Placed]
    incarnation: str | None


Place = tuple[str, int]
"""A topic and a partition of it."""


class _Due(NamedTuple):
    """The markers of one capture, one for each partition that has messages of it."""

    ended: Ended
    records: list[Record]
    tries: int = 0


class _Sent(NamedTuple):
    due: list[_Due]
    receipt: Receipt


class _Travellers(NamedTuple):
    """Captures whose messages all lie in one partition, to which their markers go; the first since when."""

    since: float
    due: list[_Due]


class Marking:
    """Writes markers and notes them. ``submit`` from any thread; one thread of its own does the rest."""

    def __init__(
        self,
        appender: Appender,
        open_decisions: Callable[[], Decisions],
        source: bytes,
        resource: ResourceName,
        append_timeout_s: float,
    ) -> None:
        self._appender = appender
        self._open_decisions = open_decisions
        self._source = source
        self._resource = resource
        self._append_timeout_s = append_timeout_s
        self._waiting: deque[_Due] = deque()
        self._travellers: dict[Place, _Travellers] = {}
        self._sent: deque[_Sent] = deque()
        self._sent_at = float("-inf")
        self._acknowledged: list[bytes] = []
        self._noted_at = clock.monotonic()
        self._retries: list[tuple[float, _Due]] = []
        self.given_up = False
        self._decisions: Decisions | None = None
        # Held while there is nothing to do. No event: an interrupt inside its `set` leaves its own lock held for ever.
        self._work = schedule.lock()
        self._work.acquire()
        self._count = schedule.lock()
        self._submitted = 0
        self._finished = 0
        self._closing = False
        self._stop = False
        self._thread = schedule.start_thread("relay-capture-marking", self._run)

    def submit(self, ended: Ended) -> None:
        """Take a capture whose decision is known.

        Its markers are written down here: whoever sends them may hold the lock of all appends.
        """
        due = _Due(ended, self._records(ended))
        with self._count:
            self._submitted += 1
            if len(due.records) == 1:
                (marker,) = due.records
                place = (marker.topic, marker.partition)
                self._travellers.setdefault(place, _Travellers(clock.monotonic(), [])).due.append(due)
            else:
                self._waiting.append(due)
        self._wake()

    def send_with(self, places: Iterable[Place]) -> None:
        """Send what travels with the messages that the calling thread appends to these partitions next.

        Never raises, and waits for nothing: the caller holds the lock of all appends.
        """
        if not self._travellers:
            return
        for place in places:
            with self._count:
                found = self._travellers.pop(place, None)
                if found is None:
                    continue
                if len(found.due) > TRAVELLERS_MAX:
                    self._waiting += found.due
                    continue
            with self._going_on():
                self._send(found.due, wait_s=0.0)

    def _wake(self) -> None:
        if self._work.locked():
            with suppress(RuntimeError):  # another thread was faster
                self._work.release()

    @property
    def backlog(self) -> int:
        """How many captures are not yet marked, as far as this process knows."""
        return self._submitted - self._finished

    def close(self, seconds: float) -> int:
        """Mark what can be marked within ``seconds`` and return how many are left for the next start."""
        deadline = clock.monotonic() + seconds
        self._closing = True
        while self.backlog > len(self._retries) and clock.monotonic() < deadline:
            self._wake()
            self._thread.join(GATHER_S)
            if not self._thread.is_alive():
                break
        self._append_timeout_s = 0.0
        self._noted_at = -1.0
        self._stop = True
        self._wake()
        self._thread.join(seconds)
        if self._decisions is not None and not self._thread.is_alive():
            self._decisions.close()
        return self.backlog

    def _run(self) -> None:
        while not self._stop:
            self._work.acquire(timeout=GATHER_S if self._sent or self._travellers else RETRY_S)
            clock.sleep(max(self._sent_at + GATHER_S - clock.monotonic(), 0.0))
            with self._going_on():
                self.run_once()

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, later captures are marked
            # Retry, loudly: the upkeep brings again what this round has lost.
            self.given_up = True
            _log.error("marking of captures failed; it goes on: %s", whence(error))

    def run_once(self) -> None:
        """Send what waits, gather what is acknowledged, note it when it is enough or old enough."""
        now = clock.monotonic()
        self._leave_behind(now)
        while self._waiting:
            self._send([self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))], self._append_timeout_s)
        for retry in [retry for retry in self._retries if retry[0] <= now]:
            self._retries.remove(retry)
            self._send([retry[1]], self._append_timeout_s)
        while self._sent and self._sent[0].receipt.is_complete:
            sent = self._sent.popleft()
            if sent.receipt.failure is None:
                committed = [due.ended.capture for due in sent.due if due.ended.nonce is not None]
                self._acknowledged += committed
                self._finished += len(sent.due) - len(committed)
            else:
                # Retry: a marker may be written any number of times.
                self._again(sent.due)
        due = self._closing or now - self._noted_at >= NOTE_EVERY_S or len(self._acknowledged) >= NOTE_AT
        if self._acknowledged and due:
            self._note()

    def _leave_behind(self, now: float) -> None:
        """Have those go by themselves that no messages took along in time."""
        with self._count:
            is_quiet = now - self._sent_at >= GATHER_S
            before = now if self._closing or is_quiet else now - GATHER_S
            for place in [place for place, found in self._travellers.items() if found.since <= before]:
                self._waiting += self._travellers.pop(place).due

    def _send(self, batch: list[_Due], wait_s: float) -> None:
        records = [record for due in batch for record in due.records]
        receipt = Receipt(len(records))
        self._sent_at = clock.monotonic()
        try:
            self._appender.append(records, receipt, clock.monotonic() + wait_s)
        except CaptureError:
            # Retry: those of the batch that were handed over are merely written twice.
            self._again(batch)
            return
        self._sent.append(_Sent(batch, receipt))

    def _records(self, ended: Ended) -> list[Record]:
        headers = marker_headers(ended.capture, self._source, self._resource)
        closes: dict[tuple[str, int], list[int]] = {}
        for placed in ended.placed:
            closes.setdefault((placed.topic, placed.partition), []).extend((placed.first, placed.length))
        return [
            Record(
                topic,
                partition,
                ended.capture,
                encode_marker(ended.capture, ended.nonce, ended.incarnation, closed),
                headers,
            )
            for (topic, partition), closed in closes.items()
        ]

    def _again(self, batch: list[_Due]) -> None:
        """Send each of a failed batch alone, later: one topic that is gone must not stop the others."""
        now = clock.monotonic()
        for due in batch:
            if due.tries >= TRIES:
                self._finished += 1
                self.given_up = self.given_up or due.ended.nonce is not None
            else:
                self._retries.append((now + RETRY_S * (2**due.tries - 1), due._replace(tries=due.tries + 1)))

    def _note(self) -> None:
        self._noted_at = clock.monotonic()
        crash_point("capture.noting")
        try:
            if self._decisions is None:
                self._decisions = self._open_decisions()
            while self._acknowledged:
                captures = self._acknowledged[:NOTED_AT_ONCE]
                self._decisions.mark(captures)
                del self._acknowledged[: len(captures)]
                self._finished += len(captures)
                crash_point("capture.marked")
        except RowLocked:
            pass  # Retry: another writer holds the rows or the file.
        except (Unreachable, ConfigError):
            # Retry on a new connection; at worst the next start writes the markers again.
            if self._decisions is not None:
                self._decisions.close()
                self._decisions = None
