"""Inbox rows as PostgreSQL takes them: COPY for a batch of new messages, one statement where repeats are expected."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from struct import Struct
from typing import Any, Final

from relay.delivery.table.verdicts import Arrivals
from relay.message.record import LogPartition

# The first row draws the number of the whole transaction; the worker's role needs no right to the sequence for that.
FIRST: Final = """
insert into {inbox} (relay, route, digest, content, topic_id, partition, log_offset, outcome)
values (%(relay)s, %(route)s, %(digest)s, %(content)s, %(topic_id)s, %(partition)s, %(log_offset)s, %(outcome)s)
returning applied
"""
REST: Final = """
copy {inbox} (applied, relay, route, digest, content, topic_id, partition, log_offset, outcome)
from stdin (format binary)
"""
# Fixed-width parts travel as one value each: an array of bytea would cost a conversion per element on both sides.
ARRIVE_OR_NOT: Final = """
with arrived as (
    insert into {inbox} (relay, route, digest, content, topic_id, partition, log_offset, outcome)
    select %(relay)s, %(route)s, substring(%(digests)s::bytea from i::int * 16 - 15 for 16),
        substring(%(contents)s::bytea from i::int * 8 - 7 for 8), (%(topic_ids)s::bytea[])[place],
        (%(partitions)s::int[])[place], log_offset, get_byte(%(outcomes)s::bytea, i::int - 1)
    from unnest(%(offsets)s::bigint[], %(places)s::int[]) with ordinality as u (log_offset, place, i)
    on conflict do nothing
    returning digest, applied
) select string_agg(digest, ''::bytea), array_agg(applied) from arrived
"""
KNOWN: Final = """
select digest, content, topic_id, partition, log_offset, outcome, applied from {inbox}
where relay = %(relay)s and route = %(route)s and digest = any(%(digests)s)
"""
REVIVE: Final = """
delete from {inbox} where relay = %(relay)s and route = %(route)s and digest = any(%(digests)s) and outcome = 1
"""
KILL: Final = """
update {inbox} set outcome = 1 where relay = %(relay)s and route = %(route)s and digest = any(%(digests)s)
"""
READ: Final = """
select digest, content, topic_id, partition, log_offset, outcome, applied from {inbox}
where relay = %(relay)s and route = %(route)s and topic_id = %(topic_id)s and partition = %(partition)s
    and (log_offset, digest) > (%(offset)s, %(digest)s)
order by log_offset, digest limit %(limit)s
"""
TRIM: Final = """
delete from {inbox} where ctid = any(array(
    select ctid from {inbox} where relay = %(relay)s and route = %(route)s and topic_id = %(topic_id)s
        and partition = %(partition)s and log_offset < %(below)s
    order by log_offset limit %(limit)s
))
"""

_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER: Final = b"\xff\xff"
_COLUMNS: Final = 9
_NUMBER: Final = Struct(">hiq")  # the row's number of columns, then applied
_PLACE: Final = Struct(">i16sii")  # topic id, partition
_ROW: Final = Struct(">i16si8s28siqih")  # digest, content, place, offset, outcome; each with its length before it


def copy_rows(arrivals: Arrivals, faults: Container[int], topic_ids: Mapping[LogPartition, bytes]) -> list[bytes]:
    """Return the rows of ``arrivals.firsts`` without the columns that the whole transaction shares."""
    messages, place_of, pack = arrivals.messages, arrivals.place_of, _ROW.pack
    places = [_PLACE.pack(16, topic_ids[place], 4, place.partition) for place in arrivals.places]
    found = []
    for i in arrivals.firsts:
        message = messages[i]
        outcome = 1 if i in faults else 0
        found.append(pack(16, message.digest, 8, message.content, places[place_of[i]], 8, message.offset, 2, outcome))
    return found


def copy_data(names: Mapping[str, str], applied: int, rows: Sequence[bytes]) -> bytes:
    """Return COPY's binary form (PostgreSQL documentation, "COPY", Binary Format): the shared columns lead each row."""
    shared = _NUMBER.pack(_COLUMNS, 8, applied)
    for name in (names["relay"].encode(), names["route"].encode()):
        shared += len(name).to_bytes(4, "big") + name
    return _SIGNATURE + shared + shared.join(rows) + _TRAILER


def first_row(arrivals: Arrivals, faults: Container[int], topic_ids: Mapping[LogPartition, bytes]) -> dict[str, Any]:
    """Return the parameters of ``FIRST``."""
    index = arrivals.firsts[0]
    message = arrivals.messages[index]
    place = arrivals.places[arrivals.place_of[index]]
    return {
        "digest": message.digest,
        "content": message.content,
        "topic_id": topic_ids[place],
        "partition": place.partition,
        "log_offset": message.offset,
        "outcome": int(index in faults),
    }


def arrays(
    arrivals: Arrivals, firsts: Sequence[int], faults: Container[int], topic_ids: Mapping[LogPartition, bytes]
) -> dict[str, Any]:
    """Return the parameters of ``ARRIVE_OR_NOT`` for some of ``arrivals.firsts``."""
    chosen = [arrivals.messages[i] for i in firsts]
    return {
        "digests": b"".join([message.digest for message in chosen]),
        "contents": b"".join([message.content for message in chosen]),
        "offsets": "{" + ",".join([str(message.offset) for message in chosen]) + "}",
        "places": "{" + ",".join([str(arrivals.place_of[i] + 1) for i in firsts]) + "}",
        "outcomes": bytes(i in faults for i in firsts),
        "topic_ids": [topic_ids[place] for place in arrivals.places],
        "partitions": [place.partition for place in arrivals.places],
    }
