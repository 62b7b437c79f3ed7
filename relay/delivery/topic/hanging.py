"""Transactions that hang: the coordinator calls them ended, and a partition never got the marker that says so.

Brokers with Kafka's newer metadata cache (seen with 4.3.0) leave a partition out that has no leader at the moment when a
transaction is ended, for example because its only replica, or the whole cluster, is just coming back. There it stays open:
readers stop before it, the group's offsets stay undecided, and the next commit under the same transactional id *shows* what
was aborted. So whoever makes an instance looks first whether anything is open where it may write. What hangs is ended by a
throw-away instance of the same id that writes there and aborts: its marker ends both. (KIP-664 names the operator's tool
for that: ``kafka-transactions.sh abort``.)

A transaction ends everywhere alike, unless a stray EndTxn tore it: then its last part has no seal that shows. So it is
aborted unless its seal shows, or lies in a monitor that hangs while an output shows or a position names it. Then it was
committed: the monitor's part is committed as well. An output that hangs is aborted all the same, since a commit would show
the touch there; what is missing then is written again by whoever recovers its log partition (``unshown``).
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

import structlog

from relay.delivery.evidence_reading import MonitorView, decoded
from relay.delivery.ports import Group, KafkaPorts, Reader
from relay.delivery.topic.unshown import READ_MAX, Outputs, trace_of
from relay.message.envelope import DEAD_CODE, OUT_INSTANCE, OUT_N, REDRIVEN
from relay.message.errors import Retriable
from relay.message.record import LogPartition, Record, headers_if_any
from relay.monitor.entries import Begin, Seal, transaction_of_page
from relay.world.crash import crash_point

log = structlog.get_logger("relay.recovery")
WAIT_S: Final = 5.0
"""Other workers' transactions end within this, mostly; that nothing of ours was open then does no harm."""
ROUNDS_MAX: Final = 2
"""So often a place is ended in before a recovery goes on; what is still open there is mostly another worker's, or a stranger's."""
SURE_ROUNDS_MAX: Final = 20
"""The same where what is first there is surely a former instance's: a producer id that the broker has forgotten ends nothing."""
TAIL: Final = 100_000
"""So many records of each partition are looked through for traces of a commit."""
TOUCH: Final = b"hanging"
"""The key of what is written to be ended, without a value: nothing to whoever reads a monitor; outputs never show it."""
Number = tuple[bytes, int]
"""A transaction: its instance and its n."""
UNNAMED: Final[Number] = (b"", 1)
"""The transaction of what has no marks: a touch, or what takes a dead letter back."""


class Begun(NamedTuple):
    """The last begin of an instance in a monitor partition; is its transaction sealed, for whoever reads uncommitted?"""

    partition: int
    offset: int
    begin: Begin
    is_sealed: bool


