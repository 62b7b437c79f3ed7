"""The auditor: names what went wrong, from storage and readers alone, in Jepsen's words and the invariants' numbers.

Each check is a function from the evidence to anomalies; none of them shares anything with the code under test but the
meaning of a position: the offset below which everything has its one effect, is dead, or was never a message.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tests.simulation.evidence import Evidence, Logged, MessageId, Partition, Told


class Anomaly(NamedTuple):
    """One thing that must not be."""

    name: str
    invariant: str
    detail: str

    def __str__(self) -> str:
        return f"{self.name} ({self.invariant}): {self.detail}"


Found = Iterator[Anomaly]
Check = Callable[["Case"], Found]


class Case:
    """The evidence with what every check needs of it, worked out once."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.log: dict[Partition, list[Logged]] = defaultdict(list)
        for record in sorted(evidence.log, key=lambda record: (record.partition, record.offset)):
            self.log[record.partition].append(record)
        self.sent = {record.id for record in evidence.log}
        self.first: dict[MessageId, Logged] = {}
        """The record of each message that counts: the first one that was published."""
        for records in self.log.values():
            for record in records:
                if self.is_published(record):
                    self.first.setdefault(record.id, record)
        self.times = Counter(effect.id for effect in evidence.effects)
        self.dead = set(evidence.dead)

    def is_lost(self, record: Logged) -> bool:
        """Has it left the log, and was it passed as lost, visibly? Then it has an effect or none, but never two."""
        spans = self.evidence.passed.get(record.partition, ())
        return record.gone and any(first <= record.offset < following for first, following in spans)

    def is_published(self, record: Logged) -> bool:
        """Did its Kafka transaction, and its capture, commit?"""
        if record.aborted:
            return False
        if record.capture is None:
            return True
        decided = self.evidence.decisions.get(record.capture)
        return decided is not None and decided.committed


def audit(evidence: Evidence, checks: Iterable[Check] | None = None) -> list[Anomaly]:
    """Return every anomaly; none is the proof that this run kept the promise."""
    case = Case(evidence)
    return [anomaly for check in (CHECKS if checks is None else checks) for anomaly in check(case)]


def lost_write(case: Case) -> Found:
    """I1, quiescent: what was published has its effect, or is dead."""
    if not case.evidence.quiescent:
        return
    for name, record in case.first.items():
        if name in case.times or case.is_lost(record):
            continue
        if name in case.evidence.redriven and not case.evidence.restored:
            yield Anomaly("lost redrive", "I1", f"{_at(record)} is dead still")
        elif name in case.dead:
            continue
        elif record.poison:
            yield Anomaly("lost dead letter", "I1", f"{_at(record)} is no dead letter")
        else:
            yield Anomaly("lost write", "I1", f"{_at(record)} has no effect")


def dead_without_fault(case: Case) -> Found:
    """I1: only what the destination cannot take dies, and it has no effect beside its dead letter."""
    for name in case.dead:
        record = case.first.get(name)
        if record is None:
            yield Anomaly("aborted read" if name in case.sent else "phantom", "I4", f"dead letter of {name}")
        elif not record.poison:
            yield Anomaly("needless dead letter", "I1", f"{_at(record)} could be delivered")
        if name in case.times and name not in case.evidence.redriven:
            yield Anomaly("dead and delivered", "I5", f"{name} has an effect and a dead letter")


def lost_append(case: Case) -> Found:
    """I1: the messages that a committed capture says it placed are in the log."""
    there = Counter((record.capture, record.partition) for record in case.evidence.log if record.capture)
    for capture, decided in case.evidence.decisions.items():
        for partition, count in decided.placed if decided.committed else ():
            if there[capture, partition] < count:
                yield Anomaly(
                    "lost append", "I1",
                    f"capture {capture} committed {count} messages in {partition}, the log has {there[capture, partition]}",
                )  # fmt: skip


def duplicate(case: Case) -> Found:
    """I3, always: no message has two effects, also not for a reader on the way."""
    for name, times in case.times.items():
        if times > 1:
            places = [(e.lane, e.place, e.writer) for e in case.evidence.effects if e.id == name]
            yield Anomaly("duplicate", "I3", f"{name} has {times} effects: {places}")
    read = Counter((seen.reader, seen.id) for seen in case.evidence.seen)
    for (reader, name), times in read.items():
        if times > 1:
            yield Anomaly("duplicate read", "I3", f"{reader} got {name} {times} times")


