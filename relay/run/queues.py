"""Opening a queue as configured: where it lies now, and whether it is the one that was made for this relay."""

from __future__ import annotations

from typing import Any

from pydantic import SecretStr

from relay.config.model import RelayConfig, ResourceConfig
from relay.config.queues import QueueConfig
from relay.message.errors import ConfigError, Stopped
from relay.queue.desired import Desired
from relay.queue.port import QueueStore
from relay.queue.values import Values
from relay.run.following import follow


def queue_of(config: RelayConfig, name: str) -> QueueConfig:
    """Return a queue's configuration; ConfigError names those there are."""
    found = config.queues.get(name)
    if found is None:
        known = ", ".join(sorted(config.queues)) or "none"
        raise ConfigError(f"queue {name!r}: there is no such queue; the configuration has {known}")
    return found


def address(config: RelayConfig, name: str, desired: Desired) -> str:
    """Return where a queue lies now, which a move may have changed; it may hold a secret."""
    queue = queue_of(config, name)
    return address_of(config, queue, desired.store_of(name, queue.store))


def address_of(config: RelayConfig, queue: QueueConfig, store: str) -> str:
    """Return the address of a store as the configuration writes it."""
    placed = queue.model_copy(update={"store": store})
    if placed.resource is not None and placed.resource not in config.resources:
        raise ConfigError(f"queue {queue.name!r} lies in {store!r}, and there is no such resource; add it to [resources]")
    return placed.url({name: resource.url.get_secret_value() for name, resource in config.resources.items()})


def database_of(config: RelayConfig, queue: str) -> ResourceConfig:
    """Return the database that holds the queue's index now, also after a move."""
    follower = follow(config)
    try:
        url = address(config, queue, follower.now())
    finally:
        follower.close()
    return ResourceConfig(url=SecretStr(url.removeprefix("log+")))


def open_at(config: RelayConfig, queue: QueueConfig, store: str) -> QueueStore:
    """Open a store as the configuration writes it, whoever it was made for; the caller closes it."""
    from relay.queue.stores import open_store  # noqa: PLC0415 - load the driver in use only

    url = address_of(config, queue, store)
    return open_store(queue.settings(), url, state=config.relay.state, values=_values(config, url))


def _values(config: RelayConfig, url: str) -> Values | None:
    """Return the reader of values that stay in the log."""
    if not url.startswith("log+"):
        return None
    from relay.kafka.values import LogValues  # noqa: PLC0415 - only where it is needed

    return LogValues(config.kafka, config.timing, f"{config.relay.name}.values")


def open_queue(config: RelayConfig, name: str, desired: Desired) -> QueueStore:
    """Open a queue where it lies now. Raises ConfigError, StoreAway, or Stopped if it is another one than recorded.

    The caller closes it; one thread at a time uses it.
    """
    from relay.queue.stores import missing  # noqa: PLC0415 - load the driver in use only

    queue = queue_of(config, name)
    lies = desired.store_of(name, queue.store)
    absent = missing(address_of(config, queue, lies), state=config.relay.state)
    if absent is not None:
        raise Stopped(
            f"queue {name!r} lies in {absent}, which is not there: run `relay migrate` if the queue is new; an embedded "
            "store belongs to one host, so otherwise run there, or correct the store's address"
        )
    store = open_at(config, queue, lies)
    try:
        check_identity(name, store.uuid, desired)
    except BaseException:
        store.close()
        raise
    return store


def bind_queue(config: RelayConfig, name: str, url: str, connection: Any, desired: Desired) -> QueueStore:
    """Return a queue's store on an open connection, whose owner begins and ends the transactions.

    ``url`` is where it lay when its owner chose that database: another thread may have heard since that it has moved. It is
    retired here then, which whoever writes is told.
    """
    from relay.queue.stores import bind_store  # noqa: PLC0415 - load the driver in use only

    store = bind_store(queue_of(config, name).settings(), url, connection)
    check_identity(name, store.uuid, desired)
    return store


def check_identity(name: str, uuid: str, desired: Desired) -> None:
    """Raise Stopped unless the store is the one that was recorded for the queue's name."""
    recorded = desired.uuids.get(name)
    if recorded is None:
        raise Stopped(f"queue {name!r} is not recorded; run `relay migrate`")
    if recorded != uuid:
        raise Stopped(
            f"queue {name!r} was made elsewhere: the store here is {uuid}, recorded is {recorded}; an embedded store "
            "belongs to one host, so run there, or correct the store's address"
        )
