"""What the relay relies on in consumer groups: generations, offsets inside and outside of transactions, expulsion."""

from __future__ import annotations

import struct
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError

from relay.message.errors import Fenced, Unreachable
from relay.message.record import LogPartition
from relay.run.unread import LOOK_PERIOD_S, Unread
from relay.world import clock
from tests.contracts.kafka_contract import PREFIX, KafkaContract, failing, member_of
from tests.contracts.kafka_systems import TIMING, KafkaSystem, until

NOTE = "topic id"


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
        instance.send_offsets({log: 7}, {log: NOTE}, member.membership())
        with pytest.raises(Unreachable):
            self._committed(member, log)
        self.system.lose_answer("EndTxn")
        instance.commit()
        assert self.positions(member, log) == (7, NOTE)

    def test_offsets_of_an_aborted_transaction_never_show(self, log: LogPartition, name: str) -> None:
        member = self.join(name, log.topic)
        instance = self.begun()
        self.system.lose_answer("TxnOffsetCommit")
        instance.send_offsets({log: 7}, {}, member.membership())
        instance.discard()
        self.begun(instance.transactional_id).discard()
        assert self.positions(member, log) is None

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
        assert self.positions(one, log) is None
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
        assert self.positions(member, log) is None

    def test_whoever_stays_may_read_for_longer_than_the_group_waits_for_a_poll(self, log: LogPartition, name: str) -> None:
        self.append(log, *"abcdefgh")
        member = self.join(name, log.topic, polls_within_s=TIMING.session_timeout)
        membership = member.membership()
        found: list[str] = []
        with self.system.reader(committed=True, batch=1, meanwhile=member.stay) as reader:
            for records in reader.read({log: (0, 8)}):
                found += [record.value().decode() for record in records]
                clock.sleep(1.2)
        assert found == list("abcdefgh")
        assert (member.generation, member.membership()) == (1, membership)
        member.start({log: 0})
        taken: list[Any] = []
        until(lambda: taken.extend(member.consume(10, 0.05)) or len(taken) >= 8, "records")
        assert [one.value().decode() for one in taken if one.error() is None] == list("abcdefgh"), "none was swallowed"

    def test_whoever_stays_hears_that_others_have_come(self, log: LogPartition, name: str) -> None:
        member = self.join(name, log.topic)
        other = self.system.group(name, log.topic)
        self.members.append(other)

        def look() -> None:
            other.consume(1, 0.05)
            member.stay()

        with pytest.raises(Fenced, match="anew"):
            until(look, "rebalance")
        assert member.generation > 1, "revoked, and perhaps assigned anew already"
        self.poll_until(lambda: member.assigned is not None and len(member.assigned) == 1, member, other)

    def test_offsets_of_nobody_are_accepted_which_is_why_we_refuse_them(self, log: LogPartition, name: str) -> None:
        member = self.join(name, log.topic)
        instance = self.begun()
        generation, rest = struct.pack("<i", -1), member.membership()[len(PREFIX) + 4 :]
        nobody = PREFIX + generation + rest.replace(member_of(member).name.encode(), b"")
        instance.send_offsets({log: 9}, {}, nobody)
        instance.commit()
        assert self.positions(member, log) == (9, "")

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

    def test_a_member_learns_what_an_open_transaction_keeps_from_it(self, log: LogPartition, name: str) -> None:
        member = self.join(name, log.topic)
        stranger = self.begun()
        self.write(stranger, log, "open")
        self.append(log, "behind it")
        with self.system.reader(committed=False) as reader:
            unread = Unread(reader.ends, member.stable_ends)
            for now in (0.0, LOOK_PERIOD_S):
                unread.look({log: 0}, now)
            assert unread.end(log) == 2
            assert "a Kafka transaction is open in the log at 0" in str(unread.why(log, 0))
            stranger.commit()
            self.wait_for_markers(log)
            unread.look({log: 0}, 2 * LOOK_PERIOD_S)
            assert "given nothing of what the log has up to 3" in str(unread.why(log, 0))
