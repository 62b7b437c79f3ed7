"""The cursor in an SQLite file: one writer at a time, so the transaction itself decides what is new."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, Final

from relay.delivery.table.mapping import BatchMapping, TableMapping
from relay.delivery.table.range_rows import read_sqlite, with_ranges, write_sqlite
from relay.delivery.table.row_search import RowFault
from relay.delivery.table.sqlite.effects import REFUSED_VALUES, RowEffect, SqliteEffect, judge
from relay.delivery.table.sqlite.trials import SqliteTrials
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
from relay.message.errors import Fenced, InDoubt, MessageRejected, Stopped
from relay.message.record import LogMessage, LogPartition
from relay.resources.sqlite import SqliteResource
from relay.resources.sqlite_file import FileConnection
from relay.transfer.cursor import Claim, InboxRow, RangeRow, Verdict
from relay.world import randomness, schedule
from relay.world.crash import crash_point

_CLAIM: Final = """
insert into relay_position (relay, route, topic_id, topic, partition, position, epoch, worker)
values (?, ?, ?, ?, ?, null, 1, ?)
on conflict (relay, route, topic_id, partition)
do update set epoch = epoch + 1, worker = excluded.worker, topic = excluded.topic, writes = 0
returning epoch, position
"""
_MOVE: Final = """
update relay_position set position = max(coalesce(position, ?1), ?1), writes = ?8 + 1
where relay = ?2 and route = ?3 and topic_id = ?4 and partition = ?5 and epoch = ?6 and worker = ?7
    and writes >= ?8
