"""The simulated client's consumer: by hand, or as a member of a group whose background joins, beats and loses.

Rebalances are served inside ``consume``; what was collected before one may still be returned after it
(confluent-kafka-python #1013).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from confluent_kafka import KafkaError, TopicPartition

from relay.message.record import LogPartition
from tests.simulation.broker import Placed
from tests.simulation.broker_groups import Group, Joined
from tests.simulation.network import Reply
from tests.simulation.producer import METADATA_PREFIX
from tests.simulation.scheduler import Waiters
from tests.simulation.site import BACKOFF_S, Client, Cluster, Done, error, failure

ALSO_STABLE: Final = frozenset({KafkaError.UNSTABLE_OFFSET_COMMIT})
LOST: Final = frozenset({KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION})

OnRebalance = Callable[[Any, list[TopicPartition]], None]


class Event(Placed):
    """An end of partition, or an error of one."""

    __slots__ = ("_code",)

    def __init__(self, place: LogPartition, offset: int, code: int) -> None:
        super().__init__(place, offset)
        self._code = code

    def error(self) -> KafkaError:
        return error(self._code)


class Place:
    """Where a partition is read."""

    __slots__ = ("at", "ended_at", "failed")

    def __init__(self, at: int) -> None:
        self.at = at
        self.ended_at = -1
        self.failed = False


class SimConsumer(Client):
    """Takes the place of ``confluent_kafka.Consumer``."""

    def __init__(self, cluster: Cluster, settings: Mapping[str, Any]) -> None:
        super().__init__(cluster, settings.get("socket.timeout.ms", 60_000) / 1000)
        self._committed = settings.get("isolation.level", "read_committed") == "read_committed"
        self._with_ends = bool(settings.get("enable.partition.eof", False))
        self._name: str = settings.get("group.id", "")
        self._coordinator = self.connect("group")
        self._places: dict[LogPartition, Place] = {}
        self._waiters = Waiters(self.world)
        self.polled_at = self.world.now
        self.events: list[Event] = []
        self._settings = settings
        self._member: Membership | None = None

    def subscribe(
        self, topics: list[str], on_assign: OnRebalance, on_revoke: OnRebalance, on_lost: OnRebalance
    ) -> None:
        """Become a member; everything that follows is served by ``consume``."""
        self._member = Membership(self, self._settings, topics, on_assign, on_revoke, on_lost)

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.world.call()
        self._places = {LogPartition(t.topic, t.partition): Place(t.offset) for t in partitions}

    def unassign(self) -> None:
        self.world.check()
        self._places = {}

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        """Return what is there, waiting until the time is over for all of ``num_messages``."""
        world = self.world
        world.call()
        self.polled_at = world.now
        limit = world.now + max(timeout, 0.0001)
        found, self.events = list(self.events), []
        while True:
            if self._member is not None and self._member.serve() and world.rng.random() < 0.5:
                found = []
            if not self.cluster.network.is_cut_off(self.process):
                self._collect(found, num_messages)
            if len(found) >= num_messages or world.now >= limit:
                return found
            self._waiters.wait(limit - world.now)

    def poll(self, timeout: float = 0.0) -> Any:
        """Return one message or event."""
        found = self.consume(1, timeout)
        return found[0] if found else None

    def _collect(self, found: list[Any], wanted: int) -> None:
        cluster = self.cluster
        names = list(self._places)
        if len(names) > 1:
            self.world.rng.shuffle(names)
        for name in names:
            if cluster.network.is_paused(cluster.leader_of(name)) or self.world.now < cluster.topics.by_name[name.topic].known_at:
                continue
            place = self._places[name]
            partition = cluster.topics.partition(name)
            if place.at < partition.start or place.at > partition.end:
                if not place.failed:
                    place.failed = True
                    found.append(Event(name, place.at, KafkaError._AUTO_OFFSET_RESET))
                continue
            room = wanted - len(found)
            if room <= 0:
                return
            records, place.at = partition.read(place.at, room, committed=self._committed)
            found += records
            end = partition.stable_end if self._committed else partition.end
            if self._with_ends and place.at >= end and place.ended_at != place.at and len(found) < wanted:
                place.ended_at = place.at
                found.append(Event(name, place.at, KafkaError._PARTITION_EOF))

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float = 10.0, **_: Any) -> tuple[int, int]:
        """ListOffsets under the consumer's isolation level: read_committed gets the last stable offset."""
        place = self.cluster.topics.partition(LogPartition(partition.topic, partition.partition))
        code, marks = self.wait_for(
            lambda done: self.repeat(
                self.leader(place.place),
                "ListOffsets",
                lambda: (0, (place.start, place.stable_end if self._committed else place.end)),
                done,
            ),
            timeout,
        )
        if code:
            raise failure(code)
        found: tuple[int, int] = marks
        return found

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float = 10.0) -> list[TopicPartition]:
        """ListOffsets for the time "latest", by one request to each leader."""
        by_leader: dict[int, list[LogPartition]] = {}
        for one in partitions:
            place = LogPartition(one.topic, one.partition)
            by_leader.setdefault(self.cluster.leader_of(place), []).append(place)
        found: list[TopicPartition] = []
        for _, places in sorted(by_leader.items()):
            code, ends = self.wait_for(partial(self._ask_ends, places), timeout)
            if code:
                raise failure(code)
            found += [TopicPartition(*place, end) for place, end in zip(places, ends, strict=True)]
        return found

    def _ask_ends(self, places: list[LogPartition], done: Done) -> None:
        topics = self.cluster.topics

        def ask() -> tuple[int, list[int]]:
            logs = [topics.partition(place) for place in places]
            return 0, [log.stable_end if self._committed else log.end for log in logs]

        self.repeat(self.leader(places[0]), "ListOffsets", ask, done)

    def list_topics(self, topic: str, timeout: float = -1) -> Any:
        """Metadata of one topic, as far as it is asked for: how many partitions it has."""
        self.world.sleep(0.002)
        partitions = self.cluster.topics.by_name[topic].partitions
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=dict(enumerate(partitions)), error=None)})

    def consumer_group_metadata(self) -> bytes:
        """As the client lays it out: generation, group, member."""
        self.world.check()
        generation, name = (self._member.generation, self._member.name) if self._member is not None else (-1, "")
        return METADATA_PREFIX + struct.pack("<i", generation) + self._name.encode() + b"\0" + name.encode() + b"\0"

    def committed(self, partitions: list[TopicPartition], timeout: float = 10.0) -> list[TopicPartition]:
        """OffsetFetch of stable offsets; waits while some are pending."""
        group = self.cluster.groups.group(self._name)
        wanted = [LogPartition(t.topic, t.partition) for t in partitions]
        code, found = self.wait_for(
            lambda done: self.repeat(
                self._coordinator, "OffsetFetch", lambda: group.fetch(wanted), done, ALSO_STABLE
            ),
            timeout,
        )
        if code:
            raise failure(code)
        made = []
        for place in wanted:
            offset, note = found.get(place, (-1001, ""))
            made.append(TopicPartition(place.topic, place.partition, offset, note))
        return made

    def commit(self, offsets: list[TopicPartition], asynchronous: bool = True) -> list[TopicPartition] | None:
        """OffsetCommit under the present membership."""
        self.world.call()
        group = self.cluster.groups.group(self._name)
        generation, name = (self._member.generation, self._member.name) if self._member is not None else (-1, "")
        positions = {LogPartition(t.topic, t.partition): (t.offset, t.metadata or "") for t in offsets}

        def ask() -> tuple[int, None]:
            return group.commit(name, generation, positions), None

        if asynchronous:
            self.repeat(self._coordinator, "OffsetCommit", ask, lambda _code, _answer: None)
            return None
        code, _ = self.wait_for(lambda done: self.repeat(self._coordinator, "OffsetCommit", ask, done), 1e9)
        if code:
            raise failure(code)
        return offsets

    def hear(self) -> None:
        """Serve what there is to say: nobody here is refused."""

    def close(self) -> None:
        """Leave the group, serving a last revocation; a dead process closes nothing."""
        if not self.process.alive:
            return
        if self._member is not None:
            self._member.leave()
        self.closed = True
        self._places = {}

    def wake(self) -> None:
        """Something waits to be served by ``consume``."""
        self._waiters.wake_all()