def aborted_read(case: Case) -> Found:
    """I4, always: no effect of what was never published (G1a), or of what nobody sent."""
    shown = {effect.id for effect in case.evidence.effects} | {seen.id for seen in case.evidence.seen}
    for name in sorted(shown - case.first.keys()):
        if name in case.sent:
            yield Anomaly("aborted read", "I4", f"{name} was not published and has an effect")
        else:
            yield Anomaly("phantom", "I4", f"{name} was never sent and has an effect")


def early_read(case: Case) -> Found:
    """I4, always: no effect before the capture's decision (G1b)."""
    shown = [(effect.id, effect.at) for effect in case.evidence.effects]
    for name, at in [*shown, *((seen.id, seen.at) for seen in case.evidence.seen)]:
        record = case.first.get(name)
        if record is not None and record.capture is not None:
            decided = case.evidence.decisions[record.capture]
            if at < decided.at:
                yield Anomaly("early read", "I4", f"{_at(record)} at {at:.4f}, its capture committed at {decided.at:.4f}")


def torn_capture(case: Case) -> Found:
    """I5, quiescent: the messages of one capture are there all together, or none of them."""
    if not case.evidence.quiescent:
        return
    states: dict[str, set[bool]] = defaultdict(set)
    lost = {record.capture for record in case.evidence.log if case.is_lost(record)}
    for record in case.evidence.log:
        if record.capture is not None and record.capture not in lost:
            states[record.capture].add(record.id in case.times or record.id in case.dead)
    for capture, state in states.items():
        if len(state) > 1:
            yield Anomaly("torn capture", "I5", f"capture {capture} is delivered in part")


def torn_unit(case: Case) -> Found:
    """I5, always: effect and proof are committed together."""
    for words in case.evidence.torn:
        yield Anomaly("torn unit", "I5", words)


def leak(case: Case) -> Found:
    """Nothing that leaves the log names a capture: a second relay would look for a decision that is not there."""
    for words in case.evidence.leaks:
        yield Anomaly("capture header left", "I4", words)


def inversion(case: Case) -> Found:
    """I6, I7: effects of one publisher stand in the order of its log partition, in one place."""
    yield from _in_order(case, "inversion", [(e.lane, e.place, e.id) for e in case.evidence.effects])
    lanes: dict[tuple[str, Partition], set[str]] = defaultdict(set)
    for effect in case.evidence.effects:
        if effect.id in case.first:
            lanes[effect.id[0], case.first[effect.id].partition].add(effect.lane)
    for (source, partition), found in lanes.items():
        if len(found) > 1:
            yield Anomaly("split lane", "I6", f"{source} of {partition} is spread over {sorted(found)}")


def nonmonotonic_poll(case: Case) -> Found:
    """I6: a reader on the way gets each lane forwards, and each publisher in order."""
    got: dict[tuple[str, str], tuple[int, ...]] = {}
    by_reader: dict[str, list[tuple[str, tuple[int, ...], MessageId]]] = defaultdict(list)
    for number, seen in enumerate(case.evidence.seen):
        last = got.get((seen.reader, seen.lane))
        if last is not None and seen.place <= last:
            yield Anomaly("nonmonotonic poll", "I6", f"{seen.reader} got {seen.place} of {seen.lane} after {last}")
        got[seen.reader, seen.lane] = seen.place
        by_reader[seen.reader].append((seen.lane, (number,), seen.id))
    for found in by_reader.values():
        yield from _in_order(case, "inversion read", found)


def vanished(case: Case) -> Found:
    """I3, quiescent: what a reader got is there at the end."""
    if case.evidence.restored or not case.evidence.quiescent:
        return
    for seen in case.evidence.seen:
        if seen.id not in case.times:
            yield Anomaly("vanished read", "I3", f"{seen.reader} got {seen.id} at {seen.at:.4f}, and it is gone")


