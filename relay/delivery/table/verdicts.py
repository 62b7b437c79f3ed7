"""What a table delivery decides without a database: repeats within a batch, rows at fault, and the verdicts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from relay.delivery.table.mapping import Mapped
from relay.message.avro_values import WriterSchemas
from relay.message.errors import Fenced, MessageRejected, Stopped
from relay.message.record import LogMessage, LogPartition
from relay.transfer.cursor import DEAD, DELIVERED, DUPLICATE, InboxRow, RangeRow, Verdict

INBOX_ROWS: Final = 10_000
"""Inbox rows read at a time."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What a cursor needs of its route; see the configuration for the meaning of each word.

    ``mode`` is insert, upsert (on the columns ``key``) or sql (``sql`` with ``%(column)s`` parameters); with ``queue``
    the effect is not a table's, and mode and columns do not count.
    """

    relay: str
    route: str
    resource: str
    table: str
    mode: Literal["insert", "upsert", "sql"]
    columns: Mapping[str, str]
    key: Sequence[str] = ()
    sql: str | None = None
    schema: Path | None = None
    registry: WriterSchemas | None = None
    stop_on_dead: bool = False
    queue: str = ""

    @property
    def where(self) -> str:
        """What errors call the destination."""
        if self.queue:
            return f"queue {self.queue!r}"
        return f"table {self.table!r} of resource {self.resource!r}" if self.table else f"resource {self.resource!r}"


def quoted(table: str) -> str:
    """Quote a name that the configuration has checked, since the worker writes to exactly this name and no folded one."""
    return ".".join(f'"{part}"' for part in table.split("."))


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds after which a database ends what takes too long; the last is at most the group's session timeout."""

    lock_timeout_s: float = 2.0
    statement_timeout_s: float = 8.0
    idle_in_transaction_s: float = 10.0


@dataclass(slots=True)
class Arrivals:
    """A batch without its repeats. Numbers are indices into ``messages``.

    ``firsts`` are the first of each digest, in the order of their digests: every transaction inserts in that order,
    so that two of them never wait for each other in a circle. ``repeats`` name the first one they repeat.
    """

    messages: Sequence[LogMessage]
    firsts: list[int]
    repeats: dict[int, int]
    places: list[LogPartition]
    place_of: list[int]

    @classmethod
    def of(cls, messages: Sequence[LogMessage]) -> Arrivals:
        """Sort a batch, given in delivery order."""
        digests = [message.digest for message in messages]
        firsts = list(range(len(digests)))
        repeats: dict[int, int] = {}
        if len(set(digests)) < len(digests):
            seen: dict[bytes, int] = {}
            for i, digest in enumerate(digests):
                first = seen.setdefault(digest, i)
                if first != i:
                    repeats[i] = first
            firsts = list(seen.values())
        firsts.sort(key=digests.__getitem__)
        numbers: dict[tuple[str, int], int] = {}
        place_of = [numbers.setdefault((m.topic, m.partition), len(numbers)) for m in messages]
        return cls(messages, firsts, repeats, [LogPartition(*place) for place in numbers], place_of)


@dataclass(slots=True)
class Prepared:
    """A mapped batch; adapters add what they write. ``mapped`` covers the messages without a fault."""

    arrivals: Arrivals
    mapped: Mapped
    ranges: Sequence[RangeRow] = field(default=(), kw_only=True)
    redriven: bool = field(default=False, kw_only=True)

    @property
    def faults(self) -> dict[int, MessageRejected]:
        """Messages that could not be decoded or mapped, by index."""
        return self.mapped.faults


@dataclass(slots=True)
class InboxAnswer:
    """What the inbox said: numbers of the rows it took, by index, and the rows that were there already, by digest."""

    applied: dict[int, int]
    known: dict[bytes, InboxRow]


class Acknowledged:
    """How many deliveries of each partition the database has acknowledged to a cursor since its claim.

    The position's row counts them too (``writes``). A database that counts fewer is an older copy (a backup restored under
    a running worker), in which epoch, worker and position may well be as they were: nothing is written to it before it is
    claimed again and filled from its position. Positions or row numbers would not tell: what was delivered above the
    position leaves no trace in it, and other workers soon bring the numbers up again.
    """

    def __init__(self) -> None:
        self._writes: dict[LogPartition, int] = {}

    def floor(self, partition: LogPartition) -> int:
        """Return how many deliveries the database must know of."""
        return self._writes.get(partition, 0)

    def add(self, positions: Collection[LogPartition]) -> None:
        """A transaction has committed."""
        for partition in positions:
            self._writes[partition] = self.floor(partition) + 1