class Membership:
    """The background of a group member: join, sync, heartbeat, and what the application must be told."""

    def __init__(
        self,
        consumer: SimConsumer,
        settings: Mapping[str, Any],
        topics: list[str],
        on_assign: OnRebalance,
        on_revoke: OnRebalance,
        on_lost: OnRebalance,
    ) -> None:
        self.generation = -1
        self.name = ""
        self._consumer = consumer
        self._process = consumer.process
        self._world = consumer.world
        self._connection = consumer.connect("membership")
        self._session_s = settings["session.timeout.ms"] / 1000
        self._beat_s = settings["heartbeat.interval.ms"] / 1000
        self._poll_s = int(settings.get("max.poll.interval.ms", 300_000)) / 1000
        self._group: Group = consumer.cluster.groups.group(settings["group.id"])
        self._topics = tuple(topics)
        self._callbacks = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        self._ops: deque[tuple[str, list[LogPartition]]] = deque()
        self._assigned: list[LogPartition] | None = None
        self._leaving = False
        self._round = 0
        self._heard_at = self._world.now
        self._join()

    def serve(self) -> bool:
        """Serve what waits: callbacks run here, in the application's call."""
        served = False
        while self._ops:
            kind, partitions = self._ops.popleft()
            served = True
            self._world.trace(self._process.name, kind, *[f"{p.topic}[{p.partition}]" for p in partitions])
            self._callbacks[kind](self._consumer, [TopicPartition(p.topic, p.partition) for p in partitions])
            if kind == "assign":
                self._assigned = partitions
            elif not self._leaving:
                self._assigned = None
                self._join()
        return served

    def leave(self) -> None:
        """Give the partitions back and leave."""
        self._leaving = True
        self._round += 1
        if self._assigned is not None:
            self._ops.clear()
            self._ops.append(("revoke", self._assigned))
            self.serve()
        name = self.name
        self.generation, self.name = -1, ""
        if name:
            self._connection.request("LeaveGroup", lambda reply: reply(self._group.leave(name)), lambda *_: None, 1.0)

    def _join(self) -> None:
        self._round += 1
        number = self._round
        name = self.name

        def handle(reply: Reply) -> None:
            self._group.join(name, self._session_s, self._poll_s, self._topics, reply)

        def answered(code: int, answer: Any) -> None:
            if number != self._round or self._leaving:
                return
            joined: Joined | None = None
            if code == 0:
                code, joined = answer
            if code == 0 and joined is not None:
                self.name, self.generation = joined
                self._heard_at = self._world.now
                self._sync(number)
                return
            if code == KafkaError.UNKNOWN_MEMBER_ID:
                self.name = ""
            self._process.at(self._world.rng.uniform(*BACKOFF_S), self._join_again, number)

        self._connection.request("JoinGroup", handle, answered, self._poll_s + 3.0)

    def _join_again(self, number: int) -> None:
        if number == self._round and not self._leaving:
            self._join()

    def _sync(self, number: int) -> None:
        name, generation = self.name, self.generation

        def answered(code: int, answer: Any) -> None:
            if number != self._round or self._leaving:
                return
            partitions: list[LogPartition] | None = None
            if code == 0:
                code, partitions = answer
            if code == 0 and partitions is not None:
                self._tell("assign", partitions)
                self._heard_at = self._world.now
                self._process.at(self._beat_s, self._beat, number)
                return
            if code in LOST:
                self._forget(code)
            self._join_again(number)

        self._connection.request(
            "SyncGroup", lambda reply: reply(self._group.sync(name, generation)), answered, self._session_s
        )

    def _beat(self, number: int) -> None:
        if number != self._round or self._leaving:
            return
        name, generation = self.name, self.generation
        if self._world.now - self._consumer.polled_at > self._poll_s:
            self._expel()
            return

        def answered(code: int, answer: Any) -> None:
            if number != self._round or self._leaving:
                return
            if code == 0:
                code = answer
                if code in (0, KafkaError.REBALANCE_IN_PROGRESS):
                    self._heard_at = self._world.now
                if code == KafkaError.REBALANCE_IN_PROGRESS:
                    self._give_back("revoke")
                elif code in LOST:
                    self._forget(code)
                    self._give_back("lost")
            if self._world.now - self._heard_at > self._session_s:
                self._forget(KafkaError.UNKNOWN_MEMBER_ID)
                self._give_back("lost")

        self._connection.request(
            "Heartbeat",
            lambda reply: reply(self._group.heartbeat(name, generation)),
            answered,
            min(self._session_s, 3.0),
        )
        self._process.at(self._beat_s, self._beat, number)

    def _give_back(self, kind: str) -> None:
        """The application must let go before the member joins again; it keeps beating until then."""
        if any(waiting in ("revoke", "lost") for waiting, _ in self._ops):
            return
        assigned = self._assigned
        waiting = next((partitions for op, partitions in self._ops if op == "assign"), None)
        if assigned is None and waiting is None:
            self._join()
            return
        self._tell(kind, assigned if assigned is not None else waiting or [])

    def _expel(self) -> None:
        """The application was silent for too long: leave, and tell it when it polls again."""
        name = self.name
        self._round += 1
        self.generation, self.name = -1, ""
        self._connection.request("LeaveGroup", lambda reply: reply(self._group.leave(name)), lambda *_: None, 1.0)
        for place in self._assigned or [LogPartition(self._topics[0], 0)]:
            self._consumer.events.append(Event(place, -1001, KafkaError._MAX_POLL_EXCEEDED))
        self._tell("lost", self._assigned or [])

    def _forget(self, code: int) -> None:
        self.generation = -1
        if code == KafkaError.UNKNOWN_MEMBER_ID:
            self.name = ""

    def _tell(self, kind: str, partitions: list[LogPartition]) -> None:
        self._ops.append((kind, partitions))
        self._consumer.wake()