def unsafe_position(case: Case) -> Found:
    """I2, always: below a durable position everything published has its effect or is dead (inconsistent offsets)."""
    final = (float("inf"), case.evidence.positions, frozenset(case.times))
    for at, positions, effects in [*case.evidence.samples, final]:
        for partition, position in positions.items():
            for record in case.log.get(partition, ()):
                if record.offset >= position:
                    break
                if case.first.get(record.id) is not record or record.id in effects or case.is_lost(record):
                    continue
                if not record.poison and record.id not in case.dead:
                    yield Anomaly("position beyond delivery", "I2", f"{position} at {at:.4f}, without {_at(record)}")


def position_fell(case: Case) -> Found:
    """I9: positions do not fall."""
    if case.evidence.restored:
        return
    last: dict[Partition, int] = {}
    for sample in [*case.evidence.samples]:
        for partition, position in sample.positions.items():
            if position < last.get(partition, 0):
                yield Anomaly("position fell", "I9", f"{partition}: {last[partition]} to {position} at {sample.at:.4f}")
            last[partition] = position


def two_writers(case: Case) -> Found:
    """I8: whoever claimed a partition last is the only one that writes for it."""
    holder: dict[Partition, tuple[int, str]] = {}
    for held in case.evidence.held:
        epoch, by = holder.get(held.partition, (0, held.by))
        if held.claim:
            if held.epoch <= epoch and not case.evidence.restored:
                yield Anomaly("epoch reused", "I8", f"{held.partition}: {held.epoch} after {epoch} at {held.at:.4f}")
            holder[held.partition] = held.epoch, held.by
        elif held.epoch < epoch or held.by != by:
            yield Anomaly("two writers", "I8", f"{held.partition}: {held.by} wrote at {held.at:.4f}, {by} holds it")
    yield from _interleaved(case)


def _interleaved(case: Case) -> Found:
    """Producer instances take turns on one input partition: none comes back after another."""
    done: dict[tuple[str, Partition], set[str]] = defaultdict(set)
    last: dict[tuple[str, Partition], str] = {}
    for effect in sorted(case.evidence.effects, key=lambda e: (e.lane, e.place)):
        if effect.id not in case.first or not effect.writer:
            continue
        place = (effect.lane, case.first[effect.id].partition)
        if last.get(place) not in (None, effect.writer):
            done[place].add(last[place])
        if effect.writer in done[place]:
            yield Anomaly("two writers", "I8", f"{effect.writer} wrote to {effect.lane} again at {effect.place}")
            done[place].discard(effect.writer)
        last[place] = effect.writer


def wrong_answer(case: Case) -> Found:
    """I17: what a publisher was told is so; only "in doubt" may turn out either way."""
    for capture, told in case.evidence.told.items():
        decided = case.evidence.decisions.get(capture)
        committed = decided is not None and decided.committed
        if told is Told.COMMITTED and not committed:
            yield Anomaly("lost commit", "I17", f"capture {capture}: the publisher was told that it committed")
        if told is Told.ABORTED and committed:
            yield Anomaly("failed write is there", "I17", f"capture {capture}: the publisher was told that it aborted")


def two_states(case: Case) -> Found:
    """I4, I17: whatever marker a publisher or resolver writes says what the database says."""
    for marked in case.evidence.marked:
        decided = case.evidence.decisions.get(marked.capture)
        committed = decided is not None and decided.committed
        if marked.committed and not marked.proved:
            yield Anomaly("forged marker", "I4", f"capture {marked.capture} at {marked.partition}@{marked.offset}")
        elif marked.committed is not committed:
            said = "committed" if marked.committed else "aborted"
            yield Anomaly("two states", "I17", f"capture {marked.capture} is marked {said} in {marked.partition}@{marked.offset}")


def marker_missing(case: Case) -> Found:
    """I18 at capture, quiescent: a committed capture has its marker behind its messages, in every partition."""
    if not case.evidence.quiescent or not case.evidence.markers_due:
        return
    last: dict[tuple[str, Partition], int] = {}
    for marked in case.evidence.marked:
        if marked.proved:
            last[marked.capture, marked.partition] = max(marked.offset, last.get((marked.capture, marked.partition), -1))
    for record in case.evidence.log:
        if record.capture is None or not case.is_published(record):
            continue
        if last.get((record.capture, record.partition), -1) < record.offset:
            yield Anomaly("marker missing", "I18", f"{_at(record)} of capture {record.capture} has none behind it")
    for capture in case.evidence.unmarked:
        yield Anomaly("marker not noted", "I18", f"capture {capture} would be marked again at every start")