"""
_HOLD: Final = """
select position from relay_position
where relay = ? and route = ? and topic_id = ? and partition = ? and epoch = ? and worker = ?
"""
_LAST: Final = "select seq from sqlite_sequence where name = 'relay_inbox'"
_ARRIVE: Final = """
insert into relay_inbox (relay, route, digest, content, topic_id, partition, log_offset, outcome, applied)
values (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_KNOWN: Final = """
select digest, content, topic_id, partition, log_offset, outcome, applied from relay_inbox
where relay = ? and route = ? and digest in ({})
"""
_KNOWN_AT_ONCE: Final = 500
_STEPS_TOLD: Final = 200_000
"""Steps of a statement, some milliseconds, after which it is told that it goes on."""
_REVIVE: Final = "delete from relay_inbox where relay = ? and route = ? and digest = ? and outcome = 1"
_KILL: Final = "update relay_inbox set outcome = 1 where applied = ?"
_READ: Final = """
select digest, content, topic_id, partition, log_offset, outcome, applied from relay_inbox
where relay = ? and route = ? and topic_id = ? and partition = ? and (log_offset, digest) > (?, ?)
order by log_offset, digest limit ?
"""
_TRIM: Final = """
delete from relay_inbox where applied in (
    select applied from relay_inbox
    where relay = ? and route = ? and topic_id = ? and partition = ? and log_offset < ?
    order by log_offset limit ?
)
"""


class _Care(IntEnum):
    """What a transaction looks for in its batch; each finds what the one before leaves unsaid, and takes longer."""

    NONE = 0
    ROWS = 1
    REFERENCES = 2


@dataclass(slots=True)
class _PreparedRows(Prepared):
    """A batch with the effect that formed its rows."""

    effect: RowEffect


class SqliteCursor:
    """The ``TableCursor`` of an SQLite file; it opens the file when first used, and again after a failure."""

    def __init__(
        self,
        url: str,
        plan: TablePlan,
        limits: Limits | None = None,
        *,
        mapping: BatchMapping | None = None,
        effects: Callable[[sqlite3.Connection], RowEffect] | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._resource = SqliteResource(
            plan.resource, url.removeprefix("sqlite:///"), self._limits.lock_timeout_s
        )
        self._plan = plan
        self._mapping = mapping or TableMapping(plan.columns, plan.schema, plan.registry)
        self._effects = effects or partial(SqliteEffect, plan=plan)
        self._names = (plan.relay, plan.route)
        self._claimed: dict[LogPartition, tuple[bytes, int]] = {}
        self._worker = ""
        self._trims = Trims()
        self._acknowledged = Acknowledged()
        self._earlier: dict[bytes, MessageRejected] = {}
        self._connection: FileConnection | None = None
        self._replacing = schedule.lock()
        self.progressed: Callable[[], object] = bool
        self._trials = SqliteTrials(plan, lambda: self.progressed())  # noqa: PLW0108 - its owner sets it later
        self._effect: RowEffect | None = None

    def claim(self, partitions: Mapping[LogPartition, bytes]) -> dict[LogPartition, Claim]:
        """Raise the epoch of each partition and read its position, in one transaction."""
        worker = randomness.uuid_bytes().hex()
        found: dict[LogPartition, Claim] = {}
        with self._transaction() as connection:
            for p, topic_id in partitions.items():
                row = connection.execute(
                    _CLAIM, (*self._names, topic_id, p.topic, p.partition, worker)
                ).fetchall()[0]
                found[p] = Claim(*row)
            places = [(topic_id, p.partition) for p, topic_id in partitions.items()]
            found = with_ranges(found, partitions, read_sqlite(connection, self._names, places))
        self._worker, self._earlier = worker, {}
        self._trims.clear()
        self._acknowledged = Acknowledged()
        self._claimed = {p: (partitions[p], claim.epoch) for p, claim in found.items()}
        return found

    def inbox(self, partitions: Collection[LogPartition]) -> Iterator[list[InboxRow]]:
        """Yield the rows of claimed partitions, ``INBOX_ROWS`` at a time."""
        for partition in partitions:
            topic_id, _ = claim_of(self._claimed, partition)
            offset, digest = -1, b""
            while True:
                with self._session() as connection:
                    found = connection.execute(
                        _READ, (*self._names, topic_id, partition.partition, offset, digest, INBOX_ROWS)
                    ).fetchall()
                if not found:
                    break
                yield [inbox_row(self._claimed, row) for row in found]
                offset, digest = found[-1][4], found[-1][0]

    def prepare(
        self, messages: Sequence[LogMessage], ranges: Sequence[RangeRow] = (), *, redriven: bool = False
    ) -> _PreparedRows:
        """Map messages into parameters; the types are those that the last claim read."""
        effect = self._effect  # once: the cursor's thread may open the file again meanwhile, and read other types
        assert effect is not None, "claim partitions before preparing messages"
        mapped = self._mapping.map(messages, effect.finish)
        return _PreparedRows(Arrivals.of(messages), mapped, effect, ranges=ranges, redriven=redriven)

    def deliver(self, positions: Mapping[LogPartition, int], prepared: Any) -> list[Verdict]:
        """Write a batch; if a row of it is refused, write it again with the rows at fault found one by one."""
        assert isinstance(prepared, _PreparedRows)
        for partition in prepared.arrivals.places:
            assert partition in positions, f"{partition} has messages and no position"
        for care in _Care:
            try:
                return self._deliver_once(positions, prepared, care)
            except RowFault as fault:
                refusal = fault  # rolled back: retry, halving; then checking what the rows refer to
        raise Stopped(
            f"route {self._plan.route!r}: the batch as a whole is refused at COMMIT, and none of its rows alone: "
            f"{refusal}; correct the table's constraints, and start again"
        )

    def trim(self, partition: LogPartition, below: int) -> bool:
        """Delete as many rows as ``Trims`` says now and leave the rest to the next deliveries."""
        topic_id, epoch = claim_of(self._claimed, partition)
        self._trims.ask(partition, below)
        with self._transaction() as connection:
            place = (*self._names, topic_id, partition.partition, epoch, self._worker)
            row = connection.execute(_HOLD, place).fetchone()
            if row is None:
                raise self._fenced(partition)
            done = self._trims.run({partition: row[0] or 0}, partial(self._delete, connection))
        self._trims.forget(done)
        return self._trims.asks(partition)

    def abandon(self) -> None:
        """Interrupt the statement under way."""
        with self._replacing:
            if self._connection is not None:
                self._connection.interrupt()

    def close(self) -> None:
        """Close the file."""
        with self._replacing:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _deliver_once(
        self, positions: Mapping[LogPartition, int], prepared: _PreparedRows, care: _Care
    ) -> list[Verdict]:
        with self._transaction() as connection:
            crash_point("table.begun")
            self._move(connection, positions)
            write_sqlite(connection, self._names, prepared.ranges, lambda p: claim_of(self._claimed, p)[0])
            crash_point("table.position")
            if prepared.redriven:
                self._trims.clear()
                digests = [(*self._names, message.digest) for message in prepared.arrivals.messages]
                connection.executemany(_REVIVE, digests)
            answer = self._arrive(connection, prepared)
            crash_point("table.inbox")
            causes = self._apply(connection, prepared, answer, care)
            stop_if_asked(self._plan, prepared, answer, causes)
            crash_point("table.effect")
            trimmed = self._trims.run(positions, partial(self._delete, connection))
            self._earlier.update({prepared.arrivals.messages[i].digest: cause for i, cause in causes.items()})
            crash_point("table.committing")
        crash_point("table.committed")
        self._acknowledged.add(positions)
        self._trims.forget(trimmed)
        found = verdicts(prepared, answer, causes, self._earlier)
        self._earlier = {}
        return found

    def _move(self, connection: sqlite3.Connection, positions: Mapping[LogPartition, int]) -> None:
        for partition, position in positions.items():
            topic_id, epoch = claim_of(self._claimed, partition)
            place = (*self._names, topic_id, partition.partition, epoch, self._worker)
            moved = connection.execute(_MOVE, (position, *place, self._acknowledged.floor(partition)))
            if moved.rowcount != 1:
                raise self._fenced(partition)

    def _arrive(self, connection: sqlite3.Connection, prepared: _PreparedRows) -> InboxAnswer:
        """Insert the inbox rows of what is new, in delivery order, and look up the others."""
        arrivals = prepared.arrivals
        digests = [arrivals.messages[i].digest for i in arrivals.firsts]
        known: dict[bytes, InboxRow] = {}
        for start in range(0, len(digests), _KNOWN_AT_ONCE):
            some = digests[start : start + _KNOWN_AT_ONCE]
            query = _KNOWN.format(", ".join("?" * len(some)))
            known.update((row[0], inbox_row(self._claimed, row)) for row in connection.execute(query, (*self._names, *some)))
        row = connection.execute(_LAST).fetchone()
        new = sorted(i for i in arrivals.firsts if arrivals.messages[i].digest not in known)
        applied = {i: number for number, i in enumerate(new, start=(row[0] if row else 0) + 1)}
        topic_ids = [claim_of(self._claimed, place)[0] for place in arrivals.places]
        rows = []
        for i, number in applied.items():
            m = arrivals.messages[i]
            place = (topic_ids[arrivals.place_of[i]], m.partition, m.offset)
            rows.append((*self._names, m.digest, m.content, *place, int(i in prepared.faults), number))
        connection.executemany(_ARRIVE, rows)
        return InboxAnswer(applied, known)

    def _apply(
        self, connection: sqlite3.Connection, prepared: _PreparedRows, answer: InboxAnswer, care: _Care
    ) -> dict[int, MessageRejected]:
        """Write the effects of the new messages; return the causes of those that are dead, by index."""
        mapped, chosen = prepared.mapped, effective(prepared, answer)
        if care is _Care.NONE:
            rows = mapped.rows if chosen is None else [mapped.rows[n] for n in chosen]
            prepared.effect.apply(connection, rows)
            return dict(mapped.faults)
        tried = range(len(mapped.rows)) if chosen is None else chosen
        references = care is _Care.REFERENCES
        found = self._trials.find(connection, prepared.effect, mapped.rows, tried, references=references)
        refused = {mapped.good[n]: rejection for n, rejection in found.items()}
        connection.executemany(_KILL, [(answer.applied[i],) for i in refused])
        return {**mapped.faults, **refused}

    def _delete(self, connection: sqlite3.Connection, partition: LogPartition, below: int, limit: int) -> int:
        place = (*self._names, claim_of(self._claimed, partition)[0], partition.partition)
        return connection.execute(_TRIM, (*place, below, limit)).rowcount

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection inside BEGIN IMMEDIATE .. COMMIT.

        A COMMIT that fails and leaves the transaction open had no effect; one that fails and leaves none is in doubt.
        """
        with self._session() as connection:
            connection.execute("begin immediate")
            yield connection
            try:
                connection.execute("commit")
            except sqlite3.Error as error:
                if not connection.in_transaction:
                    # In doubt: found out by delivering again, when the inbox decides.
                    raise InDoubt(f"{self._plan.where}: COMMIT failed ({error}); its outcome is unknown") from None
                raise

    @contextmanager
    def _session(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection; whatever goes wrong, no transaction of ours is left open on it."""
        connection = self._connected()
        try:
            yield connection
        except (sqlite3.Error, *REFUSED_VALUES) as error:
            self._roll_back(connection)
            raise judge(error, self._plan) from None
        except BaseException:
            self._roll_back(connection)
            raise

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("rollback")
        except sqlite3.Error:
            self.close()  # closing rolls back what is open

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None:
            if self._connection.is_there:
                return self._connection
            self.close()
        connection = self._resource.connect(self._limits.lock_timeout_s)
        connection.set_progress_handler(self._goes_on, _STEPS_TOLD)
        try:
            self._effect = self._effects(connection)
        except sqlite3.Error as error:
            connection.close()
            raise judge(error, self._plan) from None
        except BaseException:
            connection.close()
            raise
        with self._replacing:
            self._connection = connection
        return connection

    def _goes_on(self) -> None:
        """A statement works: sent again it would take as long again. None lets it go on."""
        self.progressed()

    def _fenced(self, partition: LogPartition) -> Fenced:
        return Fenced(
            f"another worker of route {self._plan.route!r} has claimed {partition.topic}[{partition.partition}], "
            "or the database went back to an older copy; nothing was written"
        )
