"""Recovery of a topic route: fence, read all evidence, settle what is unsealed, claim; then go on.

The steps of design section 7 (US 7,480,918), each of which may be interrupted and run again:

1. read the monitor partitions read_uncommitted; every transactional id with a begin and no end, and the last that
   claimed, is fenced by a throw-away producer; then our own instance is made and the committed offsets are read;
2. take the high watermarks, read_uncommitted;
3. read read_committed up to them;
4. settle: find out by the outputs themselves what an unsealed transaction left, and write it down; write again what a
   sealed one does not show (``unshown``);
5. in the same first transaction claim every owned partition. What neither monitor nor outputs prove is delivered.

Where the outputs cannot tell any more the partition is stuck until a person decides (``relay.delivery.topic.told``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Final, NamedTuple

import structlog

from relay.delivery.deadletter import UNTOLD, DeadRecord, Letters
from relay.delivery.evidence_reading import MonitorView, fold_committed, high_watermarks, scan_begins
from relay.delivery.inbox_messages import as_message, read_again
from relay.delivery.ports import Group, KafkaPorts, Reader, Starts, Transaction
from relay.delivery.topic.compaction import why_untold
from relay.delivery.topic.hanging import HangingTransactions
from relay.delivery.topic.old_leaders import check_shown, check_whole
from relay.delivery.topic.position_note import Stored, anchors_of, committed_by, is_hint, read_note
from relay.delivery.topic.sealed import SealedProducer, SealedWork
from relay.delivery.topic.sightings import Watch
from relay.delivery.topic.stamped_outputs import what_shows
from relay.delivery.topic.told import Persons
from relay.delivery.topic.unshown import (
    Again,
    Derive,
    Missing,
    Outputs,
    Row,
    Vanished,
    missing_of,
    passed,
    unshown,
    vanished,
)
from relay.message.errors import NAMESAKE_REMEDY, Fenced, Retriable, Stopped, TwinDetected, Unreachable
from relay.message.identity import CONTENT_BYTES, DIGEST_BYTES
from relay.message.record import LogPartition
from relay.monitor.entries import DEAD, Begin, Page, Proof, SettleSeal
from relay.monitor.index import DedupIndex
from relay.monitor.recovery import settle
from relay.monitor.resolution import Resolution
from relay.monitor.rows import split
from relay.transfer.cursor import InboxRow
from relay.world import clock
from relay.world.crash import crash_point

log = structlog.get_logger("relay.recovery")
FENCE_ROUNDS_MAX: Final = 5
UNDECIDED_MAX: Final = 3
"""So often a recovery is run again while it is not known that its own id has no undecided offsets."""
Rewrite = Callable[[list[Missing], set[LogPartition], bytes], Again]
"""Makes what a claim of this instance writes again, of what does not show, given the outputs that cannot tell."""


@dataclass(slots=True)
class Recovered:
    """A producer that has claimed its partitions, where to read on, and up to where messages are in doubt."""

    producer: SealedProducer
    starts: dict[LogPartition, int]
    in_doubt_to: dict[LogPartition, int]
    settled: int
    told: list[Resolution]


@dataclass(slots=True)
class Settled:
    """What settles what has no seal: ``rows`` are to be written again, but for what a claim that nobody can read has ``mended``."""

    pages: list[tuple[int, Page]] = field(default_factory=list)
    seals: list[tuple[int, SettleSeal]] = field(default_factory=list)
    dead: list[DeadRecord] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    mended: set[tuple[bytes, int]] = field(default_factory=set)


class Torn(NamedTuple):
    """What its outputs settle: entries that count for nothing yet, visible ones, or those of what has ``vanished``."""

    view: MonitorView
    begin: Begin
    entered: list[Page]
    vanished: Vanished | None = None


class TopicRecovery:
    """Recovers one worker's partitions; keeps the instances it made, to tell a twin from itself."""

    def __init__(
        self,
        ports: KafkaPorts,
        *,
        transactional_id: str,
        monitor_topic: str,
        outputs: Sequence[LogPartition],
        output_id: bytes = b"",
        group_id: str = "",
        letters: Letters,
        persons: Persons | None = None,
        derive: Derive = lambda *_: None,
        rewrite: Rewrite = lambda *_: Again(),
        kept: Mapping[str, float] | None = None,
        now_ms: Callable[[], float] | None = None,
    ) -> None:
        self._derive = derive
        self._rewrite = rewrite
        self._ports = ports
        self._worker = transactional_id
        self._monitor = monitor_topic
        self._group_id = group_id
        self._today = Outputs([*outputs, *letters.places], frozenset(letters.places), output_id)
        self._kept = kept or {}
        self._now_ms = now_ms or (lambda: float(clock.wall_ms()))
        self._letters = letters
        self._persons = persons or Persons(None, "")
        self._made: set[bytes] = set()
        self._undecided = 0
        self._hanging = HangingTransactions(ports, transactional_id, monitor_topic, self._today)

    def run(
        self, assigned: Sequence[LogPartition], views: list[MonitorView], group: Group, starts: Starts, topic_ids: Mapping[str, str]
    ) -> Recovered:
        """Run all steps once; any exception means: unassign, poll, run again."""
        self._persons.read(assigned)
        crash_point("recovery.started")
        with (
            self._ports.reader(committed=False, meanwhile=group.stay) as scanner,
            self._ports.reader(committed=True, meanwhile=group.stay) as reader,
        ):
            self._hanging.end_own_offsets(group, assigned)
            own = self._fence(scanner, views)
            crash_point("recovery.fenced")
            stored = self._stored(views, group, assigned)
            _check_topics(stored, topic_ids)
            self._check_owner(stored)
            stored_by = committed_by(stored)
            highs = high_watermarks(scanner, self._monitor, views)
            self._check_monitor(stored, highs)
            opened = scan_begins(scanner, self._monitor, views, highs)
            floors = scanner.ends(self._today.places)
            ids = Watch(self._ports), self._today.topic_id, anchors_of(stored)
            producer = SealedProducer(own, self._worker, self._monitor, floors, *ids)
            self._made.add(producer.instance)
            monitors = {LogPartition(self._monitor, number): high for number, (_, high) in highs.items()}
            self._hanging.end(scanner, reader, views, {**floors, **monitors}, stored_by)
            fold_committed(reader, self._monitor, views, highs)
            traces = _partitions_with_traces(views, highs)
            ran_before = {p for p in assigned if p.partition in traces}
            # A topic that joined later is in no record of the first start: what the monitor has forgotten would be new.
            known = {LogPartition(topic, v.partition) for v in views if highs[v.partition][0] > 0 for topic in v.index.topics}
            begin_at = _start(starts, assigned, stored, ran_before, known, group)
            crash_point("recovery.read")
            unfinished = {v.partition: opened[v.partition].unsealed() for v in views}
            lost = vanished(scanner, reader, self._monitor, views, highs, stored_by, self._today)
            done = self._settle(scanner, reader, producer, views, unfinished, lost, begin_at, stored)
            more, gone = unshown(scanner, reader, self._monitor, views, highs, self._today)
            rows = [row for row in done.rows + more if (row.digest, row.replay) not in done.mended]
            again = self._rewrite(list(missing_of(scanner, reader, rows, self._derive)), gone, producer.instance)
            again.dead_pages[:0] = done.pages  # what a settlement takes back may be written again: it comes first
            again.dead += done.dead
            first = [place for place in assigned if place not in stored]
        crash_point("recovery.settled")
        try:
            self._claim(producer, views, group, begin_at, topic_ids, again, done.seals, highs, floors)
            if first and len(group.committed(first)) < len(first):
                raise Retriable("the first positions are not stored; recovery claims again")
        except Exception:
            producer.discard()
            raise
        _enter_claim(views, producer, again)
        told = self._persons.said_it_happened(begin_at)
        return Recovered(producer, begin_at, self._in_doubt(views, begin_at), len(done.seals), told)

    def _fence(self, scanner: Reader, views: list[MonitorView]) -> Transaction:
        """Step 1: nobody but our new instance may write under any transactional id that the partitions name."""
        own = self._ports.transaction(self._worker)
        own.init()
        fenced: set[str] = {self._worker}
        for _ in range(FENCE_ROUNDS_MAX):
            highs = high_watermarks(scanner, self._monitor, views)
            scans = scan_begins(scanner, self._monitor, views, highs)
            self._check_twin(views)
            named = {one for scan in scans.values() for one in scan.transactional_ids_open()} - fenced
            if not named:
                return own
            for transactional_id in sorted(named):
                log.info("fencing", transactional_id=transactional_id)
                predecessor = self._ports.transaction(transactional_id)
                predecessor.init()
                predecessor.discard()
                crash_point("recovery.fencing")
            fenced |= named
        raise Fenced(f"{len(fenced)} workers began here while this one took over: they share it out anew, and so it looks again")

    def _stored(
        self, views: list[MonitorView], group: Group, assigned: Sequence[LogPartition]
    ) -> dict[LogPartition, tuple[int, str]]:
        if not assigned:
            return {}
        try:
            # Of the touch, too: its own marker may be left out, and our next commit would show what it was to end.
            found = group.committed([*assigned, self._hanging.touched(assigned)])
        except Unreachable:
            # Retry, and end what may keep them undecided: the client tells that apart from a broker that is away as little as we can.
            self._hanging.end_others_offsets(views, group, assigned)
            self._undecided += 1
            if self._undecided < UNDECIDED_MAX:
                raise
            found = group.committed(assigned)  # what is undecided is a touch of somebody whom nobody knows here: it keeps nobody out
        self._undecided = 0
        return {place: found[place] for place in assigned if place in found}

    def _check_twin(self, views: list[MonitorView]) -> None:
        for view in views:
            for offset, begin in sorted(view.last_begins, key=itemgetter(0)):
                mine = begin.transactional_id == self._worker and begin.instance in self._made
                if mine:
                    view.own_begin = offset
                elif begin.transactional_id == self._worker and view.own_begin is not None and offset > view.own_begin:
                    raise TwinDetected(
                        f"another process runs as {self._worker!r}: give each relay its own [relay] instance; "
                        "this older one stops"
                    )

    def _check_owner(self, stored: Stored) -> None:
        """Where a table or queue stands, which begins anew under a name, tells nothing of what the output has.

        The monitor does, and only for as long as it keeps that.
        """
        for partition, (offset, note) in stored.items():
            if is_hint(note):
                raise Stopped(
                    f"the position {offset} of {partition.topic}[{partition.partition}] was stored by a table or queue route of "
                    "this name, and does not say what the topic has that the route delivers to now; give a route that leads "
                    "elsewhere a new name, or find out where to go on and store that by hand: "
                    f"kafka-consumer-groups --reset-offsets --group {self._group_id} --all-topics --to-current --execute"
                )

    def _check_monitor(
        self, stored: Stored, highs: Mapping[int, tuple[int, int]]
    ) -> None:
        """A position whose note names a transaction was stored together with a begin in the monitor: one without any is a namesake.

        What was delivered above the position stood in the old one. A person's own position has no note, and that of a
        table route of this name tells of no begin.
        """
        for partition, (offset, note) in stored.items():
            if read_note(note).n and highs[partition.partition][1] == 0:
                raise Stopped(
                    f"topic {self._monitor!r} was deleted and created again: what was delivered above the stored position "
                    f"{offset} of {partition.topic}[{partition.partition}], and which messages are repeats, is not known any "
                    "more; find out what lies behind the positions, then store those to go on from by hand: "
                    f"kafka-consumer-groups --reset-offsets --group {self._group_id} --all-topics --to-current --execute"
                )

    def _settle(
        self,
        scanner: Reader,
        reader: Reader,
        producer: SealedProducer,
        views: list[MonitorView],
        unfinished: Mapping[int, list[Begin]],
        lost: Collection[Vanished],
        positions: Mapping[LogPartition, int],
        stored: Stored,
    ) -> Settled:
        """Step 4: all reads of a settlement happen before its transaction begins."""
        done = Settled()
        torn: list[Torn] = []
        for view in views:
            visible = {(b.instance, b.n) for b in view.evidence.unsealed()}
            gone = {(one.begin.instance, one.begin.n): one for one in lost if one.partition == view.partition}
            for one in gone.values():
                # What a claim had found out by itself holds, though nobody could read it since.
                done.pages += [(view.partition, replace(page, instance=producer.instance, n=1)) for page in one.pages if page.proof is not Proof.SEALED]
                torn.append(Torn(view, one.begin, [page for page in one.pages if page.proof is Proof.SEALED], one))
            known = {(b.instance, b.n): b for b in (*view.evidence.unsealed(), *unfinished[view.partition])}
            for key, begin in known.items():
                if view.evidence.is_ended(*key) or key in gone:
                    continue
                if key in visible and not any(key in one.settled for one in gone.values()):
                    torn.append(Torn(view, begin, view.evidence.pending(*key)))
                else:
                    done.seals.append((view.partition, SettleSeal(self._worker, begin.instance, begin.n)))
        shown = what_shows(scanner, reader, {(one.begin.instance, one.begin.n): one.begin for one in torn}, self._today)
        for view, begin, entered, unseen in torn:
            key = (begin.instance, begin.n)
            told, letters = why_untold(reader, begin, entered, self._kept, self._now_ms()) or shown[key], set[bytes]()
            if isinstance(told, str):
                self._persons.settle(reader, self._monitor, view.partition, begin, positions, told)
                present = _below(entered, positions)
                done.dead += self._untold(reader, entered)
            else:
                letters = set(split(told.letters))
                present = letters.union(split(told.outputs), _below([page for page in entered if page.is_told], positions))
                done.rows += passed(entered, present, stored)
            if unseen is not None:
                done.mended.update(unseen.mended(present))
            made = settle(
                begin, entered, present, worker=self._worker, instance=producer.instance, n=1,
                letters=letters, replays=partial(_next_replays, view.index), can_tell=not isinstance(told, str),
            )  # fmt: skip
            log.warning(
                "settled", transactional_id=begin.transactional_id, n=begin.n, added=made.added, voided=made.voided
            )
            done.pages += [(view.partition, page) for page in made.pages]
            done.seals.append((view.partition, made.seal))
        return done

    def _untold(self, reader: Reader, pages: Sequence[Page]) -> list[DeadRecord]:
        """Dead letters of redrives that count as died: a person orders the next one by the number in the last letter."""
        rows = [
            (InboxRow(digest, content, LogPartition(page.topic, page.partition), offset, DEAD, -1), replay)
            for page in pages
            for digest, content, offset, replay in zip(
                split(page.digests), split(page.contents, CONTENT_BYTES), page.offsets, page.replays, strict=False
            )
        ]
        whole = {message.digest: message for message in read_again(reader, [row for row, _ in rows])}
        return [self._letters.of(whole.get(row.digest) or as_message(row), UNTOLD, replay) for row, replay in rows]

    def _claim(
        self,
        producer: SealedProducer,
        views: list[MonitorView],
        group: Group,
        positions: Mapping[LogPartition, int],
        topic_ids: Mapping[str, str],
        again: Again,
        seals: list[tuple[int, SettleSeal]],
        highs: Mapping[int, tuple[int, int]],
        floors: Mapping[LogPartition, int],
    ) -> None:
        """Step 5: the instance's first transaction writes begin and seal in every owned monitor partition."""
        crash_point("recovery.claiming")
        former = {begin.instance for view in views for _, begin in view.last_begins}
        producer.run(
            SealedWork(
                positions=positions,
                membership=group.membership(),
                outputs=again.outputs,
                pages=again.pages,
                dead=again.dead,
                dead_pages=again.dead_pages,
                taken_back=again.taken_back,
                settled=seals,
                claims={view.partition for view in views},
                topic_ids=topic_ids,
                begun=lambda: check_whole(self._ports, self._monitor, highs, producer.begin_offset, group.stay),
                written=lambda: check_shown(self._ports, floors, producer.behind, former, group.stay),
            )
        )
        crash_point("recovery.claimed")

    def _in_doubt(self, views: list[MonitorView], starts: Mapping[LogPartition, int]) -> dict[LogPartition, int]:
        """From the committed position to the end of what any begin names: these were attempted before.

        That is the last that is asked of the begins, and they are let go.
        """
        ends: dict[LogPartition, int] = {}
        for view in views:
            for partition, end in view.scan.named_to.items() if view.scan is not None else ():
                if end > starts.get(partition, end):
                    ends[partition] = max(ends.get(partition, 0), end)
            view.scan = None
        return ends


