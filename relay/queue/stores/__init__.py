"""Where queues are kept: one port, several media, chosen by the address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relay.message.errors import ConfigError
from relay.queue.port import QueueStore
from relay.queue.settings import QueueSettings
from relay.queue.stores.sql_queue import SqlQueue
from relay.queue.values import Values

LOG = "log+"
"""Before an address: the database keeps the index only."""


def open_store(
    settings: QueueSettings, url: str, *, state: Path | None = None, values: Values | None = None
) -> QueueStore:
    """Open a queue's store, and the queue in it if it is new.

    ``sqlite:///path.db``, ``postgresql://...`` and ``files:///folder``; a path that is not absolute begins in ``state``, the
    relay's directory. With ``log+`` before one of the first two the values stay in the log, where ``values`` finds them.
    Raises ConfigError for another kind of address, StoreAway if the store does not answer.
    """
    if url.startswith(LOG):
        inner = open_store(settings, url.removeprefix(LOG), state=state)
        return _in_log(settings, inner, values)
    if url.startswith("sqlite:///"):
        from relay.queue.stores.sqlite import open_sqlite  # noqa: PLC0415 - load the driver in use only

        return open_sqlite(settings, _path(url, state))
    if url.startswith(("postgresql://", "postgres://")):
        from relay.queue.stores.postgresql import open_postgresql  # noqa: PLC0415 - load the driver in use only

        return open_postgresql(settings, url)
    if url.startswith("files:///"):
        from relay.queue.stores.files import open_files  # noqa: PLC0415 - load the driver in use only

        return open_files(settings, _path(url, state))
    scheme = url.partition(":")[0]
    raise ConfigError(
        f"queues.{settings.name}.store begins with {scheme!r}; write sqlite:///path.db or postgresql://user@host/database"
    )


def missing(url: str, *, state: Path | None = None) -> Path | None:
    """Return the file or folder of a store of this host that is not there: to open it would make an empty one."""
    inner = url.removeprefix(LOG)
    if not inner.startswith(("sqlite:///", "files:///")):
        return None
    path = _path(inner, state)
    return None if path.exists() else path


def _path(url: str, state: Path | None) -> Path:
    path = Path(url.partition(":///")[2])
    return path if state is None else state / path


def _in_log(settings: QueueSettings, inner: QueueStore, values: Values | None) -> QueueStore:
    """Return the queue over the same session, with values in the log."""
    from relay.queue.stores.log import LogQueue  # noqa: PLC0415 - only where it is asked for

    if not isinstance(inner, SqlQueue):
        inner.close()
        raise ConfigError(f"queues.{settings.name}.store keeps values in the log: its index needs a database; write log+sqlite:///path.db")
    return LogQueue(settings, inner.session, values)


def bind_store(settings: QueueSettings, url: str, connection: Any) -> QueueStore:
    """Return the queue at ``url`` on somebody's open connection, whose owner begins and ends the transactions.

    The queue must be known to the database already. Raises ConfigError for a medium that has no such connection.
    """
    if url.startswith(LOG):
        return _in_log(settings, bind_store(settings, url.removeprefix(LOG), connection), None)
    if url.startswith("sqlite:///"):
        from relay.queue.stores.sqlite import bind_sqlite  # noqa: PLC0415 - load the driver in use only

        return bind_sqlite(settings, connection)
    if url.startswith(("postgresql://", "postgres://")):
        from relay.queue.stores.postgresql import bind_postgresql  # noqa: PLC0415 - load the driver in use only

        return bind_postgresql(settings, connection)
    scheme = url.partition(":")[0]
    raise ConfigError(
        f"queues.{settings.name}.store begins with {scheme!r}, which takes no part in another transaction; "
        "keep the queue in sqlite:///path.db or postgresql://user@host/database"
    )