class HangingTransactions:
    """Finds and ends what former instances left open in outputs and in the monitor; ``today`` is where the route delivers to now."""

    def __init__(self, ports: KafkaPorts, own: str, monitor_topic: str, today: Outputs) -> None:
        self._ports = ports
        self._own = own
        self._monitor = monitor_topic
        self._today = today
        self._rounds: Counter[tuple[str, LogPartition]] = Counter()
        self._touches: dict[tuple[LogPartition, int], str] = {}
        """Under whose id the records were written that touch places, by offset: their markers may be left out as well."""

    def end(
        self,
        scanner: Reader,
        reader: Reader,
        views: Sequence[MonitorView],
        ends: Mapping[LogPartition, int],
        stored_by: Collection[Number],
    ) -> None:
        """End what is open below ``ends``, by place; raises Retriable if there was anything, since more can be read now.

        ``stored_by`` are the transactions that have stored the positions.
        """
        hanging = reader.still_open(ends, WAIT_S)
        for known in [known for known in self._rounds if known[1] not in hanging]:
            del self._rounds[known]
        self._touches = {at: one for at, one in self._touches.items() if at[0] in hanging}
        if not hanging:
            return
        firsts, found = self._found(scanner, reader, {place: ends[place] for place in sorted(hanging)})
        names = {begin.instance: begin.transactional_id for begin in _last_begins(views)}
        asked = _begun_by({instance for last in found.values() for instance in last}, views)
        left_a_trace = trace_of(scanner, reader, self._today, sys.maxsize, stored_by)
        committed = self._committed(scanner, reader, asked, hanging, left_a_trace) if any(found.values()) else {}
        torn = self._torn(asked, hanging, left_a_trace)
        aborting, committing = defaultdict[str, list[LogPartition]](list), defaultdict[str, list[LogPartition]](list)
        sure: set[LogPartition] = set()
        for place, last in found.items():
            # What names nobody that is known here may be our own former instance's.
            for instance, n in last.items():
                surely = instance in names and instance == firsts.get(place)
                is_torn = place.topic == self._monitor and n <= torn.get(instance, 0)
                if n > committed.get(instance, 0) and not is_torn:
                    aborting[names.get(instance, self._own)].append(place)
                elif place.topic == self._monitor:
                    committing[names.get(instance, self._own)].append(place)
                elif surely:
                    aborting[names[instance]].append(place)
                if surely:
                    sure.add(place)  # the last stable offset is at the first record of what is open: no stranger's
        for place, toucher in self._hanging_touches(reader):
            aborting[toucher].append(place)
            sure.add(place)
        ended = [self._end_under(one, places, sure, commit=False) for one, places in sorted(aborting.items())]
        ended += [self._end_under(one, places, sure, commit=True) for one, places in sorted(committing.items())]
        if any(ended):
            raise Retriable("what former instances may have left open was ended; recovery looks again")
        log.warning(
            "somebody's transaction stays open, and readers wait before it; if nobody is writing there, it hangs: "
            "`kafka-transactions.sh find-hanging` names it, and `abort` ends it",
            partitions=[f"{place.topic}[{place.partition}]" for place in sorted(hanging)],
        )

    def end_own_offsets(self, group: Group, assigned: Sequence[LogPartition]) -> None:
        """Abort a transaction that holds an offset only, before an instance of the own id is made.

        Offsets that a former one sent for partitions which others own by now would else be committed by our next commit,
        and nothing shows them. Right also for a commit: a position stays where it was, and the monitor tells what lies above.
        The offset is one of a place that has no positions: whoever asks for that learns whether this was ended, or hangs, too.
        """
        if assigned:
            self._touch(self._own, (), {self.touched(assigned): 0}, group.membership(), commit=False)

    def end_others_offsets(self, views: Iterable[MonitorView], group: Group, assigned: Sequence[LogPartition]) -> None:
        """The same for whoever has begun in our partitions, where the positions cannot be read."""
        membership = group.membership()
        for one in sorted({begin.transactional_id for begin in _last_begins(views)} - {self._own}):
            self._touch(one, (), {self.touched(assigned): 0}, membership, commit=False)

    def touched(self, assigned: Sequence[LogPartition]) -> LogPartition:
        """Return for which place offsets are sent that are aborted at once."""
        return LogPartition(self._monitor, assigned[0].partition)

    def _hanging_touches(self, reader: Reader) -> Iterator[tuple[LogPartition, str]]:
        """Yield the places where a touch is the first record that nobody can read, and its id: the next commit under that would show it."""
        for place in sorted({place for place, _ in self._touches}):
            toucher = self._touches.get((place, reader.watermarks(place)[1]))
            if toucher is not None:
                yield place, toucher

    def _end_under(
        self, transactional_id: str, places: Iterable[LogPartition], sure: Collection[LogPartition], *, commit: bool
    ) -> bool:
        most = {place: SURE_ROUNDS_MAX if place in sure else ROUNDS_MAX for place in places}
        due = sorted(place for place in most if self._rounds[transactional_id, place] < most[place])
        if due:
            log.warning(
                "ending what may hang", transactional_id=transactional_id, commit=commit,
                partitions=[f"{place.topic}[{place.partition}]" for place in due],
            )  # fmt: skip
            self._touch(transactional_id, due, {}, b"", commit=commit)
            self._rounds.update((transactional_id, place) for place in due)
        return bool(due)

    def _touch(
        self,
        transactional_id: str,
        places: Collection[LogPartition],
        positions: Mapping[LogPartition, int],
        membership: bytes,
        *,
        commit: bool,
    ) -> None:
        """End a transaction that touches the places; the instance goes with it, as an epoch holds commits only."""
        transaction = self._ports.transaction(transactional_id)
        transaction.init()
        transaction.begin()
        for place in places:
            transaction.produce(place, TOUCH, None)
        transaction.flush()
        self._touches.update(((place, transaction.acked[place]), transactional_id) for place in places)
        if positions:
            transaction.send_offsets(positions, {}, membership)
        crash_point("recovery.ending")
        if commit:
            transaction.commit()
        else:
            transaction.abort()
        transaction.discard()

    def _found(
        self, scanner: Reader, reader: Reader, ends: Mapping[LogPartition, int]
    ) -> tuple[dict[LogPartition, bytes], dict[LogPartition, dict[bytes, int]]]:
        """Return the instances, with their last n, of which something lies where nobody can read yet; apart, whose is first there.

        Behind a transaction that a stranger left open for good all lies that was written since: a bounded part is looked at.
        """
        firsts: dict[LogPartition, bytes] = {}
        found: dict[LogPartition, dict[bytes, int]] = {}
        for place, end in ends.items():
            first = max(reader.watermarks(place)[1], scanner.watermarks(place)[0])
            read = _begun if place.topic == self._monitor else _written
            spans = (first, first + 1), (max(first + 1, end - READ_MAX), end)
            numbers = (read(record) for span in spans for records in scanner.read({place: span}) for record in records)
            whose = next(numbers, None)
            found[place] = _last(chain([whose], numbers))
            if whose is not None:
                firsts[place] = whose[0]
        return firsts, found

    def _committed(
        self,
        scanner: Reader,
        reader: Reader,
        asked: Iterable[Begun],
        hanging: Collection[LogPartition],
        left_a_trace: Callable[[Begin], bool],
    ) -> dict[bytes, int]:
        """Return the last n of each instance of which a commit left a trace; outputs are read for those ``asked`` only.

        A seal that was read where nothing hangs tells by itself whether it shows: the position may be moved by others since.
        """
        spans = {}
        partitions = reader.partitions(self._monitor)
        if not partitions:  # in doubt: nothing would seem committed, and what hangs would be aborted
            raise Retriable(f"{self._monitor} is not known to the broker that was asked, so what was committed cannot be told; recovery looks again")
        for place in (LogPartition(self._monitor, number) for number in range(partitions)):
            end = reader.watermarks(place)[1]
            spans[place] = (max(scanner.watermarks(place)[0], end - TAIL), end)
        sealed = (_sealed(record) for records in reader.read(spans) for record in records)
        traces = (
            (begin.instance, begin.n)
            for number, offset, begin, is_sealed in asked
            if is_sealed
            if (home := LogPartition(self._monitor, number)) in hanging or offset < spans[home][0]
            if left_a_trace(begin)
        )
        return _last(chain(sealed, traces))

    def _torn(
        self, asked: Iterable[Begun], hanging: Collection[LogPartition], left_a_trace: Callable[[Begin], bool]
    ) -> dict[bytes, int]:
        """Return the n of what a stray COMMIT tore while the monitor was left out: it left a trace, and no seal was written.

        Its begin, which comes before all outputs, was committed with them: settlement must find it.
        """
        return _last(
            (begin.instance, begin.n)
            for number, _, begin, is_sealed in asked
            if not is_sealed and LogPartition(self._monitor, number) in hanging
            if left_a_trace(begin)
        )


