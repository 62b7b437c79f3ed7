"""Mark: outcome records follow their capture in the background, in batches, as often as it takes; nobody waits.

A committed capture is `marked` in its database only after its markers are acknowledged in every partition; until
then every start of a publisher writes them again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from relay.capture.outcomes import Placed, encode_marker, marker_headers
from relay.kafka.appender import Appender, Receipt, Record
from relay.message.envelope import ResourceName
from relay.message.errors import CaptureError, ConfigError, Unreachable, whence
from relay.resources.port import Decisions, RowLocked
from relay.run import clock, schedule
from relay.run.crash import crash_point

_log = logging.getLogger("relay.capture")

GATHER_S: Final = 0.006
"""How long markers wait for company: the price is latency until the messages show."""
RETRY_S: Final = 0.5
TRIES: Final = 5
"""After so many the upkeep, which reads the database, brings the capture again; an aborted marker is only a hint."""
NOTE_EVERY_S: Final = 0.5
NOTE_AT: Final = 1000
NOTED_AT_ONCE: Final = 2000
"""What gathered while no connection was to be had may be more than one statement has time for."""
_BATCH: Final = 500


class Ended(NamedTuple):
    """A capture that has ended; committed if the nonce is given. ``incarnation`` None: of an earlier process."""

    capture: bytes
    nonce: bytes | None
    placed: list[Placed]
    incarnation: str | None
    tries: int = 0


class _Sent(NamedTuple):
    ended: list[Ended]
    receipt: Receipt


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
        self._waiting: deque[Ended] = deque()
        self._sent: deque[_Sent] = deque()
        self._acknowledged: list[bytes] = []
        self._noted_at = clock.monotonic()
        self._retries: list[tuple[float, Ended]] = []
        self.given_up = False
        self._decisions: Decisions | None = None
        self._work = schedule.event()
        self._count = schedule.lock()
        self._submitted = 0
        self._finished = 0
        self._closing = False
        self._stop = False
        self._thread = schedule.start_thread("relay-capture-marking", self._run)

    def submit(self, ended: Ended) -> None:
        """Take a capture whose decision is known."""
        with self._count:
            self._submitted += 1
        self._waiting.append(ended)
        if not self._work.is_set():
            self._work.set()

    @property
    def backlog(self) -> int:
        """How many captures are not yet marked, as far as this process knows."""
        return self._submitted - self._finished

    def close(self, seconds: float) -> int:
        """Mark what can be marked within ``seconds`` and return how many are left for the next start."""
        deadline = clock.monotonic() + seconds
        self._closing = True
        while self.backlog > len(self._retries) and clock.monotonic() < deadline:
            self._work.set()
            self._thread.join(GATHER_S)
            if not self._thread.is_alive():
                break
        self._append_timeout_s = 0.0
        self._noted_at = -1.0
        self._stop = True
        self._work.set()
        self._thread.join(seconds)
        if self._decisions is not None:
            self._decisions.close()
        return self.backlog

    def _run(self) -> None:
        while not self._stop:
            self._work.wait(RETRY_S if not self._sent else GATHER_S)
            self._work.clear()
            clock.sleep(GATHER_S)
            try:
                self.run_once()
            except Exception as error:  # noqa: BLE001 - whatever it is, later captures are marked
                # Retry, loudly: the upkeep brings again what this round has lost.
                self.given_up = True
                _log.error("marking of captures failed; it goes on: %s", whence(error))

    def run_once(self) -> None:
        """Send what waits, gather what is acknowledged, note it when it is enough or old enough."""
        now = clock.monotonic()
        while self._waiting:
            self._send([self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))])
        for retry in [retry for retry in self._retries if retry[0] <= now]:
            self._retries.remove(retry)
            self._send([retry[1]])
        while self._sent and self._sent[0].receipt.is_complete:
            sent = self._sent.popleft()
            if sent.receipt.failure is None:
                committed = [ended.capture for ended in sent.ended if ended.nonce is not None]
                self._acknowledged += committed
                self._finished += len(sent.ended) - len(committed)
            else:
                # Retry: a marker may be written any number of times.
                self._again(sent.ended)
        due = self._closing or now - self._noted_at >= NOTE_EVERY_S or len(self._acknowledged) >= NOTE_AT
        if self._acknowledged and due:
            self._note()

    def _send(self, batch: list[Ended]) -> None:
        records = [record for ended in batch for record in self._records(ended)]
        receipt = Receipt(len(records))
        try:
            self._appender.append(records, receipt, clock.monotonic() + self._append_timeout_s)
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

    def _again(self, batch: list[Ended]) -> None:
        """Send each of a failed batch alone, later: one topic that is gone must not stop the others."""
        now = clock.monotonic()
        for ended in batch:
            if ended.tries >= TRIES:
                self._finished += 1
                self.given_up = self.given_up or ended.nonce is not None
            else:
                self._retries.append(
                    (now + RETRY_S * (2**ended.tries - 1), ended._replace(tries=ended.tries + 1))
                )

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
