"""The table cursor's port on a simulated database: guard, inbox and effect in one transaction, as PostgreSQL does it.

The rules without a database are production's (`relay.delivery.table.verdicts`, `relay.delivery.table.mapping`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import orjson

from relay.delivery.table.mapping import BatchMapping, TableMapping
from relay.delivery.table.row_search import RowFault, search
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
from relay.message.errors import Fenced, InDoubt, MessageRejected, Retriable, Stopped
from relay.message.record import LogMessage, LogPartition
from relay.transfer.cursor import Claim, InboxRow, RangeRow, Verdict
from relay.world import randomness
from relay.world.crash import crash_point
from tests.simulation.database_connection import Connection
from tests.simulation.databases import Backend, ConnectionLost, Database, Key, Row, StatementRefused
from tests.simulation.scratch_sql import run_sql

INBOX: Final = "relay_inbox"
POSITIONS: Final = "relay_position"
RANGES: Final = "relay_range"
_RETRY: Final = {"lock_not_available", "deadlock_detected", "in_failed_sql_transaction"}
_ROWS: Final = {"unique_violation", "check_violation", "not_null_violation", "integrity_constraint_violation"}
_SAVEPOINT: Final = 1


class SimulatedCursor:
    """The ``TableCursor`` of a simulated database; it connects when first used, and again after a failure."""

    def __init__(
        self,
        database: Database,
        plan: TablePlan,
        limits: Limits | None = None,
        label: str = "cursor",
        mapping: BatchMapping | None = None,
    ) -> None:
        self._database = database
        self._plan = plan
        self._limits = limits or Limits()
        self._label = label
        self._mapping = mapping or TableMapping(plan.columns, plan.schema)
        self._claimed: dict[LogPartition, tuple[bytes, int]] = {}
        self._worker = ""
        self._trims = Trims()
        self._acknowledged = Acknowledged()
        self._earlier: dict[bytes, MessageRejected] = {}
        self._connection: Connection | None = None
        self.progressed: Callable[[], object] = bool

    def claim(self, partitions: Mapping[LogPartition, bytes]) -> dict[LogPartition, Claim]:
        """Raise the epoch of each partition and read its position, in one statement."""
        worker = randomness.uuid_bytes().hex()

        def work(backend: Backend) -> dict[LogPartition, Claim]:
            found = {}
            for p, topic_id in sorted(partitions.items()):
                key = self._place(topic_id, p.partition)
                backend.lock(POSITIONS, key)
                row = backend.get(POSITIONS, key) or {
                    "relay": key[0], "route": key[1], "topic_id": topic_id, "topic": p.topic,
                    "partition": p.partition, "position": None, "epoch": 0, "worker": worker, "writes": 0,
                }  # fmt: skip
                backend.put(POSITIONS, key, {**row, "epoch": row["epoch"] + 1, "worker": worker, "writes": 0})
                ranges = _ranges(backend, key, p)
                found[p] = Claim(row["epoch"] + 1, row["position"], ranges)
            return found

        with self._session() as connection:
            claims = connection.call(lambda backend: backend.autocommit(work), what="claim")
        self._worker, self._earlier = worker, {}
        self._trims.clear()
        self._acknowledged = Acknowledged()
        self._claimed = {p: (partitions[p], claim.epoch) for p, claim in claims.items()}
        return {p: claims[p] for p in partitions}

    def inbox(self, partitions: Collection[LogPartition]) -> Iterator[list[InboxRow]]:
        """Yield the rows of claimed partitions, ``INBOX_ROWS`` at a time."""
        for partition in partitions:
            topic_id, _ = claim_of(self._claimed, partition)
            mine = (self._plan.relay, self._plan.route, topic_id, partition.partition)
            last = (-1, b"")
            while True:
                with self._session() as connection:
                    found = connection.call(partial(_after, mine=mine, last=last), what="inbox")
                if not found:
                    break
                yield [inbox_row(self._claimed, _fields(row)) for row in found]
                last = (found[-1]["log_offset"], found[-1]["digest"])

    def prepare(
        self, messages: Sequence[LogMessage], ranges: Sequence[RangeRow] = (), *, redriven: bool = False
    ) -> Prepared:
        """Map messages into rows."""
        mapped = self._mapping.map(messages, self._finish)
        return Prepared(Arrivals.of(messages), mapped, ranges=ranges, redriven=redriven)

    def deliver(self, positions: Mapping[LogPartition, int], prepared: Any) -> list[Verdict]:
        """Write a batch; if a row of it is refused, write it again with the rows at fault found one by one."""
        try:
            return self._transact(positions, prepared, one_by_one=False)
        except RowFault:
            pass  # rolled back: retry, halving
        try:
            return self._transact(positions, prepared, one_by_one=True)
        except RowFault as fault:
            raise Stopped(f"route {self._plan.route!r}: the batch as a whole is refused: {fault}") from None

    def trim(self, partition: LogPartition, below: int) -> bool:
        """Delete as many rows as ``Trims`` says now and leave the rest to the next deliveries."""
        topic_id, epoch = claim_of(self._claimed, partition)
        self._trims.ask(partition, below)

        def work(backend: Backend) -> dict[LogPartition, int] | None:
            row = self._held(backend, topic_id, partition.partition, epoch)
            return None if row is None else self._trims.run({partition: row["position"] or 0}, partial(self._delete, backend))

        with self._session() as connection:
            done = connection.call(lambda backend: backend.autocommit(work), what="trim")
        if done is None:
            raise self._fenced([partition])
        self._trims.forget(done)
        return self._trims.asks(partition)

    def abandon(self) -> None:
        """Break the connection off: the call under way fails."""
        if self._connection is not None:
            self._connection.break_off()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _transact(
        self, positions: Mapping[LogPartition, int], prepared: Prepared, *, one_by_one: bool
    ) -> list[Verdict]:
        with self._session() as connection:
            moved = connection.call(lambda backend: self._move(backend, positions), what="move")
            connection.in_transaction = True
            if not moved:
                raise self._fenced(positions)
            if prepared.ranges:
                connection.call(lambda backend: self._put_ranges(backend, prepared.ranges), what="ranges")
            crash_point("table.position")
            if prepared.redriven:
                self._trims.clear()
                connection.call(lambda backend: self._revive(backend, prepared), what="revive")
            answer = connection.call(lambda backend: self._arrive(backend, prepared), what="inbox")
            crash_point("table.inbox")
            causes = self._take_effect(connection, prepared, answer, one_by_one=one_by_one)
            stop_if_asked(self._plan, prepared, answer, causes)
            trimmed: dict[LogPartition, int] = {}
            if self._trims.due(self._claimed):
                trimmed = connection.call(lambda backend: self._trims.run(positions, partial(self._delete, backend)))
            self._earlier.update({prepared.arrivals.messages[i].digest: cause for i, cause in causes.items()})
            crash_point("table.committing")
            connection.call(lambda backend: backend.commit(), commits=True, what="commit")
            connection.in_transaction = connection.committing = False
        crash_point("table.committed")
        self._acknowledged.add(positions)
        self._trims.forget(trimmed)
        found = verdicts(prepared, answer, causes, self._earlier)
        self._earlier = {}
        return found

    def _move(self, backend: Backend, positions: Mapping[LogPartition, int]) -> bool:
        """Begin, and move the positions under the epochs; False if one belongs to somebody else by now."""
        backend.begin()
        for partition, position in sorted(positions.items()):
            topic_id, epoch = claim_of(self._claimed, partition)
            row = self._held(backend, topic_id, partition.partition, epoch)
            floor = self._acknowledged.floor(partition)
            if row is None or row["writes"] < floor:
                return False
            moved = {"position": max(position, row["position"] or 0), "writes": floor + 1}
            backend.put(POSITIONS, self._place(topic_id, partition.partition), {**row, **moved})
        return True

    def _put_ranges(self, backend: Backend, rows: Sequence[RangeRow]) -> None:
        for row in rows:
            topic_id = claim_of(self._claimed, row.partition)[0]
            key = (*self._place(topic_id, row.partition.partition), row.publisher)
            names = ("relay", "route", "topic_id", "partition", "publisher")
            found = None if row.state is None else {**dict(zip(names, key, strict=True)), "state": row.state}
            backend.put(RANGES, key, found)

    def _held(self, backend: Backend, topic_id: bytes, number: int, epoch: int) -> Row | None:
        """Lock the position's row and return it if this cursor still holds the partition."""
        key = self._place(topic_id, number)
        backend.lock(POSITIONS, key)
        row = backend.get(POSITIONS, key)
        return row if row is not None and (row["epoch"], row["worker"]) == (epoch, self._worker) else None

    def _revive(self, backend: Backend, prepared: Prepared) -> None:
        """Let go of the inbox's word that these messages are dead."""
        for message in prepared.arrivals.messages:
            key = (self._plan.relay, self._plan.route, message.digest)
            row = backend.get(INBOX, key)
            if row is not None and row["outcome"] == 1:
                backend.put(INBOX, key, None)

    def _arrive(self, backend: Backend, prepared: Prepared) -> InboxAnswer:
        """Insert the inbox rows of what is new, in the order of digests, and look up the others."""
        arrivals = prepared.arrivals
        answer = InboxAnswer({}, {})
        number = self._database.next_applied()
        for i in arrivals.firsts:
            m = arrivals.messages[i]
            topic_id = claim_of(self._claimed, LogPartition(m.topic, m.partition))[0]
            key = (self._plan.relay, self._plan.route, m.digest)
            row = {
                "relay": key[0], "route": key[1], "digest": m.digest, "content": m.content, "topic_id": topic_id,
                "partition": m.partition, "log_offset": m.offset, "outcome": int(i in prepared.faults),
                "applied": number,
            }  # fmt: skip
            if backend.insert(INBOX, row, or_nothing=True):
                answer.applied[i] = number
            else:
                known = backend.get(INBOX, key)
                assert known is not None
                answer.known[m.digest] = inbox_row(self._claimed, _fields(known))
        return answer

    def _take_effect(
        self, connection: Connection, prepared: Prepared, answer: InboxAnswer, *, one_by_one: bool
    ) -> dict[int, MessageRejected]:
        """Write the effects of the new messages; return the causes of those that are dead, by index."""
        return connection.call(
            lambda backend: self._apply(backend, prepared, answer, one_by_one=one_by_one), what="effect"
        )

    def _apply(
        self, backend: Backend, prepared: Prepared, answer: InboxAnswer, *, one_by_one: bool
    ) -> dict[int, MessageRejected]:
        mapped, chosen = prepared.mapped, effective(prepared, answer)
        wanted = range(len(mapped.rows)) if chosen is None else chosen
        if not one_by_one:
            self._write(backend, [mapped.rows[n] for n in wanted])
            return dict(mapped.faults)
        found = search(wanted, lambda run: self._attempt(backend, [mapped.rows[n] for n in run]))
        refused = {mapped.good[n]: fault.rejection for n, fault in found.faults.items()}
        self._condemn(backend, prepared, refused)
        return {**mapped.faults, **refused}

    def _condemn(self, backend: Backend, prepared: Prepared, refused: Collection[int]) -> None:
        for i in refused:
            key = (self._plan.relay, self._plan.route, prepared.arrivals.messages[i].digest)
            row = backend.get(INBOX, key)
            assert row is not None
            backend.put(INBOX, key, {**row, "outcome": 1})

    def _attempt(self, backend: Backend, rows: Sequence[Any]) -> None:
        self.progressed()
        backend.savepoint(_SAVEPOINT)
        try:
            self._write(backend, rows)
        except StatementRefused as refused:
            if refused.code not in _ROWS:
                raise
            backend.rollback_to(_SAVEPOINT)
            raise RowFault(MessageRejected("apply", refused.code, f"{self._plan.where}: {refused.code}")) from None
        backend.release(_SAVEPOINT)

    def _write(self, backend: Backend, rows: Sequence[Any]) -> None:
        plan = self._plan
        for values in rows:
            row = dict(zip(plan.columns, values, strict=True))
            if plan.mode == "sql":
                assert plan.sql is not None
                run_sql(backend, plan.sql, row)
            elif plan.mode == "upsert":
                key = tuple(row[name] for name in plan.key)
                backend.lock(plan.table, key)
                backend.put(plan.table, key, {**(backend.get(plan.table, key) or {}), **row})
            else:
                backend.insert(plan.table, row)

    def _delete(self, backend: Backend, partition: LogPartition, below: int, limit: int) -> int:
        mine = (self._plan.relay, self._plan.route, claim_of(self._claimed, partition)[0], partition.partition)
        gone = [key for key, row in _of_place(backend, mine) if row["log_offset"] < below][:limit]
        for key in gone:
            backend.put(INBOX, key, None)
        return len(gone)

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        """Lend the connection; an error but a lost COMMIT means that nothing was written, for it is rolled back."""
        connection = self._connected()
        connection.committing = False
        try:
            yield connection
        except ConnectionLost:
            self.close()
            if connection.committing:
                raise InDoubt(f"{self._plan.where}: the connection was lost at COMMIT; its outcome is unknown") from None
            raise Retriable(f"{self._plan.where}: the connection was lost before COMMIT") from None
        except StatementRefused as refused:
            self._roll_back(connection)
            if refused.code in _RETRY:
                raise Retriable(f"{self._plan.where}: {refused.code}; it is tried again") from None
            if refused.code in _ROWS:
                raise RowFault(MessageRejected("apply", refused.code, f"{self._plan.where}: {refused.code}")) from None
            raise Stopped(f"route {self._plan.route!r}: {self._plan.where} cannot be written: {refused}") from None
        except Exception:
            self._roll_back(connection)
            raise

    def _roll_back(self, connection: Connection) -> None:
        connection.in_transaction = False
        try:
            connection.call(lambda backend: backend.rollback(), what="rollback")
        except ConnectionLost:
            self.close()

    def _connected(self) -> Connection:
        if self._connection is not None and not self._connection.broken:
            return self._connection
        limits = self._limits
        try:
            connection = Connection(
                self._database,
                self._label,
                lock_timeout_s=limits.lock_timeout_s,
                idle_limit_s=limits.idle_in_transaction_s,
            )
        except ConnectionLost:
            raise Retriable(f"{self._plan.where}: the database does not answer") from None
        self._connection = connection
        self._set_up(connection)
        return connection

    def _set_up(self, connection: Connection) -> None:
        """Look whether the effect can be written at all."""
        if self._plan.table:
            table = self._database.tables.get(self._plan.table)
            missing = [name for name in self._plan.columns if table is not None and name not in table.columns]
            if table is None or missing:
                raise Stopped(f"{self._plan.where} does not exist, or has no column {missing}")

    def _finish(self, columns: list[list[Any]]) -> list[Any]:
        table = self._database.tables.get(self._plan.table)
        kinds = [table.columns[name] if table else "" for name in self._plan.columns]
        plain = [[_plain(value, kind) for value in values] for values, kind in zip(columns, kinds, strict=True)]
        return list(zip(*plain, strict=True))

    def _place(self, topic_id: bytes, number: int) -> Key:
        return (self._plan.relay, self._plan.route, topic_id, number)

    def _fenced(self, partitions: Collection[LogPartition]) -> Fenced:
        names = ", ".join(f"{p.topic}[{p.partition}]" for p in partitions)
        return Fenced(
            f"another worker of route {self._plan.route!r} has claimed one of {names}, or the database went back to an "
            "older copy; nothing was written"
        )