def _partitions_with_traces(views: list[MonitorView], highs: Mapping[int, tuple[int, int]]) -> set[int]:
    """Partitions whose committed records, or their absence, say that somebody delivered from here.

    A first claim that aborted left its begin and stored no position. Where retention has taken records, theirs were
    the traces: positions expire sooner than a log that is kept. Where nobody has done more than claim, a broker may have left
    the claim's position out.
    """
    return {v.partition for v in views if v.evidence.has_delivered or len(v.index) or highs[v.partition][0] > 0}


def _enter_claim(views: list[MonitorView], producer: SealedProducer, again: Again) -> None:
    """The claim committed: what it wrote counts as read."""
    for view in views:
        view.own_begin = producer.begin_offset(view.partition)
        if view.own_begin is not None:
            view.scan_from = view.own_begin
        view.written_to = max(view.written_to, producer.written_to(view.partition))
    by_partition = {view.partition: view for view in views}
    for partition, page in (*again.dead_pages, *again.pages):
        evidence = by_partition[partition].evidence
        evidence.on_void(page) if page.proof is Proof.VOID else evidence.on_rows(page)


def _next_replays(index: DedupIndex, digests: list[bytes]) -> bytes:
    """An output of a message that is dead, or its dead letter, is a redrive's: the one after those that are known."""
    stands = index.standings(digests)
    numbers = bytes(one.replay + 1 if one is not None and one.is_dead else 0 for one in stands)
    return numbers if any(numbers) else b""


