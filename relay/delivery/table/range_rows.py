"""Publisher ranges as rows of the destination's database: written under the epoch, in the position's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from relay.message.record import LogPartition
from relay.transfer.cursor import Claim, RangeRow

Place = tuple[bytes, int]
"""Topic id and partition number."""

PUT: Final = """
insert into {range} (relay, route, topic_id, partition, publisher, state)
select %(relay)s, %(route)s, topic_id, partition, publisher, state
from unnest(%(topic_ids)s::bytea[], %(partitions)s::int[], %(publishers)s::bytea[], %(states)s::bytea[])
    as u (topic_id, partition, publisher, state)
on conflict (relay, route, topic_id, partition, publisher) do update set state = excluded.state
"""
DROP: Final = """
delete from {range} r using unnest(%(topic_ids)s::bytea[], %(partitions)s::int[], %(publishers)s::bytea[])
    as u (topic_id, partition, publisher)
where r.relay = %(relay)s and r.route = %(route)s and r.topic_id = u.topic_id and r.partition = u.partition
    and r.publisher = u.publisher
"""
READ: Final = """
select topic_id, partition, publisher, state from {range}
where relay = %(relay)s and route = %(route)s and topic_id = any(%(topic_ids)s) and partition = any(%(partitions)s)
"""
_SQLITE_PUT: Final = """
insert into relay_range (relay, route, topic_id, partition, publisher, state) values (?, ?, ?, ?, ?, ?)
on conflict (relay, route, topic_id, partition, publisher) do update set state = excluded.state
"""
_SQLITE_DROP: Final = """
delete from relay_range where relay = ? and route = ? and topic_id = ? and partition = ? and publisher = ?
"""
_SQLITE_READ: Final = """
select topic_id, partition, publisher, state from relay_range
where relay = ? and route = ? and topic_id = ? and partition = ?
"""


def write_postgresql(
    run: Callable[[str, Mapping[str, Any]], Any],
    rows: Sequence[RangeRow],
    topic_id: Callable[[LogPartition], bytes],
) -> None:
    """Write rows with the statements ``put range`` and ``drop range``, in the order of their keys."""
    for name, chosen in (
        ("put range", [row for row in rows if row.state is not None]),
        ("drop range", [row for row in rows if row.state is None]),
    ):
        if chosen:
            run(
                name,
                {
                    "topic_ids": [topic_id(row.partition) for row in chosen],
                    "partitions": [row.partition.partition for row in chosen],
                    "publishers": [row.publisher for row in chosen],
                    "states": [row.state for row in chosen],
                },
            )


def write_sqlite(
    connection: sqlite3.Connection,
    names: tuple[str, str],
    rows: Sequence[RangeRow],
    topic_id: Callable[[LogPartition], bytes],
) -> None:
    """Write rows inside the open transaction."""
    for row in rows:
        place = (*names, topic_id(row.partition), row.partition.partition, row.publisher)
        if row.state is None:
            connection.execute(_SQLITE_DROP, place)
        else:
            connection.execute(_SQLITE_PUT, (*place, row.state))


def read_sqlite(
    connection: sqlite3.Connection, names: tuple[str, str], places: Iterable[Place]
) -> list[tuple[bytes, int, bytes, bytes]]:
    """Return the rows of these places."""
    return [row for place in places for row in connection.execute(_SQLITE_READ, (*names, *place))]


def with_ranges(
    claims: Mapping[LogPartition, Claim],
    topic_ids: Mapping[LogPartition, bytes],
    rows: Iterable[tuple[bytes, int, bytes, bytes]],
) -> dict[LogPartition, Claim]:
    """Return the claims, each with the range rows of its place."""
    found: dict[Place, list[RangeRow]] = {}
    for place in claims:
        found[topic_ids[place], place.partition] = []
    for topic_id, number, publisher, state in rows:
        mine = found.get((topic_id, number))
        if mine is not None:
            mine.append(RangeRow(LogPartition("", number), publisher, state))
    return {
        place: claim._replace(
            ranges=tuple(row._replace(partition=place) for row in found[topic_ids[place], place.partition])
        )
        for place, claim in claims.items()
    }
