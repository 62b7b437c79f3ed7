"""What the relay relies on when it reads: watermarks, isolation, ends, order."""

from __future__ import annotations

import pytest

from relay.kafka.appender import Receipt, Record
from relay.message.errors import Stuck, Unreachable
from relay.message.record import LogPartition
from relay.world import clock
from tests.contracts.kafka_contract import KafkaContract
from tests.contracts.kafka_systems import until


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

    def test_a_partition_is_open_while_a_transaction_is_below_the_end_asked_for(self) -> None:
        topic = self.system.topic(partitions=2)
        place, other = LogPartition(topic, 0), LogPartition(topic, 1)
        self.append(other, "a")
        instance = self.begun()
        self.write(instance, place, "open")
        with self.system.reader(committed=True) as reader:
            assert reader.partitions(topic) == 2
            assert reader.still_open({place: 1, other: 1}, 0.1) == {place}
            assert reader.still_open({place: 0, other: 1}, 0.1) == set(), "nothing is open below it"
            instance.commit()
            assert reader.still_open({place: 1, other: 1}, 10.0) == set(), "it is waited for"

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

    def test_no_partitions_have_no_ends(self) -> None:
        with self.system.reader(committed=True) as reader:
            assert reader.ends([]) == {}

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
