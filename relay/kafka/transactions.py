"""One instance of the transactional producer: an epoch that holds commits only.

After anything but a clean commit the instance is thrown away and its successor, by ``init_transactions`` under the
same transactional id, ends whatever it left open. librdkafka repeats a lost EndTxn silently under the same epoch
(KAFKA-17754), so nothing of an aborted transaction may still be under way in an epoch that goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from relay.kafka.failures import is_refusal
from relay.message.envelope import Headers
from relay.message.errors import InDoubt, RecordRefused
from relay.message.record import LogPartition
from relay.run import schedule

QUEUE_FULL_WAIT_S: Final = 0.05
DEADLINE_MARGIN_S: Final = 0.5
FLUSH_SLICE_S: Final = 0.1
"""A refused record shows at once, while what is queued behind it would be waited for until it times out."""


class TransactionalInstance:
    """A producer instance with its transactional id; every method may block up to ``timeout_s``."""

    def __init__(self, settings: Mapping[str, object], transactional_id: str, timeout_s: float) -> None:
        self.transactional_id = transactional_id
        self.acked: dict[LogPartition, int] = {}
        self._timeout_s = timeout_s
        self._refused: KafkaError | None = None
        self._failed: KafkaError | None = None
        self._producer = Producer({**settings, "transactional.id": transactional_id, "error_cb": self._on_error})
        self._append: Callable[..., None] = self._producer.produce
        self._report = self._delivered
        self._report_failure = self._not_failed

    def init(self) -> None:
        """Fence the predecessor under this transactional id and end its transaction."""
        self._producer.init_transactions(self._timeout_s)

    def begin(self) -> None:
        """Open the transaction."""
        self._producer.begin_transaction()

    def produce(
        self,
        partition: LogPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
        timestamp_ms: int = 0,
        watch: bool = True,
    ) -> None:
        """Append one record whose delivery report is awaited by ``flush``; BufferError is waited out.

        Every report is looked at for failure; ``acked`` learns the offset only of a watched record.
        """
        report = self._report if watch else self._report_failure
        while True:
            try:
                self._append(
                    partition.topic,
                    value=value,
                    key=key,
                    partition=partition.partition,
                    on_delivery=report,
                    timestamp=timestamp_ms,
                    headers=headers,
                )
            except BufferError:
                self._producer.poll(QUEUE_FULL_WAIT_S)
            except KafkaException as error:
                self._producer.poll(0)
                refused = self._refused or error.args[0]
                if is_refusal(refused):
                    raise RecordRefused(f"{refused.name()}: {refused.str()}") from error
                raise
            else:
                return

    def flush(self) -> None:
        """Wait for every delivery report; raises RecordRefused, KafkaException, or InDoubt if some stay out."""
        left = len(self._producer)
        for _ in range(int(self._timeout_s / FLUSH_SLICE_S)):
            left = self._producer.flush(FLUSH_SLICE_S)
            if not left or self._refused is not None or self._failed is not None:
                break
        if self._refused is not None:
            raise RecordRefused(f"{self._refused.name()}: {self._refused.str()}")
        if self._failed is not None:
            raise KafkaException(self._failed)
        if left:
            raise InDoubt(f"{left} records of {self.transactional_id} have no delivery report after {self._timeout_s} s")

    def send_offsets(
        self, positions: Mapping[LogPartition, int], notes: Mapping[str, str], membership: bytes
    ) -> None:
        """Put the positions into the transaction; never an empty list, which would skip the group's fencing.

        Raises InDoubt past the deadline: the client may block for ever here after a reset (librdkafka #5456).
        """
        assert positions, "offsets are sent for every input partition, moved or not"
        offsets = [TopicPartition(p.topic, p.partition, offset, notes.get(p.topic, "")) for p, offset in positions.items()]
        self._by_deadline(
            "send offsets", lambda: self._producer.send_offsets_to_transaction(offsets, membership, self._timeout_s)
        )

    def commit(self) -> None:
        """Commit; any exception means that the outcome is unknown."""
        self._by_deadline("commit", lambda: self._producer.commit_transaction(self._timeout_s))

    def discard(self) -> None:
        """Throw the instance away; what it left open is ended by its successor's ``init``."""
        with contextlib.suppress(KafkaException):
            self._producer.purge()

    def _by_deadline(self, what: str, call: Callable[[], object]) -> None:
        """Run a call that may ignore its own timeout; a thread left behind belongs to a fenced instance."""
        outcome: schedule.Queue[BaseException | None] = schedule.fifo()

        def run() -> None:
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - raised by the waiting thread
                outcome.put(error)
            else:
                outcome.put(None)

        schedule.start_thread(f"relay-{what.replace(' ', '-')}", run)
        try:
            error = outcome.get(timeout=self._timeout_s + DEADLINE_MARGIN_S)
        except schedule.Empty:
            raise InDoubt(f"{self.transactional_id} could not {what} in {self._timeout_s} s") from None
        if error is not None:
            raise error

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acked[LogPartition(message.topic() or "", message.partition() or 0)] = message.offset() or 0
        else:
            self._not_failed(error, message)

    def _not_failed(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            return
        if is_refusal(error):
            self._refused = error
        elif self._failed is None:
            self._failed = error

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._failed = error
