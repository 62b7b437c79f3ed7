"""The simulated client's producer: idempotent or transactional, as librdkafka behaves (KIP-98, without KIP-890).

Batches of a partition keep their sequence numbers over every repeat; a lost EndTxn is repeated under the same epoch.
Nothing that was sent is taken back when the instance is thrown away.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from relay.message.envelope import Headers
from relay.message.record import LogPartition
from tests.simulation.broker import NewRecord, Placed
from tests.simulation.broker_groups import OffsetsOf
from tests.simulation.broker_transactions import Identity
from tests.simulation.installation import WALL_START_MS
from tests.simulation.network import Connection
from tests.simulation.scheduler import Waiters
from tests.simulation.site import BACKOFF_S, REPEATED, Ask, Client, Cluster, Done, error, failure

IN_FLIGHT_MAX: Final = 5
FENCED: Final = frozenset(
    {KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_ID_MAPPING}
)
METADATA_PREFIX: Final = b"CGMDv2:"

Report = Callable[[KafkaError | None, Any], None]


class Item:
    """A record that waits for its report."""

    __slots__ = ("expires_at", "record", "report")

    def __init__(self, record: NewRecord, report: Report | None, expires_at: float) -> None:
        self.record = record
        self.report = report
        self.expires_at = expires_at


class Sent:
    """A batch on its way; a repeat keeps sequence and epoch."""

    __slots__ = ("attempt", "epoch", "items", "producer_id", "resets", "sequence")

    def __init__(self, items: list[Item], identity: Identity, sequence: int) -> None:
        self.items = items
        self.producer_id, self.epoch = identity
        self.sequence = sequence
        self.attempt = 0
        self.resets = -1


class Lane:
    """One partition's records: waiting, and in flight."""

    __slots__ = ("in_flight", "place", "repeating", "scheduled", "sequence", "waiting")

    def __init__(self, place: LogPartition) -> None:
        self.place = place
        self.waiting: deque[Item] = deque()
        self.in_flight: list[Sent] = []
        self.sequence = 0
        self.scheduled = False
        self.repeating = False