def _of_place(backend: Backend, mine: tuple[Any, ...]) -> list[tuple[Key, Row]]:
    found = backend.items(
        INBOX, lambda row: (row["relay"], row["route"], row["topic_id"], row["partition"]) == mine
    )
    return sorted(found, key=lambda item: (item[1]["log_offset"], item[1]["digest"]))


def _ranges(backend: Backend, mine: Key, place: LogPartition) -> tuple[RangeRow, ...]:
    names = ("relay", "route", "topic_id", "partition")
    found = backend.scan(RANGES, lambda row: tuple(row[name] for name in names) == mine)
    return tuple(RangeRow(place, row["publisher"], row["state"]) for row in found)


def _after(backend: Backend, mine: tuple[Any, ...], last: tuple[int, bytes]) -> list[Row]:
    rows = [row for _, row in _of_place(backend, mine) if (row["log_offset"], row["digest"]) > last]
    return rows[:INBOX_ROWS]


def _fields(row: Row) -> tuple[Any, ...]:
    names = ("digest", "content", "topic_id", "partition", "log_offset", "outcome", "applied")
    return tuple(row[name] for name in names)


def _plain(value: Any, kind: str) -> Any:
    if isinstance(value, bytes) and kind.lower() == "text":
        return value.decode()
    return orjson.dumps(value).decode() if isinstance(value, dict | list) else value
