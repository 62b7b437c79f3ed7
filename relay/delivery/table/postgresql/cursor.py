"""The cursor in PostgreSQL: position under the epoch, inbox rows and effects are one transaction, or none of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, Final

import psycopg

from relay.delivery.table import range_rows
from relay.delivery.table.mapping import BatchMapping, TableMapping
from relay.delivery.table.postgresql import inbox_rows
from relay.delivery.table.postgresql.connection import CursorConnection
from relay.delivery.table.postgresql.effects import (
    Connection,
    Effect,
    Pieces,
    TooSlow,
    effect,
    stop_if_no_row_fits,
    stop_if_numbers_are_taken,
)
from relay.delivery.table.postgresql.failures import stop_if_statement_is_wrong
from relay.delivery.table.postgresql.trials import Trials
from relay.delivery.table.row_search import RowFault
from relay.delivery.table.trims import Trims
from relay.delivery.table.verdicts import (
    INBOX_ROWS,
    Acknowledged,
    Arrivals,
    InboxAnswer,
    Limits,
    Prepared,
    TablePlan,
    claim_of,
    effective,
    inbox_row,
    stop_if_asked,
    verdicts,
)
from relay.message.errors import Fenced, MessageRejected, Retriable, Stopped
from relay.message.record import LogMessage, LogPartition
from relay.resources.patience import answered
from relay.resources.postgresql_states import is_servers
from relay.transfer.cursor import Claim, InboxRow, RangeRow, Verdict
from relay.world import randomness
from relay.world.crash import crash_point

_BEGIN: Final = "begin isolation level read committed read write"
_NOT_NULL: Final = "23502"
_CAUTIOUS_BATCHES: Final = 64
"""Batches that expect repeats after one that met some: a repeat not expected costs a transaction."""


class _Care(IntEnum):
    """What a transaction expects of its batch. Expecting less is faster, and is found out before COMMIT."""

    NONE = 0
    REPEATS = 1
    FAULTS = 2


class _Repeated(Exception):
    """The inbox held one of the rows already; the transaction is void."""


@dataclass(slots=True)
class _PreparedText(Prepared):
    """A batch with its inbox rows as COPY takes them, and the effect that formed its rows."""

    inbox: list[bytes]
    effect: Effect
    topic_ids: dict[LogPartition, bytes]


class PostgresqlCursor:
    """The ``TableCursor`` of a PostgreSQL database; it connects when first used, and again after a failure."""

    def __init__(
        self,
        url: str,
        plan: TablePlan,
        limits: Limits | None = None,
        *,
        mapping: BatchMapping | None = None,
        effects: Callable[[Connection], Effect] | None = None,
    ) -> None:
        self._plan = plan
        self._limits = limits or Limits()
        self._mapping = mapping or TableMapping(plan.columns, plan.schema, plan.registry)
        self._claimed: dict[LogPartition, tuple[bytes, int]] = {}
        self._worker = ""
        self._trims = Trims()
        self._acknowledged = Acknowledged()
        self._earlier: dict[bytes, MessageRejected] = {}
        self._cautious = 0
        self.progressed: Callable[[], object] = bool
        # Apart, since the one may be slow where the other is not.
        self._pieces = Pieces(_CAUTIOUS_BATCHES, lambda: self.progressed())  # noqa: PLW0108 - its owner sets it later
        self._inbox_pieces = Pieces(_CAUTIOUS_BATCHES, lambda: self.progressed())  # noqa: PLW0108
        self._trials = Trials(plan, self._limits, self._pieces, lambda: self.progressed())  # noqa: PLW0108
        self._link = CursorConnection(url, plan, self._limits, effects or partial(effect, plan=plan), self._trials.met)

    def claim(self, partitions: Mapping[LogPartition, bytes]) -> dict[LogPartition, Claim]:
        """Raise the epoch of each partition in one statement, and read its position."""
        worker = randomness.uuid_bytes().hex()
        wanted = {(topic_id, p.partition): p for p, topic_id in partitions.items()}
        parameters = {
            "worker": worker,
            "topic_ids": list(partitions.values()),
            "topics": [p.topic for p in partitions],
            "partitions": [p.partition for p in partitions],
        }
        with self._link.session() as connection:
            rows = self._raise_epochs(connection, parameters)
            # Read after the claim: whoever held a partition before can write no more.
            ranges = self._link.run(connection, "read ranges", parameters).fetchall()
        claims = {wanted[row[0], row[1]]: Claim(row[2], row[3]) for row in rows}
        found = range_rows.with_ranges(claims, partitions, ranges)
        self._worker, self._earlier = worker, {}
        self._trims.clear()
        self._acknowledged = Acknowledged()
        self._claimed = {p: (partitions[p], claim.epoch) for p, claim in found.items()}
        return found

    def _raise_epochs(self, connection: Connection, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run the claim, whose commit no limit of the server's ends: it may wait for a synchronous standby."""
        try:
            with answered(connection.fileno(), self._limits.statement_timeout_s):
                return self._link.run(connection, "claim", parameters).fetchall()
        except psycopg.OperationalError:
            if not connection.closed:
                raise
            raise Retriable(
                f"{self._plan.where}: the claim of its positions was not answered: the connection was lost, or a synchronous "
                "standby is away; it is tried again"
            ) from None

    def inbox(self, partitions: Collection[LogPartition]) -> Iterator[list[InboxRow]]:
        """Yield the rows of claimed partitions, ``INBOX_ROWS`` at a time."""
        for partition in partitions:
            topic_id = claim_of(self._claimed, partition)[0]
            place = {"topic_id": topic_id, "partition": partition.partition, "limit": INBOX_ROWS}
            offset, digest = -1, b""
            while True:
                with self._link.session() as connection:
                    found = self._link.run(connection, "read", {**place, "offset": offset, "digest": digest}).fetchall()
                if not found:
                    break
                yield [inbox_row(self._claimed, row) for row in found]
                offset, digest = found[-1][4], found[-1][0]

    def prepare(
        self, messages: Sequence[LogMessage], ranges: Sequence[RangeRow] = (), *, redriven: bool = False
    ) -> _PreparedText:
        """Map messages and render their rows; the types are those that the last claim read."""
        by = self._link.effect  # once: the cursor's thread may connect again meanwhile, and read other types
        assert by is not None, "claim partitions before preparing messages"
        arrivals = Arrivals.of(messages)
        mapped = self._mapping.map(messages, by.finish)
        topic_ids = {place: claim_of(self._claimed, place)[0] for place in arrivals.places}
        inbox = inbox_rows.copy_rows(arrivals, mapped.faults, topic_ids)
        return _PreparedText(arrivals, mapped, inbox, by, topic_ids, ranges=ranges, redriven=redriven)

    def deliver(self, positions: Mapping[LogPartition, int], prepared: Any) -> list[Verdict]:
        """Write a batch; if a row of it is refused or was there, write it again, expecting that."""
        assert isinstance(prepared, _PreparedText)
        for partition in prepared.arrivals.places:
            assert partition in positions, f"{partition} has messages and no position"
        self._trials.begin_batch(prepared)
        care = _Care.REPEATS if self._cautious else _Care.NONE
        if self._trials.suspects:
            care = _Care.FAULTS
        self._cautious = max(0, self._cautious - 1)
        self._pieces.begin_batch()
        self._inbox_pieces.begin_batch()
        while True:
            try:
                return self._transact(positions, prepared, care)
            except _Repeated:
                # Rolled back: retry, expecting them, also for a while.
                care, self._cautious = _Care.REPEATS, _CAUTIOUS_BATCHES
            except TooSlow:
                self.progressed()  # Rolled back: retry with fewer rows a statement. The server has answered.
            except Stopped:
                with self._link.session() as connection:
                    self._check_table(connection, prepared.effect)
                raise
            except RowFault as fault:
                if care is _Care.FAULTS:
                    raise fault.doubt or Stopped(
                        f"route {self._plan.route!r}: the batch as a whole is refused at COMMIT, and none of its rows "
                        f"alone: {fault}; correct the table's constraints, and start again"
                    ) from None
                if fault.rejection.code == _NOT_NULL:
                    with self._link.session() as connection:
                        stop_if_no_row_fits(connection, self._plan)
                care = _Care.FAULTS  # rolled back: retry, halving

    def trim(self, partition: LogPartition, below: int) -> bool:
        """Delete as many rows as ``Trims`` says now and leave the rest to the next deliveries."""
        topic_id, epoch = claim_of(self._claimed, partition)
        self._trims.ask(partition, below)
        place = {"topic_id": topic_id, "partition": partition.partition, "epoch": epoch, "worker": self._worker}
        with self._link.session() as connection:
            connection.execute(_BEGIN)
            row = self._link.run(connection, "hold", place).fetchone()
            if row is None:
                raise self._fenced([partition])
            done = self._trims.run({partition: row[0] or 0}, partial(self._delete, connection))
            self._link.commit(connection)
        self._trims.forget(done)
        return self._trims.asks(partition)

    def abandon(self) -> None:
        """Have the thread that waits on the connection get an error at once."""
        self._link.abandon()

    def close(self) -> None:
        """Close the connection."""
        self._link.drop()

    def _transact(
        self, positions: Mapping[LogPartition, int], prepared: _PreparedText, care: _Care
    ) -> list[Verdict]:
        with self._link.session() as connection:
            connection.execute(_BEGIN)
            self._trials.begin()
            crash_point("table.begun")
            self._move(connection, positions)
            if prepared.ranges:
                run = partial(self._link.run, connection)
                range_rows.write_postgresql(run, prepared.ranges, lambda p: claim_of(self._claimed, p)[0])
            crash_point("table.position")
            if prepared.redriven:
                self._trims.clear()
                digests = [m.digest for m in prepared.arrivals.messages]
                self._inbox_pieces.each(digests, lambda some: self._link.run(connection, "revive", {"digests": some}))
            answer = self._arrive(connection, prepared, care)
            crash_point("table.inbox")
            causes = self._apply(connection, prepared, answer, care)
            self._check_table(connection, prepared.effect)
            stop_if_asked(self._plan, prepared, answer, causes)
            crash_point("table.effect")
            trimmed = self._trim_beside(connection, positions)
            crash_point("table.committing")
            self._earlier.update({prepared.arrivals.messages[i].digest: cause for i, cause in causes.items()})
            self._link.commit(connection, doubts=True)
        crash_point("table.committed")
        self._trials.committed()
        self._acknowledged.add(positions)
        self._trims.forget(trimmed)
        found = verdicts(prepared, answer, causes, self._earlier)
        self._earlier = {}
        return found

    def _move(self, connection: Connection, positions: Mapping[LogPartition, int]) -> None:
        """Move the positions under the epochs: what the guard does not find belongs to somebody else by now."""
        if not positions:
            return
        claims = [claim_of(self._claimed, partition) for partition in positions]
        moved = self._link.run(
            connection,
            "move",
            {
                "worker": self._worker,
                "topic_ids": [topic_id for topic_id, _ in claims],
                "partitions": [partition.partition for partition in positions],
                "epochs": [epoch for _, epoch in claims],
                "positions": list(positions.values()),
                "floors": [self._acknowledged.floor(partition) for partition in positions],
            },
        )
        if moved.rowcount != len(positions):
            raise self._fenced(positions)

    def _arrive(self, connection: Connection, prepared: _PreparedText, care: _Care) -> InboxAnswer:
        """Insert the inbox rows and learn which of them are new, and what became of the others."""
        arrivals, topic_ids = prepared.arrivals, prepared.topic_ids
        if not arrivals.firsts:
            return InboxAnswer({}, {})
        if care is not _Care.NONE:
            return self._arrive_or_not(connection, prepared)
        try:
            first = inbox_rows.first_row(arrivals, prepared.faults, topic_ids)
            (number,) = self._link.run(connection, "first", first).fetchall()[0]
            self._inbox_pieces.each(prepared.inbox[1:], partial(self._copy, connection, number))
        except psycopg.errors.UniqueViolation:
            raise _Repeated from None
        return InboxAnswer(dict.fromkeys(arrivals.firsts, number), {})

    def _copy(self, connection: Connection, number: int, rows: Sequence[bytes]) -> None:
        self._link.copy(connection, "rest", inbox_rows.copy_data(self._link.names, number, rows))

    def _arrive_or_not(self, connection: Connection, prepared: _PreparedText) -> InboxAnswer:
        arrivals = prepared.arrivals
        numbers: dict[bytes, int] = {}

        def arrive(firsts: Sequence[int]) -> None:
            parameters = inbox_rows.arrays(arrivals, firsts, prepared.faults, prepared.topic_ids)
            ((digests, applied),) = self._link.run(connection, "arrive or not", parameters, binary=True).fetchall()
            numbers.update((digests[16 * n : 16 * n + 16], number) for n, number in enumerate(applied or ()))

        def look_up(digests: Sequence[bytes]) -> None:
            rows = self._link.run(connection, "known", {"digests": digests}).fetchall()
            answer.known.update((known[0], inbox_row(self._claimed, known)) for known in rows)

        self._inbox_pieces.each(arrivals.firsts, arrive)
        answer = InboxAnswer({}, {})
        missing = []
        for i in arrivals.firsts:
            digest = arrivals.messages[i].digest
            if digest in numbers:
                answer.applied[i] = numbers[digest]
            else:
                missing.append(digest)
        self._inbox_pieces.each(missing, look_up)
        if len(answer.known) < len(missing):
            raise Retriable(f"{self._plan.where}: an inbox row was trimmed while it was asked for; it is tried again")
        return answer

    def _apply(
        self, connection: Connection, prepared: _PreparedText, answer: InboxAnswer, care: _Care
    ) -> dict[int, MessageRejected]:
        """Write the effects of the new messages; return the causes of those that are dead, by index."""
        mapped, chosen = prepared.mapped, effective(prepared, answer)
        if care is not _Care.FAULTS:
            rows = mapped.rows if chosen is None else [mapped.rows[n] for n in chosen]
            self._trials.write(connection, prepared.effect, rows)
            return dict(mapped.faults)
        tried = range(len(mapped.rows)) if chosen is None else chosen
        redriven = prepared.redriven
        found = self._trials.find(connection, prepared.effect, mapped.rows, tried, redriven=redriven)
        if not redriven:
            stop_if_statement_is_wrong(self._plan, found.values(), len(tried))
            stop_if_numbers_are_taken(connection, self._plan, found.values())
        refused = {mapped.good[n]: rejection for n, rejection in found.items()}
        if refused:
            digests = [prepared.arrivals.messages[i].digest for i in refused]
            self._inbox_pieces.each(digests, lambda some: self._link.run(connection, "kill", {"digests": some}))
        return {**mapped.faults, **refused}

    def _check_table(self, connection: Connection, by: Effect) -> None:
        """Raise Fenced if the rows were formed for types that the table does not have any more: they are mapped anew."""
        if not by.is_current(connection):
            self._link.drop()  # what was written goes with it, and the next one reads the types
            raise Fenced(f"{self._plan.where} was altered; nothing was written, and the messages are mapped anew")

    def _trim_beside(self, connection: Connection, positions: Mapping[LogPartition, int]) -> dict[LogPartition, int]:
        """Delete rows of partitions whose guard has passed; what the database has no time for holds no batch up."""
        if not self._trims.due(positions):
            return {}
        self.progressed()
        connection.execute("savepoint relay_trim")
        try:
            return self._trims.run(positions, partial(self._delete, connection))
        except psycopg.Error as error:
            if connection.closed or not is_servers(error.sqlstate or ""):
                raise
            connection.execute("rollback to savepoint relay_trim")
            return {}

    def _delete(self, connection: Connection, partition: LogPartition, below: int, limit: int) -> int:
        place = {"topic_id": claim_of(self._claimed, partition)[0], "partition": partition.partition}
        return self._link.run(connection, "trim", {**place, "below": below, "limit": limit}).rowcount

    def _fenced(self, partitions: Collection[LogPartition]) -> Fenced:
        names = ", ".join(f"{p.topic}[{p.partition}]" for p in partitions)
        return Fenced(
            f"another worker of route {self._plan.route!r} has claimed one of {names}, or the database went back to an "
            "older copy; nothing was written"
        )
