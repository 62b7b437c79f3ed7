"""Evidence of a topic route, read from the simulated broker's storage and by a reader on the way."""

from __future__ import annotations

from relay.message.record import LogPartition
from tests.simulation.broker import Partition as BrokerPartition
from tests.simulation.broker import StoredRecord
from tests.simulation.broker_transactions import State
from tests.simulation.crew import LOG, OUTPUT, RELAY, ROUTE
from tests.simulation.evidence import Effect, Evidence, Logged, MessageId, Sample, Seen
from tests.simulation.plain_producers import LARGE_BYTES
from tests.simulation.scheduler import World
from tests.simulation.site import Cluster

READ_PERIOD_S = 0.3


def message_id(record: StoredRecord) -> MessageId:
    """Return (source, id) of a record with CloudEvents headers."""
    headers = dict(record.headers() or ())
    return headers.get("ce_source", b"").decode(), headers.get("ce_id", b"").decode()


class Gathering:
    """Collects evidence while a run goes on, and the rest at its end."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        self.evidence = Evidence()
        self._world = world
        self._cluster = cluster
        self._logs = cluster.topics.by_name[LOG].partitions
        self._outputs = cluster.topics.by_name[OUTPUT].partitions
        self._dead = cluster.topics.by_name[f"{RELAY}.deadletter"].partitions
        self._reached: dict[tuple[str, int], int] = {}
        self._read_to = [0] * len(self._outputs)
        self._group = cluster.groups.group(f"{RELAY}.{ROUTE}")
        self._group.on_fall.append(self._position_falls)
        self._first = 0
        world.at(READ_PERIOD_S, self._read_on)

    def sample(self) -> None:
        """Note positions and effects as a crash leaves them: what the coordinator has decided counts as done.

        Also where a partition did not hear of it: until a recovery has looked nobody can do more.
        """
        effects = {message_id(record) for output in self._outputs for record in self._decided(output)}
        dead = {message_id(record) for topic in self._dead for record in self._decided(topic)}
        positions = {place: max(at, self._reached.get(place, 0)) for place, at in self._positions().items()}
        self.evidence.samples.append(Sample(self._world.now, positions, frozenset(effects | dead)))

    def begin_again(self, group: str, first: int) -> None:
        """The log is another topic by now, read by another group: its offsets count from ``first``."""
        self.sample()
        self._group.on_fall.clear()
        self._group = self._cluster.groups.group(group)
        self._group.on_fall.append(self._position_falls)
        self._logs = self._cluster.topics.by_name[LOG].partitions
        self._first = first
        self._reached = {}

    def finish(self, *, quiescent: bool) -> Evidence:
        """Return all evidence."""
        self._read_on()
        found = self.evidence
        found.quiescent = quiescent
        for log in self._logs:
            place = (LOG, log.place.partition)
            found.log_ends[place] = log.end
            for record in log.records:
                if record.control is None:
                    poison = len(record) >= LARGE_BYTES
                    found.log.append(
                        Logged(place, record.offset(), message_id(record), aborted=record.aborted, poison=poison)
                    )
        for output in self._outputs:
            for record in output.visible():
                writer = dict(record.headers() or ()).get("relay_instance", b"").decode()
                lane = f"{OUTPUT}[{output.place.partition}]"
                found.effects.append(
                    Effect(lane, (record.offset(),), message_id(record), writer, record.decided_at or 0.0)
                )
        found.dead = [message_id(record) for dead in self._dead for record in dead.visible()]
        found.positions = self._positions()
        return found

    def is_done(self) -> bool:
        """Is everything read, decided and delivered?"""
        positions = self._positions()
        written = (*self._outputs, *self._dead)
        return (
            all(
                log.stable_end == log.end and positions.get((LOG, log.place.partition), 0) >= log.end + self._first
                for log in self._logs
            )
            and all(one.stable_end == one.end for one in written)
            and not self._missing()
        )

    def _missing(self) -> set[MessageId]:
        """What the coordinator committed and a partition aborted since: somebody must still notice."""
        written = (*self._outputs, *self._dead)
        lost = {message_id(record) for one in written for record in one.records if record.left_out and record.aborted}
        return lost - {message_id(record) for one in written for record in one.visible()} if lost else lost

    def _positions(self) -> dict[tuple[str, int], int]:
        committed = self._group.committed
        return {(place.topic, place.partition): offset + self._first for place, (offset, _) in committed.items()}

    def _position_falls(self, place: LogPartition, offset: int, by_itself: bool) -> None:
        """A stored position is about to go back: a sample before and one after show it.

        Kafka does not number offset commits: a late copy of one lands in a later transaction of the same instance
        and puts the position back. That loses nothing, and a relay mends it; any other fall is an anomaly.
        """
        if by_itself:
            known = self._positions()[place.topic, place.partition]
            self._reached[place.topic, place.partition] = max(known, self._reached.get(tuple(place), 0))
            return
        self.sample()
        before = self.evidence.samples[-1]
        after = {**before.positions, (place.topic, place.partition): offset + self._first}
        self.evidence.samples.append(before._replace(positions=after))

    def _decided(self, partition: BrokerPartition) -> list[StoredRecord]:
        committing = {
            entry.producer_id
            for entry in self._cluster.transactions.entries.values()
            if entry.state is State.PREPARE_COMMIT
        }
        return [
            record
            for record in partition.records
            if record.control is None
            and (
                record.left_out
                or (not record.aborted and (record.decided_at is not None or record.producer_id in committing))
            )
        ]

    def _read_on(self) -> None:
        """The reader on the way: read_committed, a partition after the other."""
        for number, output in enumerate(self._outputs):
            records, self._read_to[number] = output.read(self._read_to[number], 1_000_000, committed=True)
            lane = f"{OUTPUT}[{number}]"
            for record in records:
                self.evidence.seen.append(
                    Seen("reader", lane, (record.offset(),), message_id(record), self._world.now)
                )
        self._world.at(READ_PERIOD_S, self._read_on)


def place(number: int) -> LogPartition:
    """Return a partition of the log."""
    return LogPartition(LOG, number)
