"""Recovery's decisions: how an unsealed transaction ended, by evidence alone (US 7,480,918).

The labelled table says what is done with a message in doubt. It is total: exactly one row matches each input, and
no row guesses. Every step may be interrupted and done again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from relay.message.identity import CONTENT_BYTES
from relay.monitor.entries import (
    DEAD,
    DELIVERED,
    NOT_DELIVERED,
    PAGE_ROWS,
    UNKNOWN_OFFSET,
    Begin,
    Page,
    Proof,
    SettleSeal,
    select,
)
from relay.monitor.resolution import Told
from relay.monitor.rows import split


class Entered(Enum):
    """What the monitor says of a message in doubt."""

    PROVEN = "an entry that counts"
    UNSEALED = "an entry of a transaction without a seal"
    NOTHING = "no entry"


class Shown(Enum):
    """What the destination itself says of it."""

    PRESENT = "the output is there"
    ABSENT = "the output is not there"
    UNREADABLE = "the destination cannot tell"


class Do(Enum):
    """What recovery does."""

    NOTHING = "it is done"
    ADD_ENTRY = "add the entry with the recovery worker's name"
    VOID_AND_DELIVER = "take the entry back and deliver"
    ENTER_AS_TOLD = "enter it as delivered, without an output, with the audit record's id"
    DELIVER = "deliver; the entry carries the recovery worker's name"
    STAY_IN_DOUBT = "leave it in doubt and say so"


class Row(NamedTuple):
    """One row of the table."""

    label: str
    entered: frozenset[Entered]
    shown: frozenset[Shown]
    do: Do
    told: frozenset[Told] = frozenset(Told)


TABLE: Final[tuple[Row, ...]] = (
    Row("proven", frozenset({Entered.PROVEN}), frozenset(Shown), Do.NOTHING),
    Row("present", frozenset({Entered.UNSEALED, Entered.NOTHING}), frozenset({Shown.PRESENT}), Do.ADD_ENTRY),
    Row("false entry", frozenset({Entered.UNSEALED}), frozenset({Shown.ABSENT}), Do.VOID_AND_DELIVER),
    Row("untouched", frozenset({Entered.NOTHING}), frozenset({Shown.ABSENT}), Do.DELIVER),
    Row(
        "unknown",
        frozenset({Entered.UNSEALED, Entered.NOTHING}),
        frozenset({Shown.UNREADABLE}),
        Do.STAY_IN_DOUBT,
        frozenset({Told.NOTHING}),
    ),
    Row(
        "told it happened",
        frozenset({Entered.UNSEALED, Entered.NOTHING}),
        frozenset({Shown.UNREADABLE}),
        Do.ENTER_AS_TOLD,
        frozenset({Told.COMMIT}),
    ),
    Row(
        "told it did not",
        frozenset({Entered.UNSEALED, Entered.NOTHING}),
        frozenset({Shown.UNREADABLE}),
        Do.VOID_AND_DELIVER,
        frozenset({Told.ABORT}),
    ),
)
"""What a person decided counts only where the destination cannot tell: no other row looks at it."""


def decide(entered: Entered, shown: Shown, told: Told = Told.NOTHING) -> Row:
    """Return the one row that matches."""
    (row,) = (row for row in TABLE if entered in row.entered and shown in row.shown and told in row.told)
    return row


@dataclass(frozen=True, slots=True)
class Settlement:
    """What settles one begun transaction in one monitor partition: pages to write and the settle seal."""

    pages: list[Page]
    seal: SettleSeal
    added: int
    voided: int


def settle(
    begin: Begin,
    entries: Iterable[Page],
    present: Collection[bytes],
    *,
    worker: str,
    instance: bytes,
    n: int,
    letters: Collection[bytes] = (),
    replays: Callable[[list[bytes]], bytes] = lambda _: b"",
    can_tell: bool = True,
) -> Settlement:
    """Settle ``begin``, whose unsealed ``entries`` are visible, by the digests ``present`` at the destination.

    ``worker``, ``instance`` and ``n`` are the recovery's own: the pages count by their proof, not by a seal. A
    present output without an entry gets one too, as a death if it is one of the dead ``letters``; its log position is then
    unknown, its replay number is what ``replays`` says. A redrive without an output falls back to the death before it. Where the destination cannot tell
    it counts as one that died: nobody repeats it by himself, and its dead letter stays.
    """
    proven: list[Page] = []
    voided: list[Page] = []
    left = set(present)
    topic, partition = (begin.inputs[0].topic, begin.inputs[0].partition) if begin.inputs else ("", 0)
    for page in entries:
        topic, partition = page.topic, page.partition
        digests = split(page.digests)
        are_shown = [digest in present for digest in digests]
        left.difference_update(digests)
        for shown, rows in ((Shown.PRESENT, are_shown), (Shown.ABSENT, [not there for there in are_shown])):
            if any(rows):
                is_proven = decide(Entered.UNSEALED, shown).do is Do.ADD_ENTRY
                part = page if all(rows) else select(page, [i for i, wanted in enumerate(rows) if wanted])
                if not is_proven and part.replays and not can_tell:
                    part, is_proven = replace(part, outcomes=bytes([DEAD]) * part.rows), True
                (proven if is_proven else voided).append(_settled(part, worker, instance, n, is_proven=is_proven))
    if left and decide(Entered.NOTHING, Shown.PRESENT).do is Do.ADD_ENTRY:
        proven += _unentered(sorted(left), worker, instance, n, topic, partition, letters, replays)
    return Settlement(
        [*proven, *voided],
        SettleSeal(worker, begin.instance, begin.n),
        sum(page.rows for page in proven),
        sum(page.rows for page in voided),
    )


def _settled(page: Page, worker: str, instance: bytes, n: int, *, is_proven: bool) -> Page:
    """The same rows, proven or taken back, in the recovery worker's name; a batch is redriven as a whole, or not at all."""
    fallen = NOT_DELIVERED if not page.replays else DEAD
    return replace(
        page,
        worker=worker,
        instance=instance,
        n=n,
        proof=Proof.PROVEN if is_proven else Proof.VOID,
        recovery=worker,
        outcomes=page.outcomes if is_proven else bytes([fallen]) * page.rows,
        replays=page.replays if is_proven else bytes(replay - 1 for replay in page.replays),
        destinations=(),
    )


def _unentered(
    digests: list[bytes],
    worker: str,
    instance: bytes,
    n: int,
    topic: str,
    partition: int,
    letters: Collection[bytes],
    replays: Callable[[list[bytes]], bytes],
) -> Iterator[Page]:
    """Pages of outputs that have no entry: neither content nor log position is known."""
    for start in range(0, len(digests), PAGE_ROWS):
        part = digests[start : start + PAGE_ROWS]
        yield Page(
            worker, instance, n, Proof.PROVEN, worker, topic, partition,
            digests=b"".join(part),
            contents=bytes(CONTENT_BYTES * len(part)),
            offsets=[UNKNOWN_OFFSET] * len(part),
            outcomes=bytes(DEAD if digest in letters else DELIVERED for digest in part),
            replays=replays(part),
        )  # fmt: skip
