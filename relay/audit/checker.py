"""The checker: every captured message has exactly one effect, in its lane's order, and nothing else has one.

Pure: it is given facts (the ledger, effects in their order at the destination, positions, dead letters, the
monitor's evidence) and returns findings. Anomalies are named as in Jepsen's Kafka workload: *unseen* is lag, not loss.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from relay.audit.ledger import Ledger, Place
from relay.audit.letters import SecondOutcomes
from relay.audit.memory import Memory
from relay.message.record import LogPartition
from relay.monitor.entries import DEAD, DELIVERED, SKIPPED, InputRange

EXAMPLES_MAX: Final = 5
DEAD_AND_DELIVERED: Final = "a second outcome: its dead letter stands beside its effect"
DEAD_THOUGH_ABORTED: Final = "its capture was aborted, and there is a dead letter of it"
REDRIVING: Final = "redriven, and what takes its dead letter back is still to come"
EXPIRED_TWICE: Final = "its message, which has left the log, has further effects"
MUST_BE_ZERO: Final = ("lost", "duplicates", "reordered", "phantoms", "in_doubt", "altered")


class Offender(NamedTuple):
    """A message that breaks a promise: where it lies (in the log or at the destination) and what is wrong."""

    kind: str
    place: Place | str
    why: str


@dataclass
class Findings:
    """The counts of one route, with the first offenders of each kind."""

    captured: int = 0
    delivered: int = 0
    lost: int = 0
    duplicates: int = 0
    reordered: int = 0
    phantoms: int = 0
    aborted: int = 0
    in_doubt: int = 0
    dead_letters: int = 0
    conflicts: int = 0
    unseen: int = 0
    altered: int = 0
    expired: int = 0
    skipped: int = 0
    repeats: int = 0
    told: int = 0
    forgotten: int = 0
    recorded: int = 0
    """Of the delivered, those whose effects could not be looked at: what was recorded of them is counted."""
    offenders: list[Offender] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def blame(self, kind: str, place: Place | str, why: str, count: int = 1) -> None:
        """Count an offence; the first few of each kind are kept by name."""
        setattr(self, kind, getattr(self, kind) + count)
        if sum(offender.kind == kind for offender in self.offenders) < EXAMPLES_MAX:
            self.offenders.append(Offender(kind, place, why))

    def passes(self, *, allow_lag: bool) -> bool:
        """Is everything zero that must be?"""
        return not any(getattr(self, name) for name in MUST_BE_ZERO) and (allow_lag or not self.unseen)


class State(NamedTuple):
    """What the route itself says, to be held against what the log and the destination show.

    ``positions`` are the committed offsets; a partition without one was never read. ``lows`` are the log's low
    watermarks. ``dead`` are the digests of the route's dead letters; of the ``forgotten`` the dead-letter topic may have lost
    them, so that the monitor's word for a death is enough. ``outcomes`` says what it recorded.
    ``told`` are the offsets of which a person said that they were delivered, and the owner obeyed. ``dying`` are the
    digests that the inbox calls dead: their dead letters follow that commit, by the next recovery at the latest.
    ``redriven`` are those whose dead letters a redrive took back. ``second`` are those with an effect whose letter stands.
    ``expired`` are those that were delivered from a record which has left the log, if the destination may have forgotten that, too.
    """

    positions: Mapping[LogPartition, int]
    lows: Mapping[LogPartition, int]
    dead: Collection[bytes]
    forgotten: Collection[bytes]
    outcomes: Mapping[bytes, int]
    open_ranges: Iterable[InputRange]
    told: Collection[InputRange] = ()
    dying: Collection[bytes] = ()
    redriven: Collection[bytes] = ()
    second: SecondOutcomes = SecondOutcomes()
    expired: Collection[bytes] = ()


class CommitOrder:
    """In which order, and in which delivery transactions, the messages were committed into a table.

    One delivery transaction may be known by two names, by a monitor page for some of its rows and by the inbox for
    the others. Delivery transactions of one log partition wait for each other on its position's row, so their numbers
    never interleave: names that do are one transaction.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._applied = array("q", [-1]) * len(ledger)
        self._transaction = array("q", [-1]) * len(ledger)

    def note(self, digest: bytes, applied: int, transaction: int) -> None:
        """Take one message's commit, -1 where its number is unknown; what was noted first stays.

        Not of what lies in two partitions of the log: of which one the transaction was is unknown.
        """
        row = self._ledger.index.get(digest)
        if row is not None and self._applied[row] < 0 and row not in self._ledger.scattered:
            self._applied[row], self._transaction[row] = applied, transaction

    def rows(self) -> Iterator[tuple[int, int]]:
        """Yield (the message's row, its transaction) in the order of the commits."""
        merged = self._merged()
        partitions = self._ledger.partition
        for row in sorted(range(len(self._applied)), key=self._applied.__getitem__):
            if self._applied[row] >= 0:
                yield row, merged[partitions[row], self._transaction[row]]

    def _merged(self) -> dict[tuple[int, int], int]:
        """Number the transactions of each log partition anew, one number for names whose spans overlap."""
        spans: dict[tuple[int, int], tuple[int, int]] = {}
        for row, applied in enumerate(self._applied):
            if applied >= 0:
                name = (self._ledger.partition[row], self._transaction[row])
                low, high = spans.get(name, (applied, applied))
                spans[name] = (min(low, applied), max(high, applied))
        numbers: dict[tuple[int, int], int] = {}
        current: dict[int, tuple[int, int]] = {}
        for number, name in enumerate(sorted(spans, key=spans.__getitem__)):
            low, high = spans[name]
            end, same = current.get(name[0], (-1, -1))
            numbers[name] = same if low <= end else number
            current[name[0]] = (max(end, high), numbers[name])
        return numbers


