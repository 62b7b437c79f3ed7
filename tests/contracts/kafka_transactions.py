"""What the relay relies on in Kafka transactions: fencing, aborts, refusals, lost answers and strays."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError

from relay.kafka.transactions import TransactionalInstance
from relay.message.errors import RecordRefused
from relay.message.record import LogPartition
from tests.contracts.kafka_contract import FENCED, KafkaContract, failing


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

    def test_what_is_aborted_never_shows(self) -> None:
        place = LogPartition(self.system.topic(), 0)
        instance = self.begun("tx-aborted" + uuid4().hex[:6])
        self.write(instance, place, "aborted")
        instance.abort()
        self.begun(instance.transactional_id).discard()
        assert self.ends(place) == (2, 2)
        assert self.read(place) == []
        assert self.read(place, committed=False) == ["aborted"]

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
        arrive = self.half_of_the_next(instance, place)
        assert arrive() == 0
        self.wait_for_markers(place)
        with failing(KafkaError.INVALID_TXN_STATE):
            self.write(instance, place, "other half")
        assert self.read(place) == ["first", "half"], "what was to be one transaction is torn"

    def test_a_late_commit_is_not_noticed_where_nothing_was_written_before(self) -> None:
        places = [LogPartition(self.system.topic(), 0) for _ in range(2)]
        instance = self.begun()
        arrive = self.half_of_the_next(instance, places[0])
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
        assert arrive() in FENCED
        assert self.read_to_stable(place) == ["first"]
        new.commit()
        assert self.read(place) == ["first", "second"]

    def test_with_a_client_for_each_transaction_what_is_late_is_refused(self) -> None:
        place = LogPartition(self.system.topic(), 0)
        instance = self.begun(one_each=True)
        arrive = self.half_of_the_next(instance, place)
        assert arrive() in FENCED
        self.write(instance, place, "other half")
        assert self.read_to_stable(place) == ["first"]
        instance.commit()
        assert self.read(place) == ["first", "half", "other half"]
        assert instance.acked[place] == self.ends(place)[1] - 2, "a marker lies behind it"

    def half_of_the_next(self, instance: TransactionalInstance, place: LogPartition) -> Callable[[], int]:
        """Commit one transaction, whose end is kept back, and write half of the next; calling lets that end arrive."""
        arrive = self.system.keep_end(instance)
        self.write(instance, place, "first")
        instance.commit()
        self.wait_for_markers(place)
        instance.begin()
        self.write(instance, place, "half")
        return arrive

    def read_to_stable(self, place: LogPartition) -> list[str]:
        with self.system.reader(committed=True) as reader:
            return [r.value().decode() for records in reader.read({place: reader.watermarks(place)}) for r in records]