def _begun_by(instances: Collection[bytes], views: Iterable[MonitorView]) -> list[Begun]:
    return [
        Begun(view.partition, offset, begin, view.scan.evidence.is_sealed(begin.instance, begin.n))
        for view in views
        if view.scan is not None
        for offset, begin in view.scan.last.values()
        if begin.instance in instances
    ]


def _last_begins(views: Iterable[MonitorView]) -> list[Begin]:
    return [begin for view in views for _, begin in view.last_begins]


def _last(numbers: Iterable[Number | None]) -> dict[bytes, int]:
    last: dict[bytes, int] = {}
    for number in numbers:
        if number is not None:
            last[number[0]] = max(number[1], last.get(number[0], 0))
    return last


def _begun(record: Record) -> Number | None:
    """Return the transaction of a begin, a page or a seal."""
    page = transaction_of_page(record.key())
    if page is not None:
        return page
    entry = decoded(record)
    return (entry.instance, entry.n) if isinstance(entry, Begin | Seal) else None


def _sealed(record: Record) -> Number | None:
    """Return the last transaction that an entry which shows calls committed: but for a seal, the one before its own."""
    page = transaction_of_page(record.key())
    if page is not None:
        return page[0], page[1] - 1
    entry = decoded(record)
    if isinstance(entry, Begin):
        return entry.instance, entry.n - 1
    return (entry.instance, entry.n) if isinstance(entry, Seal) else None


def _written(record: Record) -> Number | None:
    """Return the transaction of an output or a dead letter; None for a stranger's record."""
    headers = dict(headers_if_any(record))
    if record.key() == TOUCH or headers.get(DEAD_CODE) == REDRIVEN.encode():
        return UNNAMED
    try:
        return bytes.fromhex((headers.get(OUT_INSTANCE) or b"").decode()), int(headers.get(OUT_N) or b"")
    except ValueError:
        return None
