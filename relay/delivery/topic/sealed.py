"""Sealed Kafka transactions: outputs, monitor entries and offsets, between a begin entry and a seal.

A stray EndTxn of an earlier transaction can end this one early without any call failing (KAFKA-17754). The begin
entry and the seal make that visible: it either meets the broker's partition verification at the seal, or leaves a
begin without a seal, which is settled before anyone goes on.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import structlog

from relay.delivery.deadletter import DeadRecord
from relay.delivery.ports import Transaction
from relay.delivery.topic.position_note import PositionNote
from relay.delivery.topic.sightings import SOON_S, UNTOLD_MAX, Committed, Sightings, Watch
from relay.log.anchor import Anchor
from relay.message.envelope import OUT_DIGEST, OUT_INSTANCE, OUT_N, Headers, outgoing
from relay.message.errors import InDoubt
from relay.message.record import Appended, LogMessage, LogPartition
from relay.monitor.entries import Begin, InputRange, OutputStart, Page, Seal, SettleSeal, encode
from relay.monitor.ranges import RangeEntry
from relay.world import clock, randomness
from relay.world.crash import crash_point

log = structlog.get_logger("relay.topic")
WARN_S: Final = 600.0


@dataclass(slots=True)
class SealedWork:
    """All that one sealed transaction holds.

    ``pages``, ``settled`` and ``ranges`` name monitor partitions; ``claims`` are further monitor partitions that get begin and
    seal only. ``outputs`` are messages by output partition; ``taken_back`` are dead letters that these outputs make void; ``meanwhile`` runs in every wait for the broker;
    ``topic_ids`` (hexadecimal digits) and ``anchors`` go into the notes beside the positions, the latter into those of later
    transactions as well, until others are given. ``begun`` is called once the begin is acknowledged,
    before anything else is written, and ``written`` once outputs and dead letters are, before anything is stored.
    """

    positions: Mapping[LogPartition, int]
    membership: bytes
    inputs: list[InputRange] = field(default_factory=list)
    outputs: Mapping[LogPartition, Sequence[LogMessage]] = field(default_factory=dict)
    pages: list[tuple[int, Page]] = field(default_factory=list)
    dead: list[DeadRecord] = field(default_factory=list)
    dead_pages: list[tuple[int, Page]] = field(default_factory=list)
    taken_back: list[DeadRecord] = field(default_factory=list)
    settled: list[tuple[int, SettleSeal]] = field(default_factory=list)
    ranges: list[tuple[int, RangeEntry]] = field(default_factory=list)
    claims: set[int] = field(default_factory=set)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    anchors: Mapping[LogPartition, Anchor] = field(default_factory=dict)
    meanwhile: Callable[[], bool] | None = None
    begun: Callable[[], None] | None = None
    written: Callable[[], None] | None = None


class SealedProducer:
    """Runs sealed transactions on one instance; after any exception the instance must be discarded."""

    def __init__(
        self,
        transaction: Transaction,
        worker: str,
        monitor_topic: str,
        floors: dict[LogPartition, int],
        watch: Watch | None = None,
        output_id: bytes = b"",
        anchors: Mapping[LogPartition, Anchor] | None = None,
    ) -> None:
        self._output_id = output_id
        self.instance = randomness.uuid_bytes()
        self.n = 0
        self._watch = watch
        self._sightings = Sightings()
        self._to_say: dict[int, int] = {}
        self._said: dict[int, int] = {}
        self._warn_at = float("-inf")
        self._worker = worker
        self._monitor = monitor_topic
        self._floors = floors
        self._begun: dict[int, int] = {}
        self._begin_offsets: dict[int, int] = {}
        self._starts: dict[LogPartition, int] = {}
        self._anchors: dict[LogPartition, Anchor] = {**(anchors or {})}
        self._tx = transaction

    @property
    def transactional_id(self) -> str:
        """The transactional id of the instance."""
        return self._tx.transactional_id

    def begin_offset(self, partition: int) -> int | None:
        """Offset of this instance's last begin entry in a monitor partition: below it everything is decided."""
        return self._begin_offsets.get(partition)

    def written_to(self, partition: int) -> int:
        """Return the offset behind what this instance has written in a monitor partition, 0 for nothing."""
        return self.behind(LogPartition(self._monitor, partition))

    def behind(self, place: LogPartition) -> int:
        """Return the offset behind the last record that was acknowledged to this instance in any partition, 0 for none."""
        return self._tx.acked.get(place, -1) + 1

    def discard(self) -> None:
        """Throw the instance away; its successor's ``init`` ends what it left open."""
        self._tx.discard()
        if self._watch is not None:
            self._watch.close()

    def look(self, now: float) -> None:
        """Between batches: ask whether outputs are closed by now. Raises InDoubt if one hangs for sure."""
        if self._watch is None:
            return
        ends = self._watch.ends(self._sightings.places)
        self._sightings.seen(ends)
        for place in self._sightings.overdue(now):
            self._hangs(place, ends)

    @property
    def news(self) -> dict[int, int]:
        """Return, by monitor partition, the last n with outputs, where these were seen closed and no begin there has said so yet."""
        closed = self._sightings.closed
        return {partition: n for partition, n in self._to_say.items() if self._said.get(partition, 0) < n <= closed}

    def run(self, work: SealedWork) -> None:
        """Run one sealed transaction.

        1. begin entry to every monitor partition it will write, acknowledged;
        2. dead letters with their entries, then outputs with theirs;
        3. every delivery report;
        4. offsets of every input partition under the membership captured with the batch;
        5. what takes dead letters back, and the seal to the same monitor partitions, acknowledged: refused by the broker
           if an EndTxn landed in between;
        6. commit, and wait until the monitor shows it: whatever follows might abort what hangs there.

        Any exception means: outcome unknown, discard this instance and recover.
        """
        self.n += 1
        touched = work.claims | {p for p, _ in work.pages} | {p for p, _ in work.dead_pages} | {p for p, _ in work.settled}
        touched |= {p for p, _ in work.ranges}
        self._tx.meanwhile = work.meanwhile
        self._tx.begin()
        crash_point("sealed.begun")
        self._write_begin(work, sorted(touched))
        crash_point("sealed.announced")
        if work.begun is not None:
            work.begun()
        self._write_dead(work)
        self._write_outputs(work)
        crash_point("sealed.outputs")
        for partition, settle in work.settled:
            self._tx.produce(LogPartition(self._monitor, partition), *encode(settle))
        for partition, entry in work.ranges:
            self._tx.produce(LogPartition(self._monitor, partition), *encode(entry))
        self._write_pages(work.pages, first=len(work.dead_pages))
        crash_point("sealed.entries")
        self._tx.flush()
        if work.written is not None:
            work.written()
        crash_point("sealed.flushed")
        self._tx.send_offsets(work.positions, self._notes(work), work.membership)
        crash_point("sealed.offsets")
        self._take_back(work)
        self._seal(sorted(touched))
        crash_point("sealed.committing")
        committing_at = clock.monotonic()
        self._tx.commit()
        crash_point("sealed.committed")
        self._see(work, sorted(touched), committing_at)

    def _see(self, work: SealedWork, touched: list[int], committing_at: float) -> None:
        """Wait until the seal shows. Closed alone would not do: a late copy of a request opens an empty transaction, and
        when that times out it aborts what hangs."""
        self._sightings.committed(
            Committed(
                self.n,
                {place: self._tx.acked[place] for place in self._starts},
                self._starts,
                {partition: self._begin_offsets[partition] for partition in touched},
                sum(map(len, work.outputs.values())) + len(work.dead),
            )
        )
        if self._starts:
            self._to_say.update(dict.fromkeys(touched, self.n))
        ends: Mapping[LogPartition, int] = {}
        if self._watch is not None:
            needed = {place: self._tx.acked[place] for place in (LogPartition(self._monitor, one) for one in touched)}
            ends = self._watch.wait(needed, self._sightings.places, work.meanwhile)
            if clock.monotonic() - committing_at > SOON_S and not self._watch.show(needed):
                raise InDoubt(f"transaction {self.n} was called committed, and was aborted where it hung")
            self._sightings.seen(ends)
        self._forget(ends)

    def _forget(self, ends: Mapping[LogPartition, int]) -> None:
        """Keep no more in mind than the bounds allow. Raises InDoubt if an output hides its own transaction."""
        if not self._sightings.is_over():
            return
        hidden = sorted(self._sightings.hidden(ends))
        told = [self._hangs(place, ends) for place in hidden]
        if None in told and not self._sightings.is_over(UNTOLD_MAX):
            return
        self._sightings.believe()
        self._warn(hidden)

    def _hangs(self, place: LogPartition, ends: Mapping[LogPartition, int]) -> bool | None:
        """Raise InDoubt if a transaction hangs there for sure; None: nobody can tell now."""
        found = self._watch.is_first(place, ends[place], self.instance) if self._watch is not None and place in ends else None
        if found:
            raise InDoubt(f"transaction {self._sightings.closed + 1} was called committed, and hangs in {place.topic}[{place.partition}]")
        return found

    def _warn(self, hidden: Sequence[LogPartition]) -> None:
        """A stranger's transaction, most likely, and no reason to stop: readers of the outputs wait for it as well."""
        now = clock.monotonic()
        if now >= self._warn_at:
            self._warn_at = now + WARN_S
            log.warning(
                "outputs stay hidden behind somebody's open transaction; what was committed is taken for shown",
                partitions=[f"{place.topic}[{place.partition}]" for place in hidden],
            )

    def _write_begin(self, work: SealedWork, touched: list[int]) -> None:
        starts = set(work.outputs) | {dead.partition for dead in work.dead}
        self._starts = {place: self._floor(place) for place in starts}
        outputs = [OutputStart(p.topic, p.partition, self._starts[p]) for p in sorted(starts)]
        closed, unseen = self._sightings.closed, self._sightings.unseen()
        for partition in touched:
            begin = Begin(
                worker=self._worker,
                transactional_id=self.transactional_id,
                instance=self.instance,
                n=self.n,
                previous=self._begun.get(partition, -1),
                inputs=[one for one in work.inputs if one.partition == partition],
                outputs=outputs,
                closed=closed,
                since=self._sightings.since(partition),
                unseen=unseen,
                output_id=self._output_id,
            )
            self._tx.produce(LogPartition(self._monitor, partition), *encode(begin))
            self._begun[partition] = self.n
            self._said[partition] = closed
        self._tx.flush()
        for partition in touched:
            self._begin_offsets[partition] = self._tx.acked[LogPartition(self._monitor, partition)]

    def _floor(self, partition: LogPartition) -> int:
        """The offset below which no record of the next transaction can lie."""
        acked = self._tx.acked.get(partition)
        return acked + 1 if acked is not None else self._floors[partition]

    def _write_dead(self, work: SealedWork) -> None:
        if not work.dead and not work.dead_pages:
            return
        for dead in work.dead:
            self._tx.produce(dead.partition, dead.key, dead.value, dead.headers + self._stamp(bytes.fromhex(dead.key.decode())))
        self._write_pages(work.dead_pages, first=0)
        self._tx.flush()
        crash_point("sealed.dead")

    def _write_outputs(self, work: SealedWork) -> None:
        for partition, messages in work.outputs.items():
            records = self._records(messages)
            # The last record tells how far the outputs reach, the others only that they did not fail.
            self._tx.produce_all(partition, islice(records, len(messages) - 1))
            self._tx.produce(partition, *next(records))

    def _take_back(self, work: SealedWork) -> None:
        """Say which dead letters count no more: behind the acknowledged outputs, since a stray end may publish a prefix.

        Without our marks: a settlement must not take it for the message's output, or for its dead letter.
        """
        for one in work.taken_back:
            self._tx.produce(one.partition, one.key, one.value, one.headers)

    def _records(self, messages: Iterable[LogMessage]) -> Iterator[Appended]:
        """Yield the output of each message, with the marks that settlement looks for."""
        instance, n = self._marks()
        for message in messages:
            # Intake has stripped what must not leave the log from messages of no capture.
            kept = message.headers if message.capture is None else outgoing(message.headers)
            headers = [*kept, instance, n, (OUT_DIGEST, hexlify(message.digest))]
            yield message.key, message.value, headers, message.timestamp_ms

    def _write_pages(self, pages: list[tuple[int, Page]], first: int) -> None:
        """Write pages under numbers of their own: a compacted topic must not take one for another's newer form."""
        for number, (partition, page) in enumerate(pages, first):
            self._tx.produce(LogPartition(self._monitor, partition), *encode(page, number))

    def _seal(self, touched: list[int]) -> None:
        seal = Seal(self._worker, self.instance, self.n)
        for partition in touched:
            self._tx.produce(LogPartition(self._monitor, partition), *encode(seal))
        self._tx.flush()

    def _notes(self, work: SealedWork) -> dict[LogPartition, str]:
        self._anchors.update(work.anchors)
        ids = {place: work.topic_ids[place.topic] for place in work.positions if place.topic in work.topic_ids}
        return {p: PositionNote(one, self.instance, self.n, self._anchors.get(p)).text for p, one in ids.items()}

    def _marks(self) -> tuple[tuple[str, bytes], tuple[str, bytes]]:
        return (OUT_INSTANCE, self.instance.hex().encode()), (OUT_N, str(self.n).encode())

    def _stamp(self, digest: bytes) -> Headers:
        return [*self._marks(), (OUT_DIGEST, digest.hex().encode())]