def stop_if_asked(
    plan: TablePlan, prepared: Prepared, answer: InboxAnswer, causes: Mapping[int, MessageRejected]
) -> None:
    """Raise Stopped before the commit if a message would become a dead letter and the route wants none."""
    if not plan.stop_on_dead or prepared.redriven:
        return
    for i, cause in causes.items():
        if i in answer.applied:
            raise Stopped(
                f"{prepared.arrivals.messages[i]!r} of route {plan.route!r} cannot be delivered to {plan.where} "
                f"({cause.code}: {cause}); on_dead = \"stop\" keeps it from becoming a dead letter: mend the table or "
                "the mapping, or set on_dead = \"continue\""
            )


def claim_of(claimed: Mapping[LogPartition, tuple[bytes, int]], partition: LogPartition) -> tuple[bytes, int]:
    """Return topic id and epoch of a claimed partition; Fenced if this cursor does not hold it."""
    found = claimed.get(partition)
    if found is None:
        raise Fenced(f"{partition.topic}[{partition.partition}] is not claimed by this worker; it must recover first")
    return found


def inbox_row(claimed: Mapping[LogPartition, tuple[bytes, int]], row: Sequence[Any]) -> InboxRow:
    """Read an inbox row; a place of a topic that is not claimed keeps its id for a name."""
    digest, content, topic_id, number, offset, outcome, applied = row
    for partition, (topic, _) in claimed.items():
        if partition.partition == number and topic == topic_id:
            return InboxRow(digest, content, partition, offset, outcome, applied)
    return InboxRow(digest, content, LogPartition(topic_id.hex(), number), offset, outcome, applied)


def effective(prepared: Prepared, answer: InboxAnswer) -> list[int] | None:
    """Return which rows of ``mapped`` are to take effect, in delivery order; None stands for all of them."""
    arrivals, good = prepared.arrivals, prepared.mapped.good
    if len(answer.applied) == len(arrivals.messages):
        return None
    return [row for row, index in enumerate(good) if index in answer.applied]


def verdicts(
    prepared: Prepared, answer: InboxAnswer, causes: Mapping[int, MessageRejected], earlier: Mapping[bytes, MessageRejected]
) -> list[Verdict]:
    """Return what became of each message, in delivery order.

    ``causes`` are the rejections of this transaction by index, ``earlier`` those of one whose answer was lost, by
    digest. A row that was there already is this very message if it lies at the same place in the log, and else
    another message of the same identity.
    """
    arrivals, applied = prepared.arrivals, answer.applied
    if not causes and len(applied) == len(arrivals.messages):
        # Nearly every batch; and where one number stands for the transaction, one verdict stands for every message.
        numbers = set(applied.values())
        if len(numbers) == 1:
            return [Verdict(DELIVERED, numbers.pop())] * len(applied)
    found = []
    for i, message in enumerate(arrivals.messages):
        number = applied.get(i)
        if number is not None:
            cause = causes.get(i)
            found.append(Verdict(DELIVERED, number) if cause is None else Verdict(DEAD, number, cause))
        elif i in arrivals.repeats:
            conflict = arrivals.messages[arrivals.repeats[i]].content != message.content
            found.append(Verdict(DUPLICATE, -1, None, conflict))
        else:
            row = answer.known[message.digest]
            found.append(_of_known(message, row, causes.get(i) or earlier.get(message.digest)))
    return found


def _of_known(message: LogMessage, row: InboxRow, cause: MessageRejected | None) -> Verdict:
    if (message.topic, message.partition, message.offset) != (*row.partition, row.offset):
        return Verdict(DUPLICATE, row.applied, None, row.content != message.content)
    if row.outcome == DEAD:
        return Verdict(DEAD, row.applied, cause or LOST_CAUSE)
    return Verdict(row.outcome, row.applied)


LOST_CAUSE: Final = MessageRejected(
    "apply",
    "cause_lost",
    "the message was rejected, and the cause is lost with the answer or the worker that had it; an earlier letter may name it",
)
LOST_PAYLOAD: Final = MessageRejected(
    "apply",
    "payload_lost",
    "the message was rejected, and left the log before its dead letter was acknowledged; an earlier one may have it",
)
