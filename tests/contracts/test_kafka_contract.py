"""What the relay relies on in Kafka, tried through its own adapters on the simulator and on a real broker.

Where both pass, what a simulation proves holds for the real one as well.
"""

from __future__ import annotations

import gc
import secrets
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, KafkaException

import relay.kafka.group
from relay.chaos.frame_proxy import FrameProxy
from relay.kafka.appender import Receipt, Record
from relay.kafka.failures import kafka_error
from relay.kafka.group import GroupConsumer
from relay.kafka.transactions import TransactionalInstance
from relay.local.ports import free_ports
from relay.local.services import LocalServices
from relay.message.errors import Fenced, RecordRefused, Stuck, Unreachable
from relay.message.record import LogPartition
from relay.run import clock
from tests.contracts.kafka_systems import TIMING, KafkaSystem, RealKafka, SimulatedKafka, until
from tests.simulation import kafka_ports
from tests.simulation.calling import CallingWorld
from tests.simulation.installation import installed
from tests.simulation.scheduler import Crashed

NOTE = "topic id"
PREFIX = b"CGMDv2:"


@contextmanager
def failing(*codes: int) -> Iterator[None]:
    """The client raises one of these, whatever it is wrapped in."""
    with pytest.raises(KafkaException) as raised:
        yield
    error = kafka_error(raised.value)
    assert error is not None
    assert error.code() in codes, f"{error.name()}: {error.str()}"


class Member(NamedTuple):
    """A member's name in its group and the generation that it knows."""

    name: str
    generation: int


def member_of(consumer: GroupConsumer) -> Member:
    body = consumer.membership()[len(PREFIX) :]
    (generation,) = struct.unpack_from("<i", body)
    return Member(body[4:].split(b"\0")[1].decode(), generation)


