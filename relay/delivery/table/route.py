"""Table routes: effect, inbox and position in one database transaction; monitor entries follow until acknowledged.

The batch travels to the cursor at least once (US 8,200,836): a thread sends it, a timer runs, and without an answer
in time it is sent again on a new connection. The inbox makes the repeat harmless, so an unknown answer needs no guess.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import structlog

from relay.delivery.batch import Batch, Counts
from relay.delivery.deadletter import Letters
from relay.delivery.evidence_reading import MonitorView, fold_committed, high_watermarks
from relay.delivery.inbox_messages import as_message, read_again
from relay.delivery.numbering import HORIZON_S, RangeUpkeep, closings, judged, kept_rows, taken_rows
from relay.delivery.ports import Group, KafkaPorts, Starts
from relay.delivery.sifting import sift
from relay.delivery.table.anchor_rows import AnchorRows
from relay.delivery.table.entering import Appends, Bundle, Entered, Entering
from relay.delivery.table.inbox_ages import InboxMarks, Rungs
from relay.delivery.table.verdicts import LOST_CAUSE, LOST_PAYLOAD
from relay.message.record import LogMessage, LogPartition
from relay.monitor.entries import DEAD, DELIVERED
from relay.monitor.index import Standing
from relay.monitor.ranges import RangeKey, RangeLimits, Ranges
from relay.transfer.cursor import DUPLICATE, InboxRow, TableCursor, Verdict
from relay.transfer.sending import Sending
from relay.world.crash import crash_point

log = structlog.get_logger("relay.table")

READ_AT_ONCE: Final = 20_000
"""Many: a worker that reads little by little makes the cursor's thread wait for the interpreter again and again."""
ASKED_AGAIN_S: Final = 30.0
"""So long at most a database that went back to an older state behind an idle worker, as a standby may be when it takes over, lacks rows."""
TRIM_PERIOD_S: Final = 10.0


@dataclass(slots=True)
class Shipment:
    """A batch on its way to the cursor: the messages that were sifted out as new, and what they became."""

    batch: Batch
    messages: list[LogMessage]
    prepared: Any
    tried: Counts


