"""The group coordinator: classic protocol, range assignment, generations, sessions, and offsets inside transactions.

A commit inside a transaction is pending until its marker; a stable read waits for it. A commit is refused for a
member or a generation that is not the group's, except that nobody (generation -1, no member) is never refused inside
a transaction: so it is in Kafka, and clients must not rely on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from confluent_kafka import KafkaError

from relay.message.record import LogPartition
from tests.simulation.broker import NONE, Topics
from tests.simulation.scheduler import World

INITIAL_DELAY_S: Final = 0.2


class OffsetsOf(NamedTuple):
    """The place of a group's offsets, as a partition of a transaction."""

    group: str


class Joined(NamedTuple):
    """The answer to JoinGroup."""

    member: str
    generation: int


class Phase(Enum):
    """Of a group."""

    EMPTY = "empty"
    PREPARING = "preparing"
    STABLE = "stable"


Verify = Callable[[str, int, int, object], int]
JoinReply = Callable[[tuple[int, Joined | None]], None]


class Member:
    """A member and whether it waits in the join."""

    __slots__ = ("name", "rebalance_s", "reply", "seen_at", "session_s", "topics")

    def __init__(self, name: str, session_s: float, rebalance_s: float, topics: tuple[str, ...]) -> None:
        self.name = name
        self.session_s = session_s
        self.rebalance_s = rebalance_s
        self.topics = topics
        self.reply: JoinReply | None = None
        self.seen_at = 0.0


