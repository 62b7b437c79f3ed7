"""Collects what ``relay status`` needs, without joining a group or writing anything; every read has a bound."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self

from relay.config.model import RelayConfig, ResourceConfig
from relay.config.routes import QueueDestination, RouteConfig, TopicDestination
from relay.control.dead_letters import letter_number, tells_more
from relay.control.positions import stored_positions
from relay.control.status import (
    AGED_SHARE,
    DeadLetters,
    RouteFacts,
    RouteView,
    beside,
    failing_handlers,
    next_by_size,
    view,
)
from relay.kafka import settings
from relay.kafka.groups import Groups
from relay.kafka.reading import PartitionReader
from relay.kafka.scan import broker_time
from relay.kafka.topics import TopicFacts, Topics, numeric_setting
from relay.message.envelope import DEAD_CODE, DEAD_REPLAY, DEAD_ROUTE, REDRIVEN
from relay.message.errors import ConfigError, InDoubt, Unreachable
from relay.message.record import LogPartition, Record, headers_if_any
from relay.run.queues import database_of
from relay.run.status_record import KEY_PREFIX, StatusRecord, decode
from relay.world import clock

CONTROL_RECORDS_MAX: Final = 50_000
"""Compaction leaves the latest of each key, but not at once: workers write every two seconds meanwhile."""
CONTROL_EARLIER_MAX: Final = 200_000
"""Records from before those offsets: of workers that ended long ago, and of little else once compaction was there."""
DEAD_LETTERS_MAX: Final = 10_000
"""Per partition, the latest; a count over more is said to be incomplete."""
BESIDE_MAX: Final = 20
"""So many routes of others are named at most: whoever may write to the topic makes up their names."""
DEAD_LETTERS_KEPT: Final = 200_000
"""Some 60 MB. Who looks for weeks would else keep every one there ever was, in the very hours in which all messages die."""
TIMEOUT_S: Final = 5.0
RETENTION_READ_EVERY_S: Final = 60.0


class _Tail:
    """Reads a topic from a bounded distance before its end, and from there on at every further call.

    ``earlier`` bounds how many records from before that distance are read first: compaction takes records and leaves
    offsets, so that whoever wrote last weeks ago lies far back, with little in between.
    """

    def __init__(self, reader: PartitionReader, most: int, earlier: int = 0) -> None:
        self._reader = reader
        self._most = most
        self._earlier = earlier
        self._next: dict[LogPartition, int] = {}
        self.complete = True

    def read(self, topic: str, partitions: int, take: Callable[[Record], None]) -> None:
        """Give every record not given before to ``take``; raises Unreachable."""
        ranges: dict[LogPartition, tuple[int, int]] = {}
        before: dict[LogPartition, tuple[int, int]] = {}
        for number in range(partitions):
            partition = LogPartition(topic, number)
            low, high = self._reader.watermarks(partition)
            wanted = self._next.get(partition, low)
            # An end before the place read up to: the topic is another one under the same name.
            wanted = wanted if wanted <= high else low
            first = max(wanted, low, high - self._most)
            before[partition], ranges[partition] = (wanted, first), (first, high)
        self.complete = self._read_earlier(before, take) and self.complete
        for batch in self._reader.read(ranges):
            for record in batch:
                take(record)
        self._next = {partition: end for partition, (_, end) in ranges.items()}

    def _read_earlier(self, ranges: Mapping[LogPartition, tuple[int, int]], take: Callable[[Record], None]) -> bool:
        """Give what lies there, as far as the bound allows; return whether that was all."""
        if not self._earlier:
            return all(first == end for first, end in ranges.values())
        left = self._earlier
        for batch in self._reader.read(ranges):
            for record in batch[:left]:
                take(record)
            left -= len(batch)
            if left < 0:
                return False
        return True


class SeenLetters:
    """Dead letters by route and digest: the last word about each, of the ``most`` that came last."""

    def __init__(self, most: int = DEAD_LETTERS_KEPT) -> None:
        self._most = most
        self._known: dict[tuple[str, bytes], tuple[int, str]] = {}
        self._is_whole = True

    def take(self, record: Record) -> None:
        """Take a record of the topic; what is no letter is passed over."""
        headers = dict(headers_if_any(record))
        route, code = headers.get(DEAD_ROUTE), headers.get(DEAD_CODE)
        if not isinstance(route, bytes):
            return
        # A table route may write one twice: the digest in the key counts once.
        key = (route.decode("utf-8", "replace")[:100], bytes(record.key() or b"")[:64])
        replay = letter_number((headers.get(DEAD_REPLAY) or b"").decode("utf-8", "replace"))
        cause = (code or b"unknown").decode("utf-8", "replace")[:100]
        if key not in self._known or tells_more(replay, cause, *self._known[key]):
            self._known[key] = replay, cause
            if len(self._known) > self._most:
                del self._known[next(iter(self._known))]
                self._is_whole = False

    def of(self, route: str, *, complete: bool) -> DeadLetters:
        """Return what is dead of a route, without what a redrive took back; ``complete``: all of the topic was taken."""
        causes = Counter(code for (name, _), (_, code) in self._known.items() if name == route and code != REDRIVEN)
        return DeadLetters(causes.total(), causes, complete and self._is_whole)

    def beside(self, routes: Collection[str]) -> Iterator[str]:
        """Yield a sentence for each route that these do not name and that has dead letters: no route shows them."""
        counts = Counter(name for (name, _), (_, code) in self._known.items() if name not in routes and code != REDRIVEN)
        for name, count in sorted(counts.items())[:BESIDE_MAX]:
            yield f"route {name} is not in this configuration and has dead letters ({count}); `relay deadletter list` shows them"


class _Retention(NamedTuple):
    """How long a topic keeps a record, and how many bytes of a partition; not above 0: without end.

    With fewer than ``least`` records a partition cannot be as large as that.
    """

    ms: int
    size: int
    least: int


def _retention(told: Mapping[str, str]) -> _Retention:
    ms, size, largest = (numeric_setting(told, key, -1) for key in ("retention.ms", "retention.bytes", "max.message.bytes"))
    return _Retention(ms, size, size // max(largest, 1))


class StatusReader:
    """Reads again and again for ``--watch``; the second time only what is new. Use as a context."""

    def __init__(self, config: RelayConfig, timeout_s: float = TIMEOUT_S) -> None:
        self._config = config
        self._topics = Topics(config.kafka, config.timing, timeout_s)
        self._groups = Groups(config.kafka, config.timing, timeout_s)
        # The group is only a name in the client's settings: partitions are assigned by hand, nothing is committed.
        given = settings.consumer(config.kafka, config.timing, f"{config.relay.name}.status", log_level=0)
        self._readers = [
            PartitionReader(given, committed=committed, clock=clock.monotonic, deadline_s=timeout_s)
            for committed in (False, True)
        ]
        self._control = _Tail(self._readers[0], CONTROL_RECORDS_MAX, CONTROL_EARLIER_MAX)
        # Dead letters of an aborted delivery transaction never were.
        self._deadletter = _Tail(self._readers[1], DEAD_LETTERS_MAX)
        self._retention: dict[str, _Retention] = {}
        self._retention_at = float("-inf")
        self._new: dict[bytes, tuple[bytes, int]] = {}
        """By its key each worker's last record that is not decoded yet, and when the broker took it."""
        self._latest: dict[bytes, StatusRecord | None] = {}
        """The last word of each worker that there ever was; None for one of another version."""
        self._records: list[StatusRecord] = []
        self._dead = SeenLetters()
        self.notes: list[str] = []
        self.unseen: Unreachable | None = None
        """Which database was away: what is read without it may lack what needs somebody."""
        self._away: dict[str, Unreachable] = {}
        """By its address each database that was away at this reading: it is waited for once, not for each route."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reader in self._readers:
            reader.close()
        self._groups.close()
        self._topics.close()

    def read(self) -> list[RouteView]:
        """Return every route as it is now, with ``notes`` on what could not be seen, and ``unseen``.

        Raises Unreachable (brokers), ConfigError (the relay's topics are missing).
        """
        config = self._config
        self.notes = []
        self.unseen = None
        self._away = {}
        logs = config.log_topics
        found = self._topics.describe({*logs, config.control_topic, config.deadletter_topic}, settings=False)
        for name in (config.control_topic, config.deadletter_topic):
            if name not in found:
                raise ConfigError(f"topic = {name}: it does not exist; run `relay migrate {shlex.quote(str(config.path))}`")
        self._read_tail(self._control, found[config.control_topic], self._take_status)
        if not self._control.complete:
            self.notes.append(
                f"{config.control_topic}: not all of it was read, and workers that ended long ago may be missing; is "
                "it compacted?"
            )
        self._read_tail(self._deadletter, found[config.deadletter_topic], self._dead.take)
        self._read_retention(logs & found.keys())
        self._records = records = self._decoded()
        # The time is read after the records: one that comes later is simply newer.
        now_ms = clock.wall_ms()
        self.notes += beside(records, config.routes, now_ms)
        self.notes += failing_handlers(records, now_ms)
        self.notes += self._dead.beside(config.routes)
        return [view(self._facts(route, found, records), now_ms) for route in config.routes.values()]

    def _read_tail(self, tail: _Tail, facts: TopicFacts, take: Callable[[Record], None]) -> None:
        try:
            tail.read(facts.name, facts.partitions, take)
        except InDoubt as stuck:
            # Go on with what was read: a status that says what it lacks beats none.
            self.notes.append(f"{facts.name}: {stuck}")

    def _take_status(self, record: Record) -> None:
        key, value = record.key(), record.value()
        if not isinstance(key, bytes) or not key.startswith(KEY_PREFIX):
            return
        if value is None:
            self._new.pop(key, None)
            self._latest.pop(key, None)
        else:
            self._new[key] = value, broker_time(record)

    def records(self) -> list[StatusRecord]:
        """Return the last word of every worker that the last reading found, whether it lives or not."""
        return self._records

    def _decoded(self) -> list[StatusRecord]:
        self._latest |= {key: decode(value, taken_at) for key, (value, taken_at) in self._new.items()}
        self._new.clear()
        records = []
        for key, record in self._latest.items():
            if record is None:
                self.notes.append(
                    f"{self._config.control_topic}: {key[:100]!r} is no status record of this version"
                )
            elif record.relay == self._config.relay.name:
                records.append(record)
        return records

    def _facts(
        self, route: RouteConfig, found: dict[str, TopicFacts], records: list[StatusRecord]
    ) -> RouteFacts:
        ends: dict[LogPartition, int] = {}
        begins: dict[LogPartition, int] = {}
        for topic in route.from_:
            if topic not in found:
                self.notes.append(
                    f"topic = {topic}: route {route.name} reads it and it does not exist; create it, or correct `from` of the route"
                )
                continue
            for number, marks in self._topics.watermarks(topic, range(found[topic].partitions)).items():
                begins[LogPartition(topic, number)], ends[LogPartition(topic, number)] = marks
        committed = self._positions(route, found, ends)
        return RouteFacts(
            route=route,
            records=[record for record in records if record.route == route.name],
            ends=ends,
            committed=committed,
            dead=self._dead.of(route.name, complete=self._deadletter.complete),
            aged_below=self._aged_below(ends, committed or {}),
            begins=begins,
        )

    def _read_retention(self, topics: Iterable[str]) -> None:
        """Read how long topics keep a record; it changes seldom."""
        now = clock.monotonic()
        if now - self._retention_at < RETENTION_READ_EVERY_S:
            return
        try:
            facts = self._topics.describe(topics)
        except ConfigError:
            # Go on: without the right to read settings there is no such alarm, and everything else is as true.
            facts = {}
        self._retention = {name: _retention(one.settings) for name, one in facts.items()}
        self._retention_at = now

    def _aged_below(
        self, ends: Mapping[LogPartition, int], positions: Mapping[LogPartition, int]
    ) -> dict[LogPartition, int]:
        """Return below which offset records have used up most of their retention, where something waits."""
        behind: dict[str, list[int]] = {}
        for place, end in ends.items():
            if positions.get(place, end) < end and place.topic in self._retention:
                behind.setdefault(place.topic, []).append(place.partition)
        found: dict[LogPartition, int] = {}
        for topic, numbers in behind.items():
            retention = self._retention[topic]
            if retention.ms > 0:
                since = clock.wall_ms() - round(AGED_SHARE * retention.ms)
                for number, offset in self._topics.offsets_at(topic, numbers, since).items():
                    place = LogPartition(topic, number)
                    found[place] = ends[place] if offset is None else offset
            if retention.size > 0:
                for number, (low, high) in self._topics.watermarks(topic, numbers).items():
                    place = LogPartition(topic, number)
                    found[place] = max(found.get(place, 0), next_by_size(low, high, retention.least))
        return found

    def _positions(
        self, route: RouteConfig, found: dict[str, TopicFacts], ends: Mapping[LogPartition, int]
    ) -> dict[LogPartition, int] | None:
        """Return what the route's own place of truth has; None, with a note, if only its workers can tell."""
        config = self._config
        if isinstance(route.to, TopicDestination):
            return self._groups.committed(config.group_id(route.name), ends)
        topic_ids = {topic: found[topic].topic_id for topic in route.from_ if topic in found}
        try:
            if isinstance(route.to, QueueDestination):
                name, resource = f"queue {route.to.queue}", database_of(config, route.to.queue)
            else:
                name, resource = route.to.resource, config.resources[route.to.resource]
            return self._stored(name, resource, route.name, topic_ids)
        except (Unreachable, ConfigError) as error:
            if isinstance(error, Unreachable):
                self.unseen = error
            self.notes.append(f"route {route.name}: positions are those its workers told last; {error}")
            return None

    def _stored(
        self, name: str, resource: ResourceConfig, route: str, topic_ids: Mapping[str, bytes]
    ) -> dict[LogPartition, int]:
        place = resource.url.get_secret_value()
        if place in self._away:
            raise self._away[place]
        try:
            return stored_positions(name, resource, self._config.relay.name, route, topic_ids)
        except Unreachable as away:
            self._away[place] = away
            raise
