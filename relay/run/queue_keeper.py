"""Keeps a queue's journal within its retention, in a thread of its own, where the store allows it with a connection of its own."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext
from typing import Final

import structlog

from relay.config.model import RelayConfig
from relay.message.errors import RelayError, whence
from relay.queue.desired import Desired
from relay.queue.port import QueueStore
from relay.run.queue_upkeep import JOURNAL_AT_ONCE, archive
from relay.run.queues import open_queue
from relay.world import clock, schedule
from relay.world.seldom import Repeats

PERIOD_S: Final = 10.0
log = structlog.get_logger("relay.journal")


class JournalKeeper:
    """Several processes may keep one queue: a file that two of them write has the same messages.

    ``lent`` is the store that this process has open, for use by several threads, where nobody can open it once more.
    """

    def __init__(
        self, config: RelayConfig, queue: str, desired: Desired, lent: QueueStore | None = None
    ) -> None:
        self._config = config
        self._queue = queue
        self._desired = desired
        self._lent = lent
        self._repeats = Repeats()
        self._ended = schedule.event()
        self._thread: schedule.Thread | None = None
        self.let_go = 0

    def start(self) -> None:
        """Begin, if the queue lets anything go at all."""
        retain = self._config.queues[self._queue].retain
        if (retain.age_s, retain.count, retain.bytes) != (None, None, None):
            self._thread = schedule.start_thread("relay-journal", self._run)

    def close(self) -> bool:
        """End after the step under way; what is not finished is begun again by the next one. Is it ended?

        Nobody may close the lent store while it goes on: whoever opened it next would find its files changed under it.
        """
        self._ended.set()
        if self._thread is None:
            return True
        self._thread.join(PERIOD_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                with self._open() as store:
                    self._keep(store)
            except Exception as failure:  # noqa: BLE001 - retry: nothing is trimmed that was not written
                self._say(failure)
            self._ended.wait(PERIOD_S)

    def _say(self, failure: Exception) -> None:
        """Say why, once a minute: it is tried again every ten seconds, and a person may have to act. Stores' errors hold no values."""
        reason = str(failure) if isinstance(failure, RelayError) else whence(failure)
        if not self._repeats.is_one(reason, clock.monotonic()):
            log.warning("journal kept later", queue=self._queue, kind=type(failure).__name__, reason=reason)

    def _open(self) -> AbstractContextManager[QueueStore]:
        if self._lent is not None:
            return nullcontext(self._lent)
        return closing(open_queue(self._config, self._queue, self._desired))

    def _keep(self, store: QueueStore) -> None:
        while not self._ended.is_set():
            done = archive(store, self._config, clock.wall_ms())
            self.let_go += done.messages
            if done.messages < JOURNAL_AT_ONCE:
                return
