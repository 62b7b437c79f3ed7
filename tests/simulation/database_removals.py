"""Guards of capture and of table routes, each removable by name, as in `removals`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import relay.capture.async_block
import relay.capture.block
import relay.capture.resolver
import relay.capture.upkeep
import relay.delivery.table.route
import relay.delivery.topic.sealed
from relay.capture.block import CaptureBlock
from relay.delivery.table.route import TableDelivery
from relay.delivery.table.sqlite.cursor import SqliteCursor
from relay.delivery.table.verdicts import Acknowledged
from relay.kafka.appender import Receipt
from relay.message.errors import CaptureError, InDoubt, RelayError, Retriable, Unreachable
from relay.message.record import LogPartition
from relay.monitor.index import DedupIndex
from relay.resources.lease import Lease
from relay.resources.port import AnswerLost, CommitRefused, DecisionRow, Decisions
from relay.transfer.sending import Sending
from relay.world import schedule
from tests.simulation.database_cursor import POSITIONS, SimulatedCursor
from tests.simulation.databases import Backend, Row

Change = tuple[Any, str, Any]


def no_epoch_guard() -> list[Change]:
    """Whoever writes a position finds it, whatever its epoch and worker."""

    def held(self: SimulatedCursor, backend: Backend, topic_id: bytes, number: int, _epoch: int) -> Row | None:
        key = self._place(topic_id, number)
        backend.lock(POSITIONS, key)
        return backend.get(POSITIONS, key)

    return [(SimulatedCursor, "_held", held)]


def trimmed_when_fenced() -> list[Change]:
    """Whoever trims an inbox does not look whether the partition is still its own."""

    def trim(self: SqliteCursor, partition: LogPartition, below: int) -> bool:
        self._trims.ask(partition, below)
        with self._transaction() as connection:
            done = self._trims.run({partition: below}, partial(self._delete, connection))
        self._trims.forget(done)
        return self._trims.asks(partition)

    return [(SqliteCursor, "trim", trim)]


def two_batches_in_flight() -> list[Change]:
    """What lies behind a batch without an answer does not wait for it."""

    def one(self: Sending, series: int, positions: Mapping[LogPartition, int], prepared: Any) -> None:
        with self._cursor_in_use:
            if series != self._series:
                return
            try:
                answer: Any = self._cursor.deliver(positions, prepared)
            except (InDoubt, Retriable, Unreachable):
                self._work.put((series, positions, prepared))
                return
            except RelayError as final:
                answer = final
            self._answers.put((series, answer))
            self._wake.set()

    return [(Sending, "_one", one)]


def timer_never_resends() -> list[Change]:
    """No answer in time means nothing: only a connection that breaks has its batch sent again."""
    return [(Sending, "tend", lambda self, _: None)]


def failed_batch_overtaken() -> list[Change]:
    """What waits behind a batch that failed for good is sent all the same, before the worker has seen the failure."""
    return [(Sending, "_answered", Sending._until_answered)]


def older_copy_trusted() -> list[Change]:
    """A database that knows less than it acknowledged is written to all the same."""
    return [(Acknowledged, "floor", lambda self, _: -1)]


def index_trusted_above_position() -> list[Change]:
    """Monitor entries at and above the stored position suppress messages that a restored database lacks."""
    return [(DedupIndex, "keep_below", lambda self, *_: None)]


def no_sift_for_table() -> list[Change]:
    """The inbox alone tells a repeat, though its rows are trimmed."""
    return [(relay.delivery.table.route, "sift", lambda messages, indexes, counts: list(messages))]


def inbox_not_entered() -> list[Change]:
    """A recovery leaves inbox rows without their monitor entries, and they are trimmed later."""
    return [(TableDelivery, "_enter_inbox", lambda self, *_: 0)]


def dead_letters_not_repeated() -> list[Change]:
    """A recovery takes for granted that a dead row's record has arrived."""
    return [(TableDelivery, "_repeat_dead_letters", lambda self, *_: None)]


def resolver_without_insert() -> list[Change]:
    """No row is taken for aborted, instead of making it so."""

    def settle(decisions: Decisions, capture: bytes) -> DecisionRow | None:
        return decisions.read([capture]).get(capture) or DecisionRow(False, None, proved=False)

    return [(relay.capture.resolver, "settle", settle), (relay.capture.upkeep, "settle", settle)]


def lost_answer_is_aborted() -> list[Change]:
    """COMMIT without an answer counts as not committed."""

    def follow(self: CaptureBlock, error: CommitRefused | AnswerLost) -> None:
        self._mark_aborted()
        raise CaptureError("the connection was lost") from error

    return [(CaptureBlock, "_follow_the_row", follow)]


def reports_not_awaited() -> list[Change]:
    """COMMIT is sent before the log has the messages."""
    return [(Receipt, "wait", lambda self, _: True)]


def capture_headers_left() -> list[Change]:
    """Outputs keep the headers that name a capture and its resource."""
    return [(relay.delivery.topic.sealed, "outgoing", list)]


def shared_without_turns() -> list[Change]:
    """Threads that share a block are in it at once."""
    return [(schedule, "reentrant_lock", nullcontext)]


def controls_transactions() -> list[Change]:
    """A block runs every statement that it is given."""
    return [(relay.capture.block, "check_statement", lambda query: None)]


def refused_and_gone_on() -> list[Change]:
    """What refuses a message leaves the block open."""
    return [(CaptureBlock, "_end_unless_savepoint", lambda self: None)]


def function_unfinished() -> list[Change]:
    """What a step's function returns says nothing."""
    return [(relay.capture.async_block, "is_unfinished", lambda returned: False)]


def cursor_outlives_block() -> list[Change]:
    """A cursor that somebody keeps runs what it is given."""
    return [(Lease, "check", lambda self: None)]


DATABASE_REMOVALS: Final[dict[str, Callable[[], list[Change]]]] = {
    removal.__name__: removal
    for removal in (
        no_epoch_guard, trimmed_when_fenced, two_batches_in_flight, timer_never_resends, failed_batch_overtaken, older_copy_trusted, index_trusted_above_position, no_sift_for_table, inbox_not_entered,
        dead_letters_not_repeated, resolver_without_insert, lost_answer_is_aborted, reports_not_awaited,
        capture_headers_left, shared_without_turns, controls_transactions, refused_and_gone_on, function_unfinished,
        cursor_outlives_block,
    )
}  # fmt: skip
