"""One instance of the transactional producer: an epoch that holds commits only.

After anything but a clean commit the instance is thrown away and its successor, by ``init_transactions`` under the
same transactional id, ends whatever it left open. librdkafka repeats a lost EndTxn silently under the same epoch
(KAFKA-17754), so nothing of an aborted transaction may still be under way in an epoch that goes on.

Brokers that do not verify a transaction's partitions do not notice either when such a copy of a *commit* ends the next one.
For them no epoch has more than one transaction (design section 6): what is late is of a former epoch, and refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NoReturn

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from relay.kafka.callbacks import Failures, weakly
from relay.kafka.clients import Producer
from relay.kafka.failures import LET_GO, is_denied, is_refusal
from relay.message.envelope import Headers
from relay.message.errors import InDoubt, RecordRefused, Stopped
from relay.message.record import Appended, LogPartition
from relay.world import schedule

QUEUE_FULL_WAIT_S: Final = 0.05
DEADLINE_MARGIN_S: Final = 0.5
FLUSH_SLICE_S: Final = 0.1
"""A refused record shows at once, while what is queued behind it would be waited for until it times out."""
_LET_GO: Final = LET_GO | {KafkaError._STATE}
"""What the client says of each record of a transaction that has failed, whatever that failed for."""


class TransactionalInstance:
    """A producer instance with its transactional id; every method may block up to ``timeout_s``.

    With ``one_each`` every transaction has a client of its own, and so an epoch.
    """

    def __init__(
        self, settings: Mapping[str, object], transactional_id: str, timeout_s: float, *, one_each: bool = False
    ) -> None:
        self.transactional_id = transactional_id
        self.acked: dict[LogPartition, int] = {}
        self.meanwhile: Callable[[], bool] | None = None
        self._timeout_s = timeout_s
        self._one_each = one_each
        self._has_begun = False
        self._refused: KafkaError | None = None
        self._failed: KafkaError | None = None
        self._topics: set[str] = set()
        self._settings = {**settings, "transactional.id": transactional_id}
        self._report = weakly(self._delivered)
        self._open_client()
        self._unwatched = Failures()
        """Of records whose offsets nobody needs."""

    def _open_client(self) -> None:
        self._producer = Producer(self._settings)
        self._append: Callable[..., None] = self._producer.produce

    def init(self) -> None:
        """Fence the predecessor under this transactional id and end its transaction.

        Raises Stopped if the brokers refuse the transaction's timeout: they would every time.
        """
        try:
            self._producer.init_transactions(self._timeout_s)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.INVALID_TRANSACTION_TIMEOUT:
                raise
            raise Stopped(
                f"timing.transaction_timeout = {self._timeout_s:g} s is more than the brokers' transaction.max.timeout.ms allows; "
                "lower it or raise that one"
            ) from error

    def begin(self) -> None:
        """Open the transaction."""
        if self._has_begun and self._one_each:
            self.discard()
            self._open_client()
            self._by_deadline("begin", self.init)
        self._has_begun = True
        self._producer.begin_transaction()

    def produce(
        self,
        partition: LogPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
        timestamp_ms: int = 0,
    ) -> None:
        """Append one record whose delivery report is awaited by ``flush``; ``acked`` learns its offset."""
        self._produce(partition, [(key, value, headers, timestamp_ms)], self._report)

    def produce_all(self, partition: LogPartition, records: Iterable[Appended]) -> None:
        """Append records to one partition; their reports are looked at for failure only."""
        self._produce(partition, records, self._unwatched.told)

    def _produce(self, partition: LogPartition, records: Iterable[Appended], report: Callable[..., object]) -> None:
        topic, number = partition
        self._topics.add(topic)
        append = self._append
        for key, value, headers, timestamp_ms in records:
            while True:
                try:
                    append(
                        topic,
                        value=value,
                        key=key,
                        partition=number,
                        on_delivery=report,
                        timestamp=timestamp_ms,
                        headers=headers,
                    )
                except BufferError:
                    self._producer.poll(QUEUE_FULL_WAIT_S)  # retry: the queue drains
                except KafkaException as error:
                    self._refuse(error)
                else:
                    break

    def _refuse(self, error: KafkaException) -> NoReturn:
        """An append failed: say so, and whether it is an earlier record that the broker refused."""
        self._producer.poll(0)
        self._sort_unwatched()
        refused = self._refused or error.args[0]
        if is_refusal(refused):
            raise RecordRefused(f"{refused.name()}: {refused.str()}") from error
        self._raise_reason(error.args[0])

    def flush(self) -> None:
        """Wait for every delivery report; raises RecordRefused, KafkaException, or InDoubt if some stay out."""
        left = self._reports(0)
        while left and self._work():
            left = self._reports(0)
        for _ in range(int(self._timeout_s / FLUSH_SLICE_S)):
            if not left:
                return
            left = self._reports(FLUSH_SLICE_S)
        if left:
            raise InDoubt(f"{left} records of {self.transactional_id} have no delivery report after {self._timeout_s} s")

    def _reports(self, wait_s: float) -> int:
        """Take delivery reports in and return how many stay out; raises for the first that tells of a failure."""
        left = self._producer.flush(wait_s)
        self._sort_unwatched()
        if self._refused is not None:
            raise RecordRefused(f"{self._refused.name()}: {self._refused.str()}")
        if self._failed is not None:
            self._raise_reason(self._failed)
        return left

    def _raise_reason(self, failed: KafkaError) -> NoReturn:
        """Raise for a record that failed; of one that the client let go by itself the transaction knows the reason."""
        reason = failed
        if failed.code() in _LET_GO:
            # One that has failed answers to this with the reason, one that is open just refuses.
            try:
                self._producer.begin_transaction()
            except KafkaException as error:
                reason = failed if error.args[0].code() == KafkaError._STATE else error.args[0]
        if is_denied(reason):  # the client does not say which topic it was
            reason = KafkaError(reason.code(), f"{reason.str()}, of {', '.join(sorted(self._topics))}")
        raise KafkaException(reason)

    def send_offsets(
        self, positions: Mapping[LogPartition, int], notes: Mapping[LogPartition, str], membership: bytes
    ) -> None:
        """Put the positions into the transaction; never an empty list, which would skip the group's fencing.

        Raises InDoubt past the deadline: the client may block for ever here after a reset (librdkafka #5456).
        """
        assert positions, "offsets are sent for every input partition, moved or not"
        offsets = [TopicPartition(p.topic, p.partition, offset, notes.get(p, "")) for p, offset in positions.items()]
        self._by_deadline(
            "send offsets", lambda: self._producer.send_offsets_to_transaction(offsets, membership, self._timeout_s)
        )

    def commit(self) -> None:
        """Commit; any exception means that the outcome is unknown."""
        self._by_deadline("commit", lambda: self._producer.commit_transaction(self._timeout_s))

    def abort(self) -> None:
        """Abort what was written so far; nothing may be begun on this instance afterwards."""
        self._by_deadline("abort", lambda: self._producer.abort_transaction(self._timeout_s))

    def discard(self) -> None:
        """Throw the instance away; what it left open is ended by its successor's ``init``.

        The client ends when nobody holds the instance any more: an ``init`` that timed out would else go on, and fence
        its own successor once the brokers are back.
        """
        with contextlib.suppress(KafkaException):
            self._producer.purge()
            self._producer.poll(0)  # what is not reported stays in memory

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
        while outcome.empty() and self._work():
            continue
        try:
            error = outcome.get(timeout=self._timeout_s + DEADLINE_MARGIN_S)
        except schedule.Empty:
            raise InDoubt(f"{self.transactional_id} could not {what} in {self._timeout_s} s") from None
        if error is not None:
            raise error

    def _sort_unwatched(self) -> None:
        for error, _ in self._unwatched:
            self._sort_in(error)

    def _work(self) -> bool:
        """Use the time of a wait; False when there is nothing to do."""
        return self.meanwhile is not None and self.meanwhile()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acked[LogPartition(message.topic() or "", message.partition() or 0)] = message.offset() or 0
        else:
            self._sort_in(error)

    def _sort_in(self, error: KafkaError) -> None:
        if is_refusal(error):
            self._refused = error
        elif self._failed is None:
            self._failed = error
