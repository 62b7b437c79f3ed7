"""What `relay migrate` does for queues: their tables, and the record of which store was made for which name."""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import sql

from relay.config.model import RelayConfig, ResourceConfig
from relay.config.queues import QueueConfig
from relay.message.errors import ConfigError
from relay.queue.desired import Desired, encode_uuid
from relay.resources import open_resource
from relay.resources.addresses import address
from relay.run.following import control_topic, follow
from relay.run.queues import address_of, check_identity, open_at
from relay.setup.check_table import away

_OWN: Final = """
select c.oid::regclass::text, c.relkind = 'S' from pg_class c
where (c.relname like 'relay\\_queue%%' or c.relname = 'relay_inbox_applied_seq') and c.relkind in ('r', 'S') and pg_table_is_visible(c.oid)
"""
"""The numbers of inbox rows as well: a queue that moves takes along those of the routes into it."""


def statements_of(config: RelayConfig, queue: QueueConfig) -> list[str]:
    """Return the statements for a queue in a database, none for one in flat files."""
    from relay.queue.stores.sql_schema import statements  # noqa: PLC0415 - load the drivers in use only

    url = address_of(config, queue, queue.store).removeprefix("log+")
    if url.startswith("files:"):
        return []
    return list(statements("sqlite" if url.startswith("sqlite:") else "postgresql"))


def create_queues(config: RelayConfig) -> dict[str, str]:
    """Create every queue's tables where it lies now, and record its uuid under its name; return the uuids.

    Raises Stopped if another store was recorded for a name: this one is empty, or somebody else's.
    """
    if not config.queues:
        return {}
    follower = follow(config)
    desired = follower.now()
    follower.close()
    found = {}
    for name, queue in config.queues.items():
        store = desired.store_of(name, queue.store)
        create_tables(config, queue, store)
        found[name] = _record(config, name, desired)
    return found


def create_tables(config: RelayConfig, queue: QueueConfig, store: str) -> None:
    """Create what a queue needs in a store as the configuration writes it; doing it again changes nothing."""
    url = address_of(config, queue, store).removeprefix("log+")
    if url.startswith("sqlite:"):
        # Routes into the queue keep their position beside it.
        open_resource(f"queue {queue.name}", url).create_tables()
        open_at(config, queue, store).close()
    if url.startswith("postgres"):
        resource = config.resources[store.removeprefix("log+")]
        _create_postgresql(queue, resource)


def _create_postgresql(queue: QueueConfig, resource: ResourceConfig) -> None:
    from relay.queue.stores.sql_schema import create  # noqa: PLC0415 - load the drivers in use only

    url = (resource.migrate_url or resource.url).get_secret_value()
    try:
        with psycopg.connect(**address(url)) as connection:
            create(connection)
            if resource.worker_role is not None:
                _grant(connection, resource.worker_role)
    except psycopg.OperationalError as error:
        # Nothing is half made: the block is one transaction, and migrating again does it again.
        raise away(f"queue {queue.name}", url, error) from None
    except psycopg.Error as error:
        raise ConfigError(
            f"queues.{queue.name}.store: its tables cannot be made ({error.sqlstate}); give the migrating role the right"
        ) from None


def _grant(connection: psycopg.Connection[tuple[object, ...]], role: str) -> None:
    for table, is_sequence in connection.execute(_OWN).fetchall():
        rights = "usage, update" if is_sequence else "select, insert, update, delete"
        kind = "sequence" if is_sequence else "table"
        connection.execute(
            sql.SQL("grant {} on {} {} to {}").format(
                sql.SQL(rights), sql.SQL(kind), sql.Identifier(*str(table).split(".")), sql.Identifier(role)
            )
        )


def _record(config: RelayConfig, name: str, desired: Desired) -> str:
    queue = config.queues[name]
    store = open_at(config, queue, desired.store_of(name, queue.store))
    uuid = store.uuid
    store.close()
    if name not in desired.uuids:
        control = control_topic(config)
        control.put(*encode_uuid(name, uuid), wait=True)
        control.close()
    else:
        check_identity(name, uuid, desired)
    return uuid