class Checker:
    """Holds effects against the ledger, one after the other, and concludes.

    ``apart`` are the messages that stood outside of their lane's order: dead letters, redriven or not; so does what lies in
    two partitions of the log. ``memory`` says of which effects without a message nothing can be said. Of what is ``replaced``
    the log has a repeat only, and so neither place nor content of what was delivered.
    """

    def __init__(
        self, ledger: Ledger, *, ordered: bool, apart: Iterable[bytes] = (), memory: Memory | None = None, replaced: Iterable[bytes] = ()
    ) -> None:
        self.findings = Findings()
        self.unknown: dict[bytes, tuple[Place | str, int]] = {}
        """Effects of no captured message: the last one's place and their number, by digest or match."""
        self.further: dict[bytes, int] = {}
        """Rows beyond the messages of their name, by match, that may be other routes'."""
        self._ledger = ledger
        self._memory = memory or Memory()
        self._ordered = ordered
        self._replaced = {ledger.index[digest] for digest in replaced}
        self._apart = {row for digest in apart if (row := ledger.index.get(digest)) is not None} | ledger.scattered | self._replaced
        self._times = bytearray(len(ledger))
        self._highest: list[dict[int, int]] = []
        self._homes = array("i", [-1]) * (max(ledger.lane, default=-1) + 1)
        self._moved: set[int] = set()

    def outputs(self, partitions: list[LogPartition], effects: Iterable[tuple[int, int, bytes, int]]) -> None:
        """Take the records of an output topic: (partition's index, offset, digest, content), each partition in order."""
        ledger, times = self._ledger, self._times
        find, contents, offsets, lanes = ledger.index.get, ledger.content, ledger.offset, ledger.lane
        while len(self._highest) < len(partitions):
            self._highest.append({})
        for number, offset, digest, content in effects:
            row = find(digest)
            if row is None:
                self.stranger(digest, Place(*partitions[number], offset))
                continue
            if times[row]:
                self.findings.blame("duplicates", Place(*partitions[number], offset), "a second effect")
                continue
            times[row] = 1
            if content != contents[row] and row not in self._replaced:
                self.findings.blame(
                    "altered", Place(*partitions[number], offset), "key or value differ from the log's"
                )
            lane, log_offset = lanes[row], offsets[row]
            highest = self._highest[number]
            if row in self._apart:
                continue
            if log_offset < highest.get(lane, -1):
                if self._ordered:
                    why = f"delivered after offset {highest[lane]} of its lane"
                    self.findings.blame("reordered", ledger.place(row), why)
            else:
                highest[lane] = log_offset
            if self._homes[lane] != number:
                self._settle_home(lane, number)

    def rows(self, matches: Iterable[bytes], table: str, *, may_be_others: bool = False) -> None:
        """Take the rows of a table, each as what it is known by: the ledger's match, or the digest.

        Those beyond the messages of that name wait in ``further``, if they may be other routes'.
        """
        ledger = self._ledger
        find = ledger.matches.get if ledger.matches else ledger.index.get
        for match in matches:
            row = find(match)
            if row is None:
                self.stranger(match, f"a row of {table}")
                continue
            row = self._namesake(match, row)
            if may_be_others and self._times[row]:
                self.further[match] = self.further.get(match, 0) + 1
            else:
                self.effect(row, f"a row of {table}")

    def not_others(self, matches: Iterable[bytes], table: str) -> None:
        """Take further rows of these names for effects of the own messages."""
        for match in matches:
            for _ in range(self.further.pop(match)):
                self.effect(self._ledger.matches[match], f"a row of {table}")

    def is_met(self, match: bytes) -> bool:
        """Has the message that a table knows by this name an effect so far?"""
        row = self._ledger.matches.get(match)
        return row is not None and bool(self._times[row])

    def effect(self, row: int, where: Place | str) -> None:
        """Take one effect of a message."""
        if self._times[row]:
            self.findings.blame("duplicates", self._ledger.place(row), f"a second effect: {where}")
        self._times[row] = 1

    def recorded(self, digests: Iterable[bytes], where: str) -> None:
        """Take what inbox and monitor say was delivered as the effects, where the effects cannot be looked at."""
        for digest in digests:
            row = self._ledger.index.get(digest)
            if row is not None:
                self.findings.recorded += not self._times[row]
                self._times[row] = 1
            elif digest not in self.unknown:
                self.stranger(digest, where)

    def nameless(
        self, rows: int, delivered: Iterable[bytes], table: str, *, older: int = 0, others: bool = False
    ) -> int:
        """Hold the rows of a table that have no id against the messages without one that are said to be delivered.

        ``older``: so many deliveries of messages that have left the log are known, and have no row of a name. Return
        how many rows are beyond all that, which are no fault where ``others`` write into the table too.
        """
        nameless, index = self._ledger.nameless, self._ledger.index
        said = {row for digest in delivered if (row := index.get(digest)) in nameless and row is not None}
        for row in said:
            self.effect(row, table)
        expired = max(min(rows - len(said), older), 0)
        self.findings.expired += expired
        beyond = rows - expired - len(said)
        if beyond < 0 or (beyond > 0 and not others):
            kind = "duplicates" if beyond > 0 else "lost"
            why = f"{rows} rows without an id for {len(said) + expired} delivered messages without one"
            self.findings.blame(kind, f"table {table}", why, abs(beyond))
        return max(beyond, 0)

    def commits(self, order: CommitOrder) -> None:
        """Judge the order in a table: rows of one delivery transaction became visible together."""
        if not self._ordered:
            return
        lanes, offsets = self._ledger.lane, self._ledger.offset
        seen: dict[int, tuple[int, int, int]] = {}
        for row, transaction in order.rows():
            if row in self._apart:
                continue
            lane, offset = lanes[row], offsets[row]
            last, before, inside = seen.get(lane, (transaction, -1, -1))
            if transaction != last:
                before = inside
            if offset < before:
                why = f"committed after offset {before} of its lane"
                self.findings.blame("reordered", self._ledger.place(row), why)
            seen[lane] = (transaction, before, max(inside, offset))

    def stranger(self, key: bytes, where: Place | str) -> None:
        """Take an effect of no captured message; what it is, is concluded at the end."""
        if key not in self._ledger.refused and self._memory.lacks(key, where):
            self.findings.forgotten += 1  # not kept: a table may have any number of them
            return
        found = self.unknown.get(key)
        self.unknown[key] = (where, 1 if found is None else found[1] + 1)

    @property
    def has_strangers(self) -> bool:
        """Is there any effect of no captured message so far?"""
        return bool(self.findings.forgotten or self.unknown)

    def expire(self, count: int) -> None:
        """Take so many effects of no captured message, at most, for those of messages that have left the log."""
        refused, findings = self._ledger.refused, self.findings
        forgotten = min(count, findings.forgotten)
        strange = [key for key in self.unknown if key not in refused][: count - forgotten]
        for key in strange:
            del self.unknown[key]
        findings.forgotten -= forgotten
        findings.expired += forgotten + len(strange)

    def met(self, digests: Iterable[bytes]) -> set[bytes]:
        """Return which of the messages have an effect so far, or may be given one of those that share a name with them."""
        alike = self._alike()
        index, times = self._ledger.index, self._times
        return {digest for digest in digests if (row := index.get(digest)) is not None and (times[row] or row in alike)}

    def _alike(self) -> set[int]:
        """Return the rows that share a name with another."""
        return {row for rows in self._ledger.namesakes.values() for row in rows}

    def missing(self) -> Iterable[bytes]:
        """Yield the digests of captured messages without an effect so far, and of those that share a name with one."""
        alike = self._alike()
        rows = enumerate(zip(self._ledger.index, self._times, strict=True))
        return (digest for row, (digest, times) in rows if not times or row in alike)

    def conclude(self, state: State, expired: Collection[bytes] = ()) -> Findings:
        """Judge what has no effect and what has no message. ``expired``: unknown effects older than the log."""
        findings, ledger = self.findings, self._ledger
        self._allot(state)
        findings.captured = len(ledger)
        findings.delivered = len(self._times) - self._times.count(0)
        findings.aborted = len(ledger.aborted)
        findings.conflicts = ledger.conflict_count
        findings.repeats = ledger.repeats
        findings.dead_letters = len(state.dead)
        for digest, row in zip(ledger.index, range(len(ledger)), strict=True):
            if not self._times[row]:
                self._judge_missing(row, digest, state)
            elif digest in state.second.faults:
                findings.blame("duplicates", ledger.place(row), DEAD_AND_DELIVERED)
            elif digest in state.second.redriving:
                findings.blame("unseen", ledger.place(row), REDRIVING)
        for key, (where, count) in self.unknown.items():
            self._judge_unknown(key, where, count, expired)
        for digest, at in ledger.aborted.items():
            if digest in state.dead and digest not in ledger.undecided:
                findings.blame("phantoms", ledger.place_of(*at), DEAD_THOUGH_ABORTED)
        for partition, offset in ledger.undecided.values():
            findings.blame("in_doubt", ledger.place_of(partition, offset), "its capture is undecided")
        for name, low in state.lows.items():
            position = state.positions.get(name, low)
            if position < low:
                why = f"the route stands there, but the log begins at {low}: up to that, it was left undelivered"
                findings.blame("lost", Place(name.topic, name.partition, position), why, low - position)
        self._note()
        return findings

    def _allot(self, state: State) -> None:
        """Let the effects that may be those of several messages be those of the ones that need one."""
        ledger, times = self._ledger, self._times
        members = {row for groups in (ledger.namesakes, ledger.sharing) for rows in groups.values() for row in rows}
        if not members:
            return
        named = {row: digest for digest, row in ledger.index.items() if row in members}
        kinds = {row: self._verdict(ledger.place(row), digest, state)[0] for row, digest in named.items()}
        lost = {row for row, kind in kinds.items() if kind == "lost"}
        dead = {row for row, digest in named.items() if digest in state.second.faults or digest in state.second.redriving}
        for rows in ledger.namesakes.values():
            spare = sorted((row for row in rows if times[row] and row not in lost), key=lambda row: row not in dead)
            wanting = [row for row in rows if not times[row] and row in lost]
            for giver, taker in zip(spare, wanting, strict=False):
                times[giver], times[taker] = 0, 1
            # The effect of one that died is rather that of one whose delivery is not known yet.
            idle = [row for row in rows if not times[row] and kinds[row] == "unseen"]
            for giver, taker in zip([row for row in rows if times[row] and row in dead - lost], idle, strict=False):
                times[giver], times[taker] = 0, 1
        for rows in ledger.sharing.values():
            if any(times[row] for row in rows):
                for row in rows:
                    times[row] |= row in lost

    def _judge_missing(self, row: int, digest: bytes, state: State) -> None:
        place = self._ledger.place(row)
        kind, why = self._verdict(place, digest, state)
        if why:
            self.findings.blame(kind, place, why)
        elif kind:
            setattr(self.findings, kind, getattr(self.findings, kind) + 1)

    @staticmethod
    def _verdict(place: Place, digest: bytes, state: State) -> tuple[str, str]:
        """Return as what a message without an effect counts ("" as nothing), and why it is an offence, if it is one."""
        outcome = state.outcomes.get(digest)
        if digest in state.redriven and outcome != DELIVERED:
            verdict = "unseen", "its redrive is newer than what was read of the destination"
        elif (digest in state.dead and outcome != DELIVERED) or (outcome == DEAD and digest in state.forgotten):
            verdict = "", ""  # while a letter excuses nothing that was delivered: anyone may have written it, or left it
        elif outcome == SKIPPED:
            verdict = "skipped", ""
        elif digest in state.dying:
            verdict = "unseen", "its death is in the inbox, its dead letter is still to come"
        elif digest in state.expired:
            verdict = "expired", ""
        elif outcome == DEAD:
            verdict = "lost", "recorded as dead, but there is no dead letter of it"
        elif outcome is not None and _lies_in(place, state.told):
            verdict = "told", ""
        elif outcome is not None:
            verdict = "lost", "recorded as delivered, but it has no effect"
        elif place.offset < state.positions.get(LogPartition(place.topic, place.partition), 0):
            verdict = "lost", "passed by the route, but it has no effect"
        elif _lies_in(place, state.open_ranges):
            verdict = "in_doubt", "its delivery was begun and nothing says how it ended"
        else:
            verdict = "unseen", "not delivered yet"
        return verdict

    def _judge_unknown(self, key: bytes, where: Place | str, count: int, expired: Collection[bytes]) -> None:
        refused = self._ledger.refused.get(key, key)
        if refused in self._ledger.undecided:
            return  # counted in doubt
        if refused in self._ledger.aborted:
            log = self._ledger.place_of(*self._ledger.aborted[refused])
            self.findings.blame("phantoms", where, f"its capture was aborted ({log})", count)
        elif key in expired:
            self.findings.expired += 1
            if count > 1:
                self.findings.blame("duplicates", where, EXPIRED_TWICE, count - 1)
        else:
            self.findings.blame("phantoms", where, "no captured message has this identity", count)

    def _namesake(self, match: bytes, row: int) -> int:
        """Of several messages that a table knows by the same name, the next one without a row."""
        rows = self._ledger.namesakes.get(match)
        return next((other for other in rows if not self._times[other]), row) if rows else row

    def _settle_home(self, lane: int, number: int) -> None:
        if self._homes[lane] >= 0:
            self._moved.add(lane)
        self._homes[lane] = number

    def _note(self) -> None:
        ledger, notes = self._ledger, self.findings.notes
        if ledger.astray_count:
            notes.append(
                f"{ledger.astray_count} repeats lie in another partition than their first (such as "
                f"{ledger.astray[0]}): their order is not judged; a producer must send one id to one partition, or the route set dedup = "
                '"route"'
            )
        if ledger.conflict_count:
            notes.append(
                f"{ledger.conflict_count} repeats have another content (such as {ledger.conflicts[0]}): the first wins"
            )
        if ledger.sharing:
            notes.append(
                f"{len(ledger.sharing)} ids are not unique over their sources, and the upsert by the id keeps one row of "
                "them: make a column from ce:source part of the key"
            )
        elif ledger.namesakes:
            notes.append(
                f"{len(ledger.namesakes)} ids are not unique over their sources: map a column from ce:source so that "
                "each row can be told apart"
            )
        if self._ordered and self._moved:
            notes.append(
                f"{len(self._moved)} lanes lie in more than one output partition: their order cannot be seen across "
                "them (was the topic grown?)"
            )


def _lies_in(place: Place, ranges: Iterable[InputRange]) -> bool:
    return any(
        (place.topic, place.partition) == (one.topic, one.partition) and one.first <= place.offset < one.next
        for one in ranges
    )
