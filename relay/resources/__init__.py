"""Resource managers: the databases whose local transaction takes part in capture or delivery."""

from __future__ import annotations

from relay.message.errors import ConfigError
from relay.resources.port import Resource


def open_resource(name: str, url: str, lock_timeout_s: float = 1.0) -> Resource:
    """Return the resource at ``url`` (postgresql://... or sqlite:///path); no connection is made yet.

    ``lock_timeout_s`` is how long a resolver waits for a row that a living publisher holds. Raises ConfigError for
    another kind of address.
    """
    if url.startswith(("postgresql://", "postgres://")):
        from relay.resources.postgresql import PostgresqlResource  # noqa: PLC0415 - load the driver in use only

        return PostgresqlResource(name, url, lock_timeout_s)
    if url.startswith("sqlite:///"):
        from relay.resources.sqlite import SqliteResource  # noqa: PLC0415 - load the driver in use only

        return SqliteResource(name, url.removeprefix("sqlite:///"), lock_timeout_s)
    scheme = url.partition(":")[0]
    raise ConfigError(
        f"resources.{name}.url begins with {scheme!r}; write postgresql://user@host/database or sqlite:///path.db"
    )
