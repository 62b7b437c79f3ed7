"""PostgreSQL's SQLSTATEs (its documentation, appendix A) sorted by whose doing they are: the server's, or that of what was written."""

from __future__ import annotations

from typing import Any, Final

import psycopg

# Connection, transaction rollback (deadlock, serialization), resources, operator intervention, system error.
_RETRY_CLASSES: Final = frozenset({"08", "40", "53", "57", "58"})
_READ_ONLY: Final = "25006"
_SAYS_READ_ONLY: Final = ("default_transaction_read_only", "in_hot_standby")
_RETRY_STATES: Final = frozenset({
    "55P03",  # lock_not_available: another transaction holds the row, perhaps our own of a lost connection
    _READ_ONLY,  # read_only_sql_transaction: a standby, until it is promoted
    "25P03",  # idle_in_transaction_session_timeout
    "25P04",  # transaction_timeout
})
_QUERY_CANCELED: Final = "57014"
_STATEMENTS_OWN: Final = frozenset({
    "40002",  # transaction_integrity_constraint_violation
    "53200",  # out_of_memory
    "53400",  # configuration_limit_exceeded: more temporary files than one statement may write
    _QUERY_CANCELED,  # longer than `statement_timeout`
})
"""Of such a class, and yet the doing of whoever wrote the statement."""
TIME_IS_OVER: Final = frozenset({
    "25P03",  # idle_in_transaction_session_timeout
    "25P04",  # transaction_timeout
})
"""The server ended the transaction, and the connection with it, since whoever began it took too long."""
_NO_WRITES: Final = frozenset({"GetNewTransactionId", "GetNewMultiXactId", "PreCommit_Notify"})
"""Where the server raises, under the state of what is too long, that it takes no writes before somebody mends it: it has to be
vacuumed (wraparound), or a listener holds a transaction open for so long that the queue of notifications is full."""
_NO_PLACE: Final = "MarkAsPreparing"
"""Where the server raises that it has no place for one more prepared transaction, for none at all, or one of that name."""


def is_servers(state: str) -> bool:
    """Is a SQLSTATE the server's or the network's doing, such that a later try may do?"""
    return state[:2] in _RETRY_CLASSES or state in _RETRY_STATES


def only_reads(error: BaseException | None) -> bool:
    """Is it, or what it came of, the word that nothing is written in this session?

    A session keeps what the server, or its role, said when it began, and may be with a standby since a failover: another one has to be begun.
    """
    while error is not None and not isinstance(error, psycopg.Error):
        error = error.__cause__
    return error is not None and error.sqlstate == _READ_ONLY


def is_fit(connection: psycopg.Connection[Any]) -> bool:
    """Is it open and idle, and may write? A session that only reads says so unasked, from PostgreSQL 14 on."""
    if connection.closed or connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE:
        return False
    return all(connection.info.parameter_status(name) != "on" for name in _SAYS_READ_ONLY)


def takes_no_writes(error: psycopg.Error) -> bool:
    """Has the server no numbers left for transactions, or no room for what they notify, whatever they write?"""
    return error.diag.source_function in _NO_WRITES


def says_time_is_over(error: psycopg.Error) -> bool:
    """Has the server ended the transaction for having paused, or lasted, longer than a limit lets it?"""
    return error.sqlstate in TIME_IS_OVER


def is_away(error: psycopg.Error, *, closed: bool) -> bool:
    """Is an error that a handler's own statement met the server's or the network's doing? ``closed``: the connection broke."""
    state = error.sqlstate or ""
    if says_time_is_over(error):
        # Tried again it would take as long, and for ever, if it cost no try.
        return False
    return closed or (is_servers(state) and state not in _STATEMENTS_OWN) or takes_no_writes(error)


def took_too_long(error: psycopg.Error) -> bool:
    """Was COMMIT cancelled, or ended by a limit of time? That comes of a slow deferred trigger, and does not say whether it had committed."""
    return error.sqlstate == _QUERY_CANCELED or says_time_is_over(error)


def refuses_writes(error: psycopg.Error, *, closed: bool) -> bool:
    """Is an error that COMMIT or PREPARE met a refusal of what was written: a deferred constraint, a trigger that raises?"""
    is_word = error.sqlstate is not None and error.diag.source_function != _NO_PLACE
    return is_word and not is_away(error, closed=closed)
