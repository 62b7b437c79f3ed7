"""Recovery's decisions: how an unsealed transaction ended, by evidence alone (US 7,480,918).

The labelled table says what is done with a message in doubt. It is total: exactly one row matches each input, and
no row guesses. Every step may be interrupted and done again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from relay.message.identity import CONTENT_BYTES, DIGEST_BYTES
from relay.monitor.entries import (
    NOT_DELIVERED,
    PAGE_ROWS,
    UNKNOWN_OFFSET,
    Begin,
    Page,
    Proof,
    SettleSeal,
)
from relay.monitor.resolution import Told


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
    begin: Begin, entries: Iterable[Page], present: Collection[bytes], *, worker: str, instance: bytes, n: int
) -> Settlement:
    """Settle ``begin``, whose unsealed ``entries`` are visible, by the digests ``present`` at the destination.

    ``worker``, ``instance`` and ``n`` are the recovery's own: the pages count by their proof, not by a seal. A
    present output without an entry gets one too; its log position is then unknown.
    """
    found: dict[bytes, tuple[bytes, int, int]] = {}
    voided: dict[bytes, tuple[bytes, int, int]] = {}
    topic, partition = (begin.inputs[0].topic, begin.inputs[0].partition) if begin.inputs else ("", 0)
    for page in entries:
        topic, partition = page.topic, page.partition
        for digest, row in _rows(page):
            shown = Shown.PRESENT if digest in present else Shown.ABSENT
            do = decide(Entered.UNSEALED, shown).do
            (found if do is Do.ADD_ENTRY else voided)[digest] = row
    for digest in present:
        if digest not in found and decide(Entered.NOTHING, Shown.PRESENT).do is Do.ADD_ENTRY:
            found[digest] = (bytes(CONTENT_BYTES), UNKNOWN_OFFSET, 0)
    pages = [
        *_pages(found, Proof.PROVEN, worker, instance, n, topic, partition),
        *_pages(voided, Proof.VOID, worker, instance, n, topic, partition),
    ]
    return Settlement(pages, SettleSeal(worker, begin.instance, begin.n), len(found), len(voided))


def _rows(page: Page) -> Iterator[tuple[bytes, tuple[bytes, int, int]]]:
    for i, offset in enumerate(page.offsets):
        digest = page.digests[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES]
        content = page.contents[i * CONTENT_BYTES : (i + 1) * CONTENT_BYTES]
        yield digest, (content, offset, page.outcomes[i])


def _pages(
    rows: dict[bytes, tuple[bytes, int, int]],
    proof: Proof,
    worker: str,
    instance: bytes,
    n: int,
    topic: str,
    partition: int,
) -> Iterator[Page]:
    digests = list(rows)
    for start in range(0, len(digests), PAGE_ROWS):
        part = digests[start : start + PAGE_ROWS]
        values = [rows[digest] for digest in part]
        outcomes = bytes(len(part)) if proof is Proof.PROVEN else bytes([NOT_DELIVERED]) * len(part)
        if proof is Proof.PROVEN:
            outcomes = bytes(value[2] for value in values)
        yield Page(
            worker, instance, n, proof, worker, topic, partition,
            digests=b"".join(part),
            contents=b"".join(value[0] for value in values),
            offsets=[value[1] for value in values],
            outcomes=outcomes,
        )  # fmt: skip