def undone_append(case: Case) -> Found:
    """I4 at capture: what a savepoint took back is never appended."""
    for record in case.evidence.log:
        if record.id in case.evidence.undone:
            yield Anomaly("undone append", "I4", f"{_at(record)} was taken back by a savepoint")


def out_of_commit_order(case: Case) -> Found:
    """I6 at capture: captures that wrote the same row stand in the log as their commits do."""
    places: dict[str, dict[tuple[str, Partition], list[int]]] = defaultdict(dict)
    for record in case.evidence.log:
        if record.capture is not None and not record.aborted:
            places[record.capture].setdefault((record.id[0], record.partition), []).append(record.offset)
    for captures in case.evidence.conflicts:
        last: dict[tuple[str, Partition], tuple[int, str]] = {}
        for capture in captures:
            for place, offsets in places[capture].items():
                if min(offsets) < last.get(place, (-1, ""))[0]:
                    yield Anomaly(
                        "append out of commit order", "I6", f"capture {capture} stands before {last[place][1]} in {place}"
                    )
                last[place] = max(offsets), capture


def sequence_broken(case: Case) -> Found:
    """I6 at capture: an incarnation's numbers grow with the offsets, each used once.

    What an aborted capture had sent may arrive late, and counts for nothing.
    """
    for partition, records in case.log.items():
        last: dict[tuple[str, str], int] = {}
        for record in records:
            if record.incarnation is None or record.sequence is None or case.first.get(record.id) is not record:
                continue
            name = (record.id[0], record.incarnation)
            if record.sequence <= last.get(name, 0):
                yield Anomaly("sequence broken", "I6", f"{_at(record)} of {partition} is number {record.sequence} again")
            last[name] = max(record.sequence, last.get(name, 0))


def stuck(case: Case) -> Found:
    """I18, quiescent: the position reaches the end of the log."""
    if not case.evidence.quiescent:
        return
    for partition, end in case.evidence.log_ends.items():
        position = case.evidence.positions.get(partition, 0)
        if position < end:
            yield Anomaly("stuck", "I18", f"{partition} ends at {end}, the position stays at {position}")
        if position > end:
            yield Anomaly("position beyond the log", "I2", f"{partition} ends at {end}, the position is {position}")


CHECKS: tuple[Check, ...] = (
    lost_write,
    dead_without_fault,
    lost_append,
    duplicate,
    aborted_read,
    early_read,
    torn_capture,
    torn_unit,
    leak,
    inversion,
    nonmonotonic_poll,
    vanished,
    unsafe_position,
    position_fell,
    two_writers,
    wrong_answer,
    two_states,
    marker_missing,
    undone_append,
    out_of_commit_order,
    sequence_broken,
    stuck,
)


CAPTURE_CHECKS: tuple[Check, ...] = (
    lost_append,
    wrong_answer,
    two_states,
    marker_missing,
    undone_append,
    out_of_commit_order,
    sequence_broken,
)
"""What can be told of the log and the publishers' databases alone, without any route."""


def _in_order(case: Case, name: str, shown: list[tuple[str, tuple[int, ...], MessageId]]) -> Found:
    last: dict[tuple[str, str, Partition], Logged] = {}
    place_of_last: dict[tuple[str, str, Partition], tuple[int, ...]] = {}
    for lane, place, message in sorted(shown):
        record = case.first.get(message)
        if record is None or case.is_lost(record) or message in case.evidence.redriven | case.evidence.unordered:
            continue  # of one that left the log a later repeat may have the effect
        key = (lane, message[0], record.partition)
        before = last.get(key)
        is_delayed = message in case.evidence.delayed
        if before is not None and record.offset < before.offset and place != place_of_last[key] and not is_delayed:
            yield Anomaly(name, "I6", f"{_at(record)} stands at {place} of {lane}, after {_at(before)}")
        if before is None or record.offset > before.offset:
            last[key], place_of_last[key] = record, place


def _at(record: Logged) -> str:
    return f"{record.id} of {record.partition[0]}[{record.partition[1]}]@{record.offset}"