class KafkaContract:
    """The suite; subclasses give the system under test."""

    @pytest.fixture
    def system(self) -> Iterator[KafkaSystem]:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _given(self, system: KafkaSystem, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(relay.kafka.group, "COMMITTED_TIMEOUT_S", 0.5)
        self.system = system
        self.members: list[GroupConsumer] = []
        yield
        for member in self.members:
            member.close()

    def begun(self, transactional_id: str = "") -> TransactionalInstance:
        """Make an instance with an open transaction."""
        made = self.system.instance(transactional_id or f"tx-{uuid4().hex[:8]}")
        made.init()
        made.begin()
        return made

    def write(self, instance: TransactionalInstance, place: LogPartition, *values: str) -> None:
        """Append and wait for the reports."""
        for value in values:
            instance.produce(place, None, value.encode())
        instance.flush()

    def append(self, place: LogPartition, *values: str) -> None:
        """Append outside transactions, as one capture."""
        publisher = self.system.appender()
        receipt = Receipt(len(values))
        records = [Record(*place, None, value.encode(), []) for value in values]
        publisher.append(records, receipt, clock.monotonic() + 5)
        assert receipt.wait(10)
        assert receipt.failure is None
        publisher.close()

    def read(self, place: LogPartition, *, committed: bool = True) -> list[str]:
        """Read to the high watermark, as recovery does."""
        with self.system.reader(committed=False) as scanner:
            span = scanner.watermarks(place)
        with self.system.reader(committed=committed) as reader:
            return [record.value().decode() for records in reader.read({place: span}) for record in records]

    def ends(self, place: LogPartition) -> tuple[int, int]:
        """The last stable offset and the high watermark."""
        with self.system.reader(committed=True) as stable, self.system.reader(committed=False) as scanner:
            return stable.watermarks(place)[1], scanner.watermarks(place)[1]

    def wait_for_markers(self, place: LogPartition) -> None:
        """Return when no transaction is open in the partition."""
        until(lambda: len(set(self.ends(place))) == 1, f"end of the transactions in {place}")

    def join(self, name: str, topic: str, others: Sequence[GroupConsumer] = ()) -> GroupConsumer:
        """Make a member that has its assignment, while the others are polled."""
        made = self.system.group(name, topic)
        self.members.append(made)
        self.poll_until(lambda: made.assigned, made, *others)
        return made

    def poll_until(self, check: Callable[[], Any], *consumers: GroupConsumer) -> None:
        def look() -> bool:
            for consumer in consumers:
                consumer.consume(1, 0.05)
            return bool(check())

        until(look, "assignment as expected")

    def positions(self, consumer: GroupConsumer, place: LogPartition) -> tuple[int, str] | None:
        return until(lambda: [self._committed(consumer, place)], "committed offsets")[0]

    @staticmethod
    def _committed(consumer: GroupConsumer, place: LogPartition) -> tuple[int, str] | None:
        return consumer.committed([place]).get(place)


class ReadingContract(KafkaContract):
    """Watermarks, isolation, ends."""

    def test_watermarks_count_records_and_markers(self) -> None:
        place = LogPartition(self.system.topic(), 0)
        assert self.ends(place) == (0, 0)
        self.append(place, "a", "b")
        assert self.ends(place) == (2, 2)
        instance = self.begun()
        self.write(instance, place, "c")
        assert self.ends(place) == (2, 3)
        instance.commit()
        self.wait_for_markers(place)
        assert self.ends(place) == (4, 4)

    def test_a_reader_ends_at_a_marker_although_no_record_is_there(self) -> None:
        place = LogPartition(self.system.topic(), 0)
        instance = self.begun()
        self.write(instance, place, "a", "b")
        instance.commit()
        self.wait_for_markers(place)
        assert self.read(place) == self.read(place, committed=False) == ["a", "b"]
        with self.system.reader(committed=True) as reader:
            assert list(reader.read({place: (2, 3)})) == [], "only the marker is left"

    def test_an_open_transaction_is_seen_by_a_read_uncommitted_reader_only(self) -> None:
        place = LogPartition(self.system.topic(), 0)
        instance = self.begun()
        self.write(instance, place, "open")
        self.append(place, "behind it")
        assert self.read(place, committed=False) == ["open", "behind it"]
        with self.system.reader(committed=True, deadline_s=0.5) as reader, pytest.raises(Stuck):
            list(reader.read({place: (0, 2)}))
        instance.commit()
        assert self.read(place) == ["open", "behind it"]

    def test_the_oldest_open_transaction_holds_the_last_stable_offset(self) -> None:
        place = LogPartition(self.system.topic(), 0)
        first, second = self.begun(), self.begun()
        self.write(first, place, "first")
        self.write(second, place, "second")
        second.commit()
        until(lambda: self.ends(place)[1] == 3, "marker of the second")
        assert self.ends(place) == (0, 3)
        first.commit()
        self.wait_for_markers(place)
        assert self.read(place) == ["first", "second"]

    def test_a_low_watermark_that_moved_is_an_error_for_who_starts_below_it(self) -> None:
        place = LogPartition(self.system.topic(), 0)
        self.append(place, "a", "b", "c")
        self.system.drop_below(place, 2)
        with self.system.reader(committed=False) as reader:
            assert reader.watermarks(place) == (2, 3)
            with pytest.raises(Unreachable):
                list(reader.read({place: (0, 3)}))
        assert self.read(place) == ["c"]

    def test_each_partition_keeps_the_order_of_its_appends(self) -> None:
        topic = self.system.topic(2)
        places = [LogPartition(topic, p) for p in range(2)]
        publisher = self.system.appender()
        receipts = []
        for number in range(0, 200, 4):
            receipts.append(Receipt(4))
            records = [Record(topic, n % 2, None, str(n).encode(), []) for n in range(number, number + 4)]
            publisher.append(records, receipts[-1], clock.monotonic() + 5)
            if number == 100:
                self.system.lose_answer("Produce")
        assert all(receipt.wait(10) and receipt.failure is None for receipt in receipts)
        publisher.close()
        for place in places:
            assert self.read(place) == [str(n) for n in range(place.partition, 200, 2)]

    def test_control_records_are_found_by_key_and_by_prefix(self) -> None:
        control = self.system.control(self.system.topic())
        control.put(b"a1", b"first", wait=True)
        control.put(b"b", b"other", wait=True)
        self.system.lose_answer("Produce")
        control.put(b"a1", b"second", wait=True)
        control.put(b"a2", b"third", wait=False)
        control.close()
        assert control.first(b"a1") == b"first"
        assert control.first(b"none") is None
        assert control.under([b"a"]) == [(b"a1", b"first"), (b"a1", b"second"), (b"a2", b"third")]


class TransactionContract(KafkaContract):
    """Fencing, aborts, refusals, lost answers and strays."""

    def test_a_successor_fences_and_ends_what_was_open(self) -> None:
        place = LogPartition(self.system.topic(), 0)
        old = self.begun("tx-fenced" + uuid4().hex[:6])
        self.write(old, place, "aborted")
        new = self.begun(old.transactional_id)
        assert len(set(self.ends(place))) == 1, "init returns when the transaction has ended"
        self.write(new, place, "kept")
        with failing(KafkaError._FENCED):
            old.commit()
        new.commit()
        assert self.read(place) == ["kept"]
        assert self.read(place, committed=False) == ["aborted", "kept"]

    def test_a_fenced_instance_appends_nothing(self) -> None:
        place = LogPartition(self.system.topic(), 0)
        old = self.begun("tx-late" + uuid4().hex[:6])
        self.write(old, place, "before")
        self.begun(old.transactional_id).discard()
        with failing(KafkaError._FENCED, KafkaError._PURGE_QUEUE):
            self.write(old, place, "after")
        assert self.read(place, committed=False) == ["before"]

    def test_a_committed_transaction_stays_when_its_instance_is_fenced(self) -> None:
        place = LogPartition(self.system.topic(), 0)
        old = self.begun("tx-done" + uuid4().hex[:6])
        self.write(old, place, "kept")
        old.commit()
        self.begun(old.transactional_id).discard()
        assert self.read(place) == ["kept"]

    def test_a_discarded_instance_leaves_its_transaction_to_the_successor(self) -> None:
        place = LogPartition(self.system.topic(), 0)
        old = self.begun("tx-left" + uuid4().hex[:6])
        self.write(old, place, "left open")
        old.discard()
        assert self.ends(place) == (0, 1)
        self.begun(old.transactional_id).discard()
        assert self.ends(place) == (2, 2)
        assert self.read(place) == []

    def test_acked_tells_the_offset_of_the_last_record(self) -> None:
        place = LogPartition(self.system.topic(), 0)
        self.append(place, "a", "b")
        instance = self.begun()
        self.write(instance, place, "c", "d")
        assert instance.acked == {place: 3}

    def test_a_record_that_is_too_large_is_refused_before_any_effect(self) -> None:
        place = LogPartition(self.system.topic(bytes_max=2_000), 0)
        instance = self.begun()
        with pytest.raises(RecordRefused):
            self.write(instance, place, secrets.token_hex(5_000))  # it must not become small by compression
        instance.discard()
        assert self.read(place, committed=False) == []

    def test_a_repeat_after_a_lost_answer_does_not_duplicate(self) -> None:
        place = LogPartition(self.system.topic(), 0)
        instance = self.begun()
        self.write(instance, place, "one")
        self.system.lose_answer("Produce")
        self.write(instance, place, "two", "three")
        assert instance.acked == {place: 2}, "the repeat is told where the first copy lies"
        self.system.lose_answer("EndTxn")
        instance.commit()
        instance.begin()
        self.write(instance, place, "four")
        instance.commit()
        assert self.read(place) == ["one", "two", "three", "four"]

    def test_a_late_commit_ends_the_next_transaction_and_partition_verification_refuses_its_next_record(self) -> None:
        place = LogPartition(self.system.topic(), 0)
        instance = self.begun()
        arrive = self.system.keep_end(instance)
        self.write(instance, place, "first")
        instance.commit()
        self.wait_for_markers(place)
        instance.begin()
        self.write(instance, place, "half")
        assert arrive() == 0
        self.wait_for_markers(place)
        with failing(KafkaError.INVALID_TXN_STATE):
            self.write(instance, place, "other half")
        assert self.read(place) == ["first", "half"], "what was to be one transaction is torn"

    def test_a_late_commit_is_not_noticed_where_nothing_was_written_before(self) -> None:
        places = [LogPartition(self.system.topic(), 0) for _ in range(2)]
        instance = self.begun()
        arrive = self.system.keep_end(instance)
        self.write(instance, places[0], "first")
        instance.commit()
        self.wait_for_markers(places[0])
        instance.begin()
        self.write(instance, places[0], "half")
        assert arrive() == 0
        self.wait_for_markers(places[0])
        self.write(instance, places[1], "other half")
        assert self.read(places[0]) == ["first", "half"]
        assert self.ends(places[1]) == (0, 1)
        instance.commit()
        assert self.read(places[1]) == ["other half"]

    def test_a_late_commit_of_a_fenced_instance_is_refused(self) -> None:
        place = LogPartition(self.system.topic(), 0)
        old = self.begun("tx-stray" + uuid4().hex[:6])
        arrive = self.system.keep_end(old)
        self.write(old, place, "first")
        old.commit()
        self.wait_for_markers(place)
        new = self.begun(old.transactional_id)
        self.write(new, place, "second")
        assert arrive() in (KafkaError.INVALID_PRODUCER_EPOCH, 90), "90 is PRODUCER_FENCED"
        assert self.read_to_stable(place) == ["first"]
        new.commit()
        assert self.read(place) == ["first", "second"]

    def read_to_stable(self, place: LogPartition) -> list[str]:
        with self.system.reader(committed=True) as reader:
            return [r.value().decode() for records in reader.read({place: reader.watermarks(place)}) for r in records]


class GroupContract(KafkaContract):
    """Generations, offsets inside and outside of transactions, expulsion."""

    @pytest.fixture
    def log(self, system: KafkaSystem) -> LogPartition:
        return LogPartition(system.topic(2), 0)

    @pytest.fixture
    def name(self) -> str:
        return f"group-{uuid4().hex[:8]}"

    def test_a_rebalance_changes_generations_and_shares_the_partitions(self, log: LogPartition, name: str) -> None:
        one = self.join(name, log.topic)
        assert one.assigned == [LogPartition(log.topic, p) for p in range(2)]
        assert one.generation == 1
        known = member_of(one)
        two = self.join(name, log.topic, [one])
        self.poll_until(lambda: one.assigned is not None and len(one.assigned) == 1, one, two)
        assert one.generation == 3, "revoked, assigned"
        assert member_of(one).name == known.name
        assert member_of(one).generation == member_of(two).generation > known.generation
        assert sorted([*(one.assigned or ()), *(two.assigned or ())]) == [LogPartition(log.topic, p) for p in range(2)]
        self.members.remove(two)
        two.close()
        self.poll_until(lambda: one.assigned is not None and len(one.assigned) == 2, one)

    def test_a_consumer_that_has_not_joined_has_no_membership(self, log: LogPartition, name: str) -> None:
        member = self.system.group(name, log.topic)
        self.members.append(member)
        with pytest.raises(Fenced):
            member.membership()

    def test_offsets_in_a_transaction_show_after_its_commit_only(self, log: LogPartition, name: str) -> None:
        member = self.join(name, log.topic)
        assert self.positions(member, log) is None
        instance = self.begun()
        instance.send_offsets({log: 7}, {log.topic: NOTE}, member.membership())
        with pytest.raises(Unreachable):
            self._committed(member, log)
        self.system.lose_answer("EndTxn")
        instance.commit()
        assert self.settled(member, log) == (7, NOTE)

    def test_offsets_of_an_aborted_transaction_never_show(self, log: LogPartition, name: str) -> None:
        member = self.join(name, log.topic)
        instance = self.begun()
        self.system.lose_answer("TxnOffsetCommit")
        instance.send_offsets({log: 7}, {}, member.membership())
        instance.discard()
        self.begun(instance.transactional_id).discard()
        assert self.settled(member, log) is None

    def test_offsets_of_an_old_generation_are_refused(self, log: LogPartition, name: str) -> None:
        one = self.join(name, log.topic)
        old = one.membership()
        self.join(name, log.topic, [one])
        out = LogPartition(self.system.topic(), 0)
        instance = self.begun()
        self.write(instance, out, "output")
        with failing(KafkaError.ILLEGAL_GENERATION):
            instance.send_offsets({log: 7}, {}, old)
        with failing(KafkaError.ILLEGAL_GENERATION):
            instance.commit()
        self.begun(instance.transactional_id).discard()
        assert self.settled(one, log) is None
        assert self.read(out) == []

    def test_an_expelled_member_commits_nothing_and_learns_of_it(self, log: LogPartition, name: str) -> None:
        member = self.join(name, log.topic)
        membership = member.membership()
        self.system.expel(name, member_of(member).name)
        with failing(KafkaError.UNKNOWN_MEMBER_ID):
            self.begun().send_offsets({log: 7}, {}, membership)
        with pytest.raises(Unreachable):
            member.commit({log: 8}, {}, wait=True)
        self.poll_until(lambda: member.generation == 3 and member.assigned, member)
        assert member.membership() != membership
        assert self.settled(member, log) is None

    def test_offsets_of_nobody_are_accepted_which_is_why_we_refuse_them(self, log: LogPartition, name: str) -> None:
        member = self.join(name, log.topic)
        instance = self.begun()
        generation, rest = struct.pack("<i", -1), member.membership()[len(PREFIX) + 4 :]
        nobody = PREFIX + generation + rest.replace(member_of(member).name.encode(), b"")
        instance.send_offsets({log: 9}, {}, nobody)
        instance.commit()
        assert self.settled(member, log) == (9, "")

    def test_a_member_commits_outside_of_transactions(self, log: LogPartition, name: str) -> None:
        member = self.join(name, log.topic)
        member.commit({log: 3}, {log.topic: NOTE}, wait=True)
        assert self.positions(member, log) == (3, NOTE)
        member.commit({log: 4}, {log.topic: NOTE}, wait=False)
        until(lambda: self.positions(member, log) == (4, NOTE), "second commit")

    def test_a_reading_member_gets_records_and_the_news_that_it_is_at_the_end(self, log: LogPartition, name: str) -> None:
        self.append(log, "a", "b", "c")
        member = self.join(name, log.topic)
        member.start({log: 1})
        found: list[Any] = []

        def look() -> bool:
            found.extend(member.consume(10, 0.05))
            return any(one.error() is not None for one in found)

        until(look, "end of the partition")
        assert [one.value() for one in found if one.error() is None] == [b"b", b"c"]
        (event,) = (one for one in found if one.error() is not None)
        assert (event.error().code(), event.offset()) == (KafkaError._PARTITION_EOF, 3)

    def settled(self, member: GroupConsumer, place: LogPartition) -> tuple[int, str] | None:
        """The position once no transaction has one pending."""

        def look() -> list[tuple[int, str] | None]:
            try:
                return [self._committed(member, place)]
            except Unreachable:
                return []

        return until(look, "stable position")[0]


class Simulated:
    """The world of one test."""

    @pytest.fixture
    def world(self) -> CallingWorld:
        return CallingWorld(7)

    @pytest.fixture
    def system(self, world: CallingWorld) -> Iterator[KafkaSystem]:
        made = SimulatedKafka(world)
        with installed(world, also=kafka_ports.stand_ins(made.cluster, kafka_ports.Disks())):
            yield made


class Real:
    """One broker for all tests of a class's module."""

    @pytest.fixture
    def system(self, proxied_kafka: tuple[FrameProxy, str]) -> KafkaSystem:
        return RealKafka(*proxied_kafka)


@pytest.fixture(scope="module")
def proxied_kafka() -> Iterator[tuple[FrameProxy, str]]:
    """A broker that advertises the proxy's address, and its own address."""
    directory = Path(tempfile.mkdtemp(prefix="relay-contract-"))
    (port,) = free_ports(1)
    broker = f"127.0.0.1:{port}"
    proxy = FrameProxy(broker)
    try:
        LocalServices.up(directory, kafka_port=port, advertise=proxy.address, postgres=False)
        yield proxy, broker
    finally:
        gc.collect()  # instances that were thrown away would look for the broker
        started = LocalServices.find(directory)
        if started is not None:
            started.down()
        shutil.rmtree(directory, ignore_errors=True)
        proxy.close()


class TestSimulatedReading(Simulated, ReadingContract):
    pass


class TestSimulatedTransactions(Simulated, TransactionContract):
    def test_a_process_that_dies_in_its_commit_leaves_all_or_nothing(self, world: CallingWorld) -> None:
        """Whatever its last steps were, its successor finds a transaction that has ended, the same in both partitions."""
        outcomes = set()
        for steps in range(1, 6):
            places = [LogPartition(self.system.topic(), 0) for _ in range(2)]
            dying = world.process(f"dying-{steps}")
            transactional_id = f"dying-{steps}"
            with world.acting_as(dying):
                instance = self.begun(transactional_id)
                for place in places:
                    self.write(instance, place, "half")
                dying.kill_in = steps
                with pytest.raises(Crashed):
                    self.commit_for_ever(instance)
            self.begun(transactional_id).discard()
            one, other = (self.read(place) for place in places)
            assert one == other
            outcomes.add(len(one))
        assert outcomes == {0, 1}, "some of the deaths come before the decision and some after it"

    @staticmethod
    def commit_for_ever(instance: TransactionalInstance) -> None:
        while True:
            instance.commit()
            instance.begin()

    def test_a_transaction_that_nobody_ends_is_aborted_and_its_producer_fenced(self, world: CallingWorld) -> None:
        place = LogPartition(self.system.topic(), 0)
        instance = self.begun()
        self.write(instance, place, "forgotten")
        world.sleep(TIMING.transaction_timeout + 5)
        with failing(KafkaError._FENCED):
            instance.commit()
        assert self.read(place) == []


class TestSimulatedGroups(Simulated, GroupContract):
    def test_a_frozen_member_is_expelled_and_finds_its_partitions_given_away(
        self, world: CallingWorld, log: LogPartition, name: str
    ) -> None:
        other = world.process("frozen")
        with world.acting_as(other):
            frozen = self.join(name, log.topic)
            membership = frozen.membership()
        self.members.remove(frozen)
        other.freeze(30.0)
        heir = self.join(name, log.topic)
        assert len(heir.assigned or ()) == 2
        with failing(KafkaError.UNKNOWN_MEMBER_ID):
            self.begun().send_offsets({log: 7}, {}, membership)


class TestReading(Real, ReadingContract):
    pass


class TestTransactions(Real, TransactionContract):
    pass


class TestGroups(Real, GroupContract):
    pass