class SimProducer(Client):
    """Takes the place of ``confluent_kafka.Producer``."""

    def __init__(self, cluster: Cluster, settings: Mapping[str, Any]) -> None:
        super().__init__(cluster, settings.get("socket.timeout.ms", 60_000) / 1000)
        self._transactional_id: str | None = settings.get("transactional.id")
        self._transaction_timeout_s = settings.get("transaction.timeout.ms", 60_000) / 1000
        self._message_timeout_s = settings.get("message.timeout.ms", 300_000) / 1000
        self._linger_s = float(settings.get("linger.ms", 5)) / 1000
        self._coordinator = self.connect("coordinator")
        self._group = self.connect("group")
        self._identity: Identity | None = None
        self._identifying = False
        self._lanes: dict[LogPartition, Lane] = {}
        self._reports: deque[Callable[[], None]] = deque()
        self._count = 0
        self._waiters = Waiters(self.world)
        self._fatal: KafkaError | None = None
        self._to_abort: KafkaException | None = None
        self._state = "new"
        self._failed_reports = 0
        self._added: set[LogPartition] = set()
        self._adding: set[LogPartition] = set()
        self._has_written = False
        self._calls = 0
        self._random_places = self.world.rng.randrange

    def __len__(self) -> int:
        return self._count

    def init_transactions(self, timeout: float) -> None:
        """Fence the predecessor; repeated until its transaction has ended."""
        code, identity = self._blocking(self._ask_identity, timeout)
        if code:
            raise failure(code, fatal=True)
        self._identity = identity
        self._state = "ready"

    def begin_transaction(self) -> None:
        self.world.call()
        self._raise_fatal()
        if self._state != "ready":
            raise failure(KafkaError._STATE)
        self._state = "open"
        self._added, self._adding = set(), set()
        self._to_abort = None
        self._failed_reports = 0
        self._has_written = False

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        on_delivery: Report | None = None,
        timestamp: int = 0,
        headers: Headers | None = None,
    ) -> None:
        """Queue a record; it is sent in the background."""
        self.world.check()
        self._raise_fatal()
        if self._transactional_id is not None and self._state != "open":
            raise failure(KafkaError._STATE)
        if partition < 0:
            partition = self._random_places(len(self.cluster.topics.by_name[topic].partitions))
        place = LogPartition(topic, partition)
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = Lane(place)
        now = self.world.now
        record = NewRecord(key, value, headers, timestamp or WALL_START_MS + int(now * 1000))
        lane.waiting.append(Item(record, on_delivery, now + self._message_timeout_s))
        self._count += 1
        self._has_written = True
        if not lane.scheduled:
            lane.scheduled = True
            self.process.at(self._linger_s, self._lingered, lane)
            self.process.at(self._message_timeout_s + 0.001, self._expire, lane)

    def poll(self, timeout: float = 0.0) -> int:
        """Serve delivery reports and errors."""
        self.world.call()
        if not self._reports and timeout > 0:
            self._waiters.wait(timeout)
        return self._serve()

    def flush(self, timeout: float = 1e9) -> int:
        """Serve until every report was served; return how many are out when the time is over."""
        self.world.call()
        for lane in self._lanes.values():
            self._pump(lane)
        limit = self.world.now + timeout
        self._serve()
        while self._count and self.world.now < limit:
            self._waiters.wait(limit - self.world.now)
            self._serve()
        return self._count

    def purge(self, *_: object, **__: object) -> None:
        """Forget what waits; an instance whose call still blocks goes on repeating it."""
        for lane in self._lanes.values():
            self._fail(lane, KafkaError._PURGE_QUEUE)
        if self._transactional_id is not None and not self._calls:
            self.closed = True

    def close(self) -> None:
        """End the client; who closes has flushed it."""
        self.closed = True

    def send_offsets_to_transaction(
        self, offsets: list[TopicPartition], membership: bytes, timeout: float
    ) -> None:
        """AddOffsetsToTxn, then TxnOffsetCommit under the membership given."""
        self.world.call()
        self._raise_failed()
        if self._state != "open":
            raise failure(KafkaError._STATE)
        if not offsets:
            return
        generation = struct.unpack_from("<i", membership, len(METADATA_PREFIX))[0]
        group, member = (part.decode() for part in membership[len(METADATA_PREFIX) + 4 :].split(b"\0")[:2])
        if self.was_reset and self.world.rng.random() < self.cluster.hang_rate:
            self.world.trace(self.process.name, "send_offsets hangs")
            self._calls += 1
            self._waiters.wait(None)  # librdkafka #5456
        positions = {LogPartition(t.topic, t.partition): (t.offset, t.metadata or "") for t in offsets}
        identity = self._identity
        transactional_id = self._transactional_id
        assert identity is not None
        assert transactional_id is not None
        self._has_written = True
        self._ask(
            self._coordinator,
            "AddOffsetsToTxn",
            lambda: (self.cluster.transactions.add(transactional_id, *identity, [OffsetsOf(group)]), None),
            timeout,
        )
        self._ask(
            self._group,
            "TxnOffsetCommit",
            lambda: self.cluster.commit_in_transaction(
                transactional_id, *identity, (group, member, generation), positions
            ),
            timeout,
        )

    def commit_transaction(self, timeout: float = 1e9) -> None:
        """Wait for every record, then EndTxn."""
        self.world.call()
        self._raise_failed()
        limit = self.world.now + timeout
        if self.flush(timeout):
            raise failure(KafkaError._TIMED_OUT, retriable=True)
        if self._failed_reports:
            raise failure(KafkaError._INCONSISTENT, abort=True)
        self._end(limit - self.world.now, commit=True)

    def abort_transaction(self, timeout: float = 1e9) -> None:
        """Forget what waits, then EndTxn."""
        self.world.call()
        self._raise_fatal()
        for lane in self._lanes.values():
            self._fail(lane, KafkaError._PURGE_QUEUE)
        self._end(timeout, commit=False)

    def _end(self, timeout: float, *, commit: bool) -> None:
        if self._state != "open":
            raise failure(KafkaError._STATE)
        identity, transactional_id = self._identity, self._transactional_id
        assert identity is not None
        assert transactional_id is not None
        if self._has_written:
            self._ask(
                self._coordinator,
                "EndTxn",
                lambda: (self.cluster.transactions.end(transactional_id, *identity, commit=commit), None),
                timeout,
            )
        self._state = "ready"

    def _blocking(self, start: Callable[[Done], None], timeout: float) -> tuple[int, Any]:
        self._calls += 1
        try:
            return self.wait_for(start, timeout)
        finally:
            self._calls -= 1

    def _ask(self, connection: Connection, api: str, ask: Ask, timeout: float) -> None:
        """Ask about the transaction; after a refusal it can only be aborted."""
        code, _ = self._blocking(lambda done: self.repeat(connection, api, ask, done), timeout)
        if not code:
            return
        if code in FENCED or code == KafkaError.INVALID_TXN_STATE:
            self._die(code)
            self._raise_fatal()
        self._to_abort = failure(code, abort=True)
        raise self._to_abort

    def _ask_identity(self, done: Done) -> None:
        self.repeat(
            self._coordinator,
            "InitProducerId",
            lambda: self.cluster.transactions.init(self._transactional_id, self._transaction_timeout_s),
            done,
        )

    def _identify(self) -> None:
        """Get a producer id in the background, for a producer without transactions."""
        if self._identifying or self._transactional_id is not None:
            return
        self._identifying = True

        def done(_code: int, identity: Identity) -> None:
            self._identifying = False
            self._identity = identity
            for lane in self._lanes.values():
                lane.sequence = 0
                self._pump(lane)

        self._ask_identity(done)

    def _lingered(self, lane: Lane) -> None:
        lane.scheduled = False
        self._pump(lane)

    def _pump(self, lane: Lane) -> None:
        """Send what may be sent now."""
        if self.closed or self._fatal is not None or lane.repeating or not lane.waiting:
            return
        if self._identity is None:
            self._identify()
            return
        if self._transactional_id is not None and lane.place not in self._added:
            self._add(lane.place)
            return
        resets = self.leader(lane.place).resets
        if any(sent.resets != resets for sent in lane.in_flight):
            return  # the connection broke under them: they go first when they are sent again
        while lane.waiting and len(lane.in_flight) < IN_FLIGHT_MAX:
            count = len(lane.waiting)
            if count > 1 and self.world.rng.random() < 0.3:
                count = self.world.rng.randrange(1, count)
            batch = Sent([lane.waiting.popleft() for _ in range(count)], self._identity, lane.sequence)
            lane.sequence += count
            lane.in_flight.append(batch)
            self._send(lane, batch)

    def _add(self, place: LogPartition) -> None:
        """AddPartitionsToTxn for what is written to and not yet part of the transaction."""
        if place in self._adding:
            return
        new = {lane.place for lane in self._lanes.values() if lane.waiting} - self._added - self._adding
        self._adding |= new
        added = self._added
        identity, transactional_id = self._identity, self._transactional_id
        assert identity is not None
        assert transactional_id is not None

        def done(code: int, _answer: Any) -> None:
            if code:
                self._die(code)
                return
            added.update(new)
            for one in sorted(new):
                self._pump(self._lanes[one])

        self.repeat(
            self._coordinator,
            "AddPartitionsToTxn",
            lambda: (self.cluster.transactions.add(transactional_id, *identity, new), None),
            done,
        )

    def _send(self, lane: Lane, batch: Sent) -> None:
        records = [item.record for item in batch.items]
        batch.attempt += 1
        attempt = batch.attempt
        cluster = self.cluster
        left = batch.items[0].expires_at - self.world.now
        batch.resets = self.leader(lane.place).resets
        self.leader(lane.place).request(
            "Produce",
            lambda reply: reply(
                cluster.topics.partition(lane.place).append(
                    records,
                    batch.producer_id,
                    batch.epoch,
                    batch.sequence,
                    self._transactional_id,
                    cluster.transactions.verify,
                )
            ),
            lambda code, answer: self._sent(lane, batch, attempt, code, answer),
            max(0.001, min(self._socket_timeout_s, left)),
        )

    def _sent(self, lane: Lane, batch: Sent, attempt: int, code: int, answer: Any) -> None:
        if self.closed or batch not in lane.in_flight or batch.attempt != attempt:
            return
        base = -1
        if code == 0:
            code, base = answer
        if code == 0:
            lane.in_flight.remove(batch)
            for number, item in enumerate(batch.items):
                self._report(item, None, Placed(lane.place, base + number))
            self._pump(lane)
            return
        gap = code == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER and batch is not lane.in_flight[0]
        if code in REPEATED or gap:
            if batch.items[0].expires_at <= self.world.now:
                self._give_up(lane, KafkaError._MSG_TIMED_OUT)
            elif not lane.repeating:
                lane.repeating = True
                self.process.at(self.world.rng.uniform(*BACKOFF_S), self._send_again, lane)
        elif code in FENCED and self._transactional_id is not None:
            self._die(code)
        else:
            self._give_up(lane, code)

    def _send_again(self, lane: Lane) -> None:
        lane.repeating = False
        if self.closed or self._fatal is not None:
            return
        for batch in list(lane.in_flight):
            self._send(lane, batch)
        self._pump(lane)

    def _give_up(self, lane: Lane, code: int) -> None:
        """What is in flight fails, though it may be there; an idempotent producer takes a new identity."""
        in_flight, lane.in_flight = lane.in_flight, []
        lane.repeating = False
        for batch in in_flight:
            for item in batch.items:
                self._report(item, error(code), Placed(lane.place, -1001))
        if self._transactional_id is None:
            for other in self._lanes.values():
                for batch in other.in_flight:
                    for item in batch.items:
                        self._report(item, error(KafkaError._MSG_TIMED_OUT), Placed(other.place, -1001))
                other.in_flight = []
                other.repeating = False
            self._identity = None
            if any(lane.waiting for lane in self._lanes.values()):
                self._identify()

    def _expire(self, lane: Lane) -> None:
        now = self.world.now
        while lane.waiting and lane.waiting[0].expires_at <= now:
            self._report(lane.waiting.popleft(), error(KafkaError._MSG_TIMED_OUT), Placed(lane.place, -1001))
        if lane.waiting:
            self.process.at(lane.waiting[0].expires_at - now + 0.001, self._expire, lane)

    def _fail(self, lane: Lane, code: int) -> None:
        """Report everything of a lane as failed."""
        for batch in lane.in_flight:
            lane.waiting.extendleft(reversed(batch.items))
        lane.in_flight = []
        while lane.waiting:
            self._report(lane.waiting.popleft(), error(code), Placed(lane.place, -1001))

    def _report(self, item: Item, failed: KafkaError | None, message: Placed) -> None:
        if failed is not None:
            self._failed_reports += 1

        def serve() -> None:
            self._count -= 1
            if item.report is not None:
                item.report(failed, message)

        self._reports.append(serve)
        self._waiters.wake_all()

    def _serve(self) -> int:
        served = 0
        while self._reports:
            self._reports.popleft()()
            served += 1
        return served

    def _die(self, code: int) -> None:
        """A fatal error: the next call that serves reports raises it, and every other call from now on."""
        if self._fatal is not None:
            return
        self.world.trace(self.process.name, "producer fatal", code)
        self._fatal = error(KafkaError._FENCED if code in FENCED else code, fatal=True)
        self._reports.append(self._raise_fatal)
        for lane in self._lanes.values():
            self._fail(lane, KafkaError._PURGE_QUEUE)
        self._waiters.wake_all()

    def _raise_failed(self) -> None:
        self._raise_fatal()
        if self._to_abort is not None:
            raise self._to_abort

    def _raise_fatal(self) -> None:
        if self._fatal is not None:
            raise KafkaException(self._fatal)