def _below(pages: Sequence[Page], positions: Mapping[LogPartition, int]) -> set[bytes]:
    """Digests of entries below the position: offsets are sent after the outputs, so these happened together.

    Of a redrive the position tells nothing: its messages lay below it before.
    """
    return {
        page.digests[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES]
        for page in pages
        if not page.replays
        for i, offset in enumerate(page.offsets)
        if offset < positions.get(LogPartition(page.topic, page.partition), 0)
    }


def _start(
    starts: Starts,
    assigned: Sequence[LogPartition],
    stored: Stored,
    ran_before: set[LogPartition],
    known: set[LogPartition],
    group: Group,
) -> dict[LogPartition, int]:
    """Where to read on. What looks like a lost position may be another owner's news: this worker stood still meanwhile."""
    try:
        begin_at = starts({p: stored[p][0] if p in stored else None for p in assigned}, ran_before, anchors_of(stored))
        for place in known.intersection(assigned) - stored.keys():
            raise Stopped(
                f"{place.topic}[{place.partition}] has no stored position although it was delivered from (offsets expired or "
                "deleted), and the monitor has forgotten some of that; find out what was delivered last and set the group's offset "
                "to it"
            )
    except Stopped:
        if group.committed(assigned) != stored:
            raise Fenced("positions were stored by another worker while this one recovered; it looks again") from None
        raise  # stop: nobody moved, so it is lost indeed
    return begin_at


def _check_topics(stored: Stored, topic_ids: Mapping[str, str]) -> None:
    """A committed offset belongs to the topic whose id stands beside it."""
    for partition, (offset, note) in stored.items():
        if note and read_note(note).topic_id != topic_ids.get(partition.topic):
            raise Stopped(
                f"topic {partition.topic!r} was deleted and created again: the stored position {offset} of partition "
                f"{partition.partition} belongs to the old one; {NAMESAKE_REMEDY}"
            )
