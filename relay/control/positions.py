"""Where table routes stand: their positions are rows of the destination's own database, read here and never written."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

import psycopg

from relay.config.model import ResourceConfig
from relay.message.errors import Unreachable
from relay.message.record import LogPartition
from relay.resources import open_resource
from relay.resources.postgresql import PostgresqlResource
from relay.resources.sqlite import SqliteResource

TIMEOUT_S: Final = 3.0
_COLUMNS: Final = "select topic_id, partition, position from relay_position"


def stored_positions(
    name: str, resource: ResourceConfig, relay: str, route: str, topic_ids: Mapping[str, bytes]
) -> dict[LogPartition, int]:
    """Return the stored position of each partition of the topics as they are now, not of namesakes deleted before.

    Raises Unreachable or ConfigError (tables missing); both name the resource.
    """
    opened = open_resource(name, resource.url.get_secret_value())
    try:
        rows = _rows(opened, relay, route)
    except (psycopg.Error, sqlite3.Error) as error:
        # Only the type: a driver's text may quote its connection string.
        reason = type(error).__name__
        raise Unreachable(
            f"resources.{name}: positions cannot be read ({reason}); run `relay check --connect`"
        ) from error
    topics = {topic_id: topic for topic, topic_id in topic_ids.items()}
    return {
        LogPartition(topics[bytes(topic_id)], partition): position
        for topic_id, partition, position in rows
        if bytes(topic_id) in topics and position is not None
    }


def _rows(opened: object, relay: str, route: str) -> list[Any]:
    if isinstance(opened, PostgresqlResource):
        with opened.connect(statement_timeout=TIMEOUT_S, lock_timeout=TIMEOUT_S) as connection:
            return connection.execute(
                _COLUMNS + " where relay = %s and route = %s", (relay, route)
            ).fetchall()
    assert isinstance(opened, SqliteResource), "the two kinds of resource that a configuration can name"
    with closing(opened.connect(TIMEOUT_S)) as file:
        return file.execute(_COLUMNS + " where relay = ? and route = ?", (relay, route)).fetchall()