class TableDelivery:
    """Delivers one worker's batches to a table; the worker's one thread calls it, the cursor has a thread of its own."""

    def __init__(
        self,
        ports: KafkaPorts,
        cursor: TableCursor,
        sending: Sending,
        appends: Callable[[], Appends],
        *,
        route: str,
        worker_id: str,
        monitor_topic: str,
        letters: Letters,
        keep_inbox_s: float | None,
        limits: RangeLimits | None = None,
        horizon_s: float = HORIZON_S,
    ) -> None:
        self.counts = Counts()
        self.narrowed_to: int | None = None
        self.read_at_once = READ_AT_ONCE
        self.asked_again_s = ASKED_AGAIN_S
        self._ports = ports
        self._cursor = cursor
        self._sending = sending
        self._entering = Entering(appends, worker_id, monitor_topic)
        self._letters = letters
        self._route = route
        self._worker = worker_id
        self._monitor = monitor_topic
        self._keep_inbox_s = keep_inbox_s
        self._limits = limits or RangeLimits()
        self._upkeep = RangeUpkeep(ports, monitor_topic, horizon_s)
        self._topics: set[str] = set()
        self._forgotten: dict[int, list[RangeKey]] = {}
        self._now = 0.0
        self._views: dict[int, MonitorView] = {}
        self._under_way: deque[Shipment] = deque()
        self._durable: dict[LogPartition, int] = {}
        self._trimmable = Rungs(keep_inbox_s)
        self._marks = InboxMarks()
        self._anchors = AnchorRows()
        self._trim_at = 0.0

    def recover(
        self,
        assigned: Sequence[LogPartition],
        views: list[MonitorView],
        group: Group,
        starts: Starts,
        topic_ids: Mapping[str, bytes],
    ) -> dict[LogPartition, int]:
        """Raise the epoch, read position, monitor and inbox, and write the entries that the monitor lacks."""
        self.abandon()
        self._entering.start()
        claims = self._anchors.take(self._marks.take(self._cursor.claim({p: topic_ids[p.topic] for p in assigned})))
        crash_point("recovery.raised")
        self._claimed()
        self._views = {view.partition: view for view in views}
        with self._ports.reader(committed=False) as scanner:
            highs = high_watermarks(scanner, self._monitor, views)
        with self._ports.reader(committed=True, meanwhile=group.stay) as reader:
            fold_committed(reader, self._monitor, views, highs)
        stored = {p: claim.position for p, claim in claims.items()}
        for view in views:
            view.scan_from = view.read_to
            view.index.keep_below({p: position or 0 for p, position in stored.items()}, group.stay)
            # The database's own rows decide, as with the inbox: a restored one knows less, and is filled again.
            view.index.ranges.clear()
            view.index.ranges.limits = self._limits
        self._topics, self._forgotten = {p.topic for p in assigned}, {}
        taken_rows(self._ranges(), claims)
        begin_at = starts(stored, (), self._anchors.stored)
        crash_point("recovery.compared")
        self._cursor.deliver(begin_at, self._cursor.prepare([]))
        entered = self._enter_inbox(assigned, group.stay)
        crash_point("recovery.entered")
        self._mark_ranges(views)
        if self._keep_inbox_s is not None:
            self._mark_inbox(begin_at, views)
        else:
            # Or a partition in which nothing comes any more would have its dead letters repeated at every recovery.
            self._trimmable.note(begin_at, self._now)
        log.info("recovered", route=self._route, entries_written=entered)
        self.counts.recoveries += 1
        return begin_at

    def submit(self, batch: Batch) -> None:
        """Sift and map a batch and hand it to the sending thread; at most one waits behind the one under way."""
        tried = Counts()
        if batch.replays:
            self._submit_redriven(batch, tried)
            return
        fresh = sift(batch.messages, {p: view.index for p, view in self._views.items()}, tried)
        fresh = self._not_under_way(fresh, tried)
        numbers = closings(batch)
        forgotten, self._forgotten = self._forgotten, {}
        due = self._upkeep.due(self._now, self._views.values())
        # What rows say counts at once: batches are committed in this order or not at all, and a recovery reads the rows again.
        rows = self._anchors.rows(batch.anchors, self._worker)
        if numbers or forgotten or due:
            fresh = judged(fresh, numbers, self._ranges(), tried)
            rows += kept_rows(
                self._ranges(), numbers, forgotten, due, self._now, worker=self._worker, topics=self._topics
            )
        self._ship(Shipment(batch, fresh, self._cursor.prepare(fresh, rows), tried))

    def _submit_redriven(self, batch: Batch, tried: Counts) -> None:
        """Hand dead messages over once more; the inbox's word that they are dead goes with the same transaction.

        Their new rows lie far below the positions: nothing may be trimmed before the monitor has them. None is left out
        for a repeat of it that is on its way: it is the inbox that decides between them, and the order waits for each.
        """
        prepared = self._cursor.prepare(batch.messages, redriven=True)
        self._sending.forget_trims()
        self._ship(Shipment(batch, batch.messages, prepared, tried))

    def _ship(self, shipment: Shipment) -> None:
        self._under_way.append(shipment)
        self._sending.send(shipment.batch.positions, shipment.prepared)

    def settled(self) -> bool:
        """Take answers; is there room for another batch? Raises what the sending thread could not settle."""
        for verdicts in self._sending.answers():
            self._accept(self._under_way.popleft(), verdicts)
        return len(self._under_way) <= 1

    def wait(self, seconds: float) -> bool:
        """Wait for the batches under way, at most so long; True if none is left."""
        if self._under_way:
            self._sending.wait(seconds)
        return not self._under_way or self._sending.is_idle()

    def positions(self) -> Mapping[LogPartition, int]:
        """Positions that the database holds and the group does not yet know."""
        found, self._durable = self._durable, {}
        return found

    def listen(self) -> None:
        """It follows nobody's word; a queue's does."""

    def tend(self, now: float) -> None:
        """Run the resend timer; trim what the monitor holds by now."""
        self._sending.tend(now)
        self.counts.resent = self._sending.resent
        for entered in self._entering.acknowledged():
            self._index(entered)
            self._trimmable.note(entered.positions, now)
        self._now = now
        for partition, keys in self._upkeep.tend(now, self._views.values(), self._topics).items():
            self._forgotten.setdefault(partition, []).extend(keys)
        if now >= self._trim_at:
            self._trim_at = now + TRIM_PERIOD_S
            self._trim(now)

    def entering(self) -> AbstractSet[bytes]:
        """Digests of messages whose rows are committed, and whose entries are still on their way to the monitor."""
        return self._entering.digests()

    def abandon(self) -> None:
        """Let go of what is under way: whether it took effect, the inbox tells the next recovery."""
        self._sending.abandon()
        self._under_way.clear()
        self._entering.clear()
        if self._keep_inbox_s is None:
            self._trimmable.clear()
        self._durable = {}

    def close(self) -> None:
        """Wait for the monitor's acknowledgements and give the connections back."""
        self._entering.flush()
        if self._sending.close():
            self._cursor.close()

    @property
    def in_doubt(self) -> Mapping[LogPartition, int]:
        """The inbox decides at once, so nothing stays in doubt on a table route."""
        return {}

    def _claimed(self) -> None:
        """From now on nobody else writes for these partitions."""

    def _mark_ranges(self, views: list[MonitorView]) -> None:
        """Every entry of a closed number lies below this end now: what the monitor lacked has just been written."""
        numbered = [view for view in views if len(view.index.ranges)]
        if not numbered:
            return
        with self._ports.reader(committed=False) as scanner:
            for partition, (_, high) in high_watermarks(scanner, self._monitor, numbered).items():
                self._views[partition].index.ranges.mark(high, exact=True)

    def _mark_inbox(self, positions: Mapping[LogPartition, int], views: list[MonitorView]) -> None:
        """All below the positions is entered by now: note that, and have deleted what the monitor has forgotten since."""
        with self._ports.reader(committed=False) as scanner:
            ends = high_watermarks(scanner, self._monitor, views)
        rows = self._marks.note(positions, ends, self._worker)
        if rows:
            self._cursor.deliver(positions, self._cursor.prepare([], rows))
        for partition, below in self._marks.aged(ends).items():
            self._sending.trim(partition, below)

    def _ranges(self) -> dict[int, Ranges]:
        return {partition: view.index.ranges for partition, view in self._views.items()}

    def _not_under_way(self, fresh: list[LogMessage], tried: Counts) -> list[LogMessage]:
        """A repeat of a message that is on its way is a duplicate: both are committed in order, or neither.

        So is one of a message whose entry is on its way to the monitor: the index does not know it yet.
        """
        if not self._under_way and self._entering.is_idle:
            return fresh
        on_their_way = {message.digest for shipment in self._under_way for message in shipment.messages}
        on_their_way |= self.entering()
        kept = [message for message in fresh if message.digest not in on_their_way]
        tried.duplicates += len(fresh) - len(kept)
        return kept

    def _accept(self, shipment: Shipment, verdicts: Sequence[Verdict]) -> None:
        """The database has committed: write the entries, send the dead letters, count."""
        tried, replays = shipment.tried, shipment.batch.replays
        entered: list[LogMessage] = []
        outcomes = bytearray()
        applied: list[int] = []
        bundle = self._entering.open(shipment.batch.positions, is_redriven=bool(replays))
        for message, verdict in zip(shipment.messages, verdicts, strict=True):
            outcome = verdict.outcome
            if outcome == DUPLICATE:
                tried.duplicates += 1
                tried.conflicts += verdict.conflict
                if not replays:
                    continue
                outcome = DELIVERED  # a repeat in another partition has had its effect
            entered.append(message)
            outcomes.append(outcome)
            applied.append(verdict.applied)
            if verdict.outcome == DELIVERED:
                tried.delivered += 1
            elif outcome == DEAD and verdict.cause is not None:
                tried.died(verdict.cause.code)
                replay = replays.get(message.digest, self._replay(message))
                self._entering.letter(bundle, self._letters.of(message, verdict.cause, replay))
            if replays and outcome == DELIVERED:
                self._entering.letter(bundle, self._letters.taking_back(message, replays[message.digest]))
        bundle.entered.digests.update(message.digest for message in entered)
        if replays or DEAD in outcomes:
            self._letters_first()
        numbered = bytes(replays[message.digest] for message in entered) if replays else self._replays(entered)
        self._entering.enter(bundle, entered, bytes(outcomes), applied, numbered)
        self._entering.close(bundle)
        crash_point("table.entered")
        self._durable.update(shipment.batch.positions)
        self.counts.add(tried)
        self.counts.transactions += 1

    def _replays(self, messages: Sequence[LogMessage]) -> bytes:
        """Of a message that was redriven before its database went back to an older copy, the number is known still."""
        if not any(view.index.has_replays for view in self._views.values()):
            return b""
        return bytes(map(self._replay, messages))

    def _replay(self, message: LogMessage) -> int:
        return self._views[message.partition].index.replay(message.digest)

    def _index(self, entered: Entered) -> None:
        """Know what the monitor has: before that, a recovery must find it missing and write it again."""
        for page in entered.pages:
            self._views[page.partition].index.add_page(page)
        entered.pages = []

    def _enter_inbox(self, assigned: Sequence[LogPartition], meanwhile: Callable[[], object]) -> int:
        """Write the entries of inbox rows that the monitor lacks: a predecessor died between commit and entry.

        They carry this worker's name as the recovery's: rows of several transactions lie in one page, so its numbers
        tell nothing of the order inside.
        """
        entered = 0
        for rows in self._cursor.inbox(list(assigned)):
            bundle = self._entering.open({})
            stands = list(zip(rows, self._standings(rows), strict=True))
            missing = [row for row, known in stands if known is None]
            # A redrive was committed, and its entry did not arrive: the monitor still says that the message is dead.
            revived = [(row, one.replay + 1) for row, one in stands if one and one.is_dead and row.outcome == DELIVERED]
            # Of one that is entered, whether the record that takes its dead letters back arrived is not known.
            known = [(row, one.replay) for row, one in stands if one and _is_redriven(row, one)]
            for row, replay in [*revived, *(known if self._keep_inbox_s is None else ())]:
                self._entering.letter(bundle, self._letters.taking_back(as_message(row), replay))
            self._repeat_dead_letters(bundle, rows if self._keep_inbox_s is None else missing, meanwhile)
            self._letters_first()
            self._enter(bundle, [*((row, self._replay(as_message(row))) for row in missing), *revived])
            entered += len(missing) + len(revived)
            self._entering.close(bundle)
            crash_point("recovery.entering")
            self._entering.flush()
            self._index(bundle.entered)
            meanwhile()
        return entered

    def _enter(self, bundle: Bundle, rows: Sequence[tuple[InboxRow, int]]) -> None:
        """Write entries of inbox rows, each with its replay number."""
        for partition in {row.partition for row, _ in rows}:
            mine = [(row, replay) for row, replay in rows if row.partition == partition]
            group = [as_message(row) for row, _ in mine]
            outcomes, applied = bytes(row.outcome for row, _ in mine), [row.applied for row, _ in mine]
            replays = bytes(replay for _, replay in mine)
            self._entering.enter(bundle, group, outcomes, applied, replays, recovery=self._worker)

    def _repeat_dead_letters(self, bundle: Bundle, rows: Sequence[InboxRow], meanwhile: Callable[[], object]) -> None:
        """Append the dead letters of inbox rows again: whether the predecessor's arrived is not known.

        A row outlives its dead letter's acknowledgement only until it is trimmed, so repeats are few; readers key
        dead letters by the digest. Of rows kept for the horizon only those are given whose entries did not arrive either.
        """
        dead = [row for row in rows if row.outcome == DEAD]
        if not dead:
            return
        gone = {(row.partition, row.offset): row for row in dead}
        with self._ports.reader(committed=True, meanwhile=meanwhile) as reader:
            for message in read_again(reader, dead):
                del gone[LogPartition(message.topic, message.partition), message.offset]
                self._entering.letter(bundle, self._letters.of(message, LOST_CAUSE, self._replay(message)))
        for row in gone.values():
            log.error("payload lost", topic=row.partition.topic, partition=row.partition.partition, offset=row.offset)
            message = as_message(row)
            self._entering.letter(bundle, self._letters.of(message, LOST_PAYLOAD, self._replay(message)))

    def _letters_first(self) -> None:
        """Where rows are kept for the horizon, an entry says that the letter arrived: nobody repeats it after that."""
        if self._keep_inbox_s is not None:
            self._entering.flush()

    def _standings(self, rows: Sequence[InboxRow]) -> list[Standing | None]:
        return [self._views[row.partition.partition].index.standings([row.digest])[0] for row in rows]

    def _awaits_redriven(self) -> bool:
        under_way = any(one.batch.replays for one in self._under_way)
        return under_way or self._entering.has_redriven

    def _trim(self, now: float) -> None:
        """Have the rows below what is acknowledged for long enough deleted.

        What was noted outlives recoveries where rows are kept for long, or a rebalance now and then would keep them for
        ever; of a partition that is elsewhere by now its owner takes care. Nothing goes while a redriven message's new
        row may be all that tells of its effect.
        """
        if self._awaits_redriven():
            return
        for partition, offset in self._trimmable.take(now).items():
            if partition.topic in self._topics and partition.partition in self._views:
                self._sending.trim(partition, offset)


def _is_redriven(row: InboxRow, standing: Standing) -> bool:
    """Has a redrive had its effect, and does the monitor say so?"""
    return row.outcome == DELIVERED and standing.replay > 0 and not standing.is_dead