class Group:
    """One consumer group."""

    def __init__(self, world: World, topics: Topics, name: str) -> None:
        self.name = name
        self.phase = Phase.EMPTY
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.committed: dict[LogPartition, tuple[int, str]] = {}
        self.pending: dict[int, dict[LogPartition, tuple[int, str, int, int]]] = {}
        self.on_fall: list[Callable[[LogPartition, int, bool], None]] = []
        self._writers: dict[LogPartition, tuple[int, int] | None] = {}
        self._epochs: dict[int, int] = {}
        self._commits = 0
        self._stored_by: dict[LogPartition, int] = {}
        self._world = world
        self._topics = topics
        self._assignment: dict[str, list[LogPartition]] = {}
        self._numbers = 0
        self._round = 0

    def join(
        self, name: str, session_s: float, rebalance_s: float, topics: tuple[str, ...], reply: JoinReply
    ) -> None:
        """JoinGroup: answered when all members have joined, or were dropped."""
        if name and name not in self.members:
            reply((KafkaError.UNKNOWN_MEMBER_ID, None))
            return
        if not name:
            self._numbers += 1
            name = f"member-{self._numbers}"
            self.members[name] = Member(name, session_s, rebalance_s, topics)
        member = self.members[name]
        member.reply = reply
        member.seen_at = self._world.now
        self._rebalance("joined", name)

    def sync(self, name: str, generation: int) -> tuple[int, list[LogPartition] | None]:
        """SyncGroup: the member's partitions in this generation."""
        refused = self._refusal(name, generation)
        if refused:
            return refused, None
        if self.phase is Phase.PREPARING:
            return KafkaError.REBALANCE_IN_PROGRESS, None
        self._touch(self.members[name])
        return NONE, self._assignment.get(name, [])

    def heartbeat(self, name: str, generation: int) -> int:
        """Heartbeat: keeps the session, and tells of a rebalance."""
        refused = self._refusal(name, generation)
        if refused:
            return refused
        self._touch(self.members[name])
        return KafkaError.REBALANCE_IN_PROGRESS if self.phase is Phase.PREPARING else NONE

    def leave(self, name: str) -> None:
        """LeaveGroup."""
        if self.members.pop(name, None) is not None:
            self._rebalance("left", name)

    def commit(self, name: str, generation: int, offsets: Mapping[LogPartition, tuple[int, str]]) -> int:
        """OffsetCommit, outside transactions."""
        if generation < 0 and not name:
            if self.members:
                return KafkaError.UNKNOWN_MEMBER_ID
        else:
            refused = self._refusal(name, generation)
            if refused:
                return refused
        self._commits += 1
        for partition, (offset, note) in offsets.items():
            self._store(partition, offset, note, self._commits)
        return NONE

    def commit_in_transaction(
        self, writer: tuple[int, int], name: str, generation: int, offsets: Mapping[LogPartition, tuple[int, str]]
    ) -> int:
        """TxnOffsetCommit: pending until the transaction's marker comes here."""
        if generation >= 0 or name:
            refused = self._refusal(name, generation)
            if refused:
                return refused
        producer_id, epoch = writer
        if epoch < self._epochs.get(producer_id, epoch):
            return KafkaError.INVALID_PRODUCER_EPOCH  # the partition of the offsets topic knows a newer one
        self._epochs[producer_id] = epoch
        self._commits += 1
        pending = self.pending.setdefault(producer_id, {})
        for partition, (offset, note) in offsets.items():
            pending[partition] = (offset, note, self._commits, epoch)
        return NONE

    def end_transaction(self, producer_id: int, epoch: int, *, commit: bool) -> None:
        """The marker: pending offsets count now, or never did; of two commits the later one stays."""
        self._epochs[producer_id] = max(epoch, self._epochs.get(producer_id, epoch))
        for partition, (offset, note, number, by) in self.pending.pop(producer_id, {}).items():
            if commit:
                self._store(partition, offset, note, number, (producer_id, by))

    def fetch(self, partitions: list[LogPartition]) -> tuple[int, dict[LogPartition, tuple[int, str]]]:
        """OffsetFetch of stable offsets."""
        for pending in self.pending.values():
            if any(partition in pending for partition in partitions):
                return KafkaError.UNSTABLE_OFFSET_COMMIT, {}
        return NONE, {p: self.committed[p] for p in partitions if p in self.committed}

    def forget(self, topic: str) -> None:
        """The topic was deleted: so are its offsets (KIP-211 and before), whoever is a member."""
        for place in [place for place in self.committed if place.topic == topic]:
            del self.committed[place]
            self._writers.pop(place, None)
            self._stored_by.pop(place, None)

    def expect_again(self) -> None:
        """The coordinator has restarted: every session begins anew."""
        for member in self.members.values():
            self._touch(member)

    def _store(
        self, partition: LogPartition, offset: int, note: str, number: int, writer: tuple[int, int] | None = None
    ) -> None:
        if number >= self._stored_by.get(partition, 0):
            if self.committed.get(partition, (0, ""))[0] > offset:
                for told in self.on_fall:
                    told(partition, offset, writer is not None and writer == self._writers.get(partition))
            self._writers[partition] = writer
            self.committed[partition] = (offset, note)
            self._stored_by[partition] = number
            self._world.trace("group", self.name, "position", partition.topic, partition.partition, offset)

    def _refusal(self, name: str, generation: int) -> int:
        if name not in self.members:
            return KafkaError.UNKNOWN_MEMBER_ID
        return NONE if generation == self.generation else KafkaError.ILLEGAL_GENERATION

    def _rebalance(self, *why: object) -> None:
        self._world.trace("group", self.name, *why)
        if not self.members:
            self.phase = Phase.EMPTY
            self.generation += 1
            self._round += 1
            return
        if self.phase is not Phase.PREPARING:
            delay = INITIAL_DELAY_S if self.phase is Phase.EMPTY else 0.0
            self.phase = Phase.PREPARING
            self._round += 1
            self._world.at(delay, self._try_complete, self._round)
            longest = max(member.rebalance_s for member in self.members.values())
            self._world.at(longest, self._drop_absent, self._round)
        else:
            self._world.at(0.0, self._try_complete, self._round)

    def _try_complete(self, number: int) -> None:
        if self.phase is not Phase.PREPARING or number != self._round:
            return
        if any(member.reply is None for member in self.members.values()):
            return
        self.generation += 1
        self.phase = Phase.STABLE
        self._assign()
        self._world.trace("group", self.name, "generation", self.generation, len(self.members))
        for member in self.members.values():
            reply, member.reply = member.reply, None
            assert reply is not None
            self._touch(member)
            reply((NONE, Joined(member.name, self.generation)))

    def _drop_absent(self, number: int) -> None:
        if self.phase is Phase.PREPARING and number == self._round:
            for member in [m for m in self.members.values() if m.reply is None]:
                del self.members[member.name]
            self._rebalance("dropped the absent")

    def _assign(self) -> None:
        """Range: of each topic, consecutive partitions to the members in the order of their names."""
        names = sorted(self.members)
        self._assignment = {name: [] for name in names}
        for topic in sorted({topic for member in self.members.values() for topic in member.topics}):
            count = len(self._topics.by_name[topic].partitions)
            each, more = divmod(count, len(names))
            first = 0
            for place, name in enumerate(names):
                size = each + (1 if place < more else 0)
                self._assignment[name] += [LogPartition(topic, p) for p in range(first, first + size)]
                first += size

    def _touch(self, member: Member) -> None:
        member.seen_at = self._world.now
        self._world.at(member.session_s + 0.001, self._expire, member)

    def _expire(self, member: Member) -> None:
        if self.members.get(member.name) is not member or member.reply is not None:
            return
        if self._world.now - member.seen_at < member.session_s:
            return
        del self.members[member.name]
        self._rebalance("expired", member.name)


class Groups:
    """All groups of the broker."""

    def __init__(self, world: World, topics: Topics) -> None:
        self.by_name: dict[str, Group] = {}
        self._world = world
        self._topics = topics

    def group(self, name: str) -> Group:
        """Return a group, new if it was not there."""
        found = self.by_name.get(name)
        if found is None:
            found = self.by_name[name] = Group(self._world, self._topics, name)
        return found

    def end_transaction(self, group: str, producer_id: int, epoch: int, *, commit: bool) -> None:
        """A marker for a group's offsets."""
        self.group(group).end_transaction(producer_id, epoch, commit=commit)
