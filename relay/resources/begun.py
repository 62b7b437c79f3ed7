"""Which transaction a handler's connection is in: the one that the relay has begun, or another in its place.

`commit and chain`, and a BEGIN behind a COMMIT, leave the connection in a transaction as if nothing had been: what is written
from then on would be decided without what came before it. So the one that is begun says so by a setting of its own, which ends
with it, and what ends it asks for that.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus

_SETTING: Final = "relay.transaction"
_NOT_BEGUN: Final = "relay: not the transaction begun"
_SAY_NONE: Final = f"set {_SETTING} = '{_NOT_BEGUN}'".encode()
_SAY_BEGUN: Final = f"; set local {_SETTING} = 'begun'".encode()


def proof(otherwise: str) -> str:
    """Return a condition that is ``otherwise``, and fails in another transaction than the one begun."""
    # The text is no boolean. A handler that resets all settings takes the word away with the rest, and is believed.
    return (
        f"case when current_setting('{_SETTING}', true) = '{_NOT_BEGUN}'"
        f" then cast(current_setting('{_SETTING}') as boolean) else {otherwise} end"
    )


def say_none(connection: psycopg.Connection[Any]) -> None:
    """Let a new connection know that whatever transaction it is in is not one that `begin` began; raises psycopg.Error."""
    _run(connection, _SAY_NONE)


def begin(connection: psycopg.Connection[Any], statement: bytes = b"begin") -> None:
    """Begin a transaction, with ``statement``, in one exchange; raises psycopg.Error."""
    _run(connection, statement + _SAY_BEGUN)


def is_another(connection: psycopg.Connection[Any], error: BaseException | None) -> bool:
    """Is an error of statements that asked for `proof`, and then ended the transaction, that of the proof?

    What a deferred trigger raises comes when the transaction is over.
    """
    is_open = connection.info.transaction_status == TransactionStatus.INERROR
    return is_open and isinstance(error, psycopg.errors.InvalidTextRepresentation)


def _run(connection: psycopg.Connection[Any], statements: bytes) -> None:
    # One call of libpq: the driver's own way of waiting costs as much as the statements. Nobody else uses the connection now.
    result = connection.pgconn.exec_(statements)
    if result.status != ExecStatus.COMMAND_OK:
        raise psycopg.OperationalError(result.error_message.decode(errors="replace"))
