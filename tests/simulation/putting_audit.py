"""What a queue shows of a route that put into it, from its tables and their commits alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from relay.message import envelope
from relay.queue.states import PublisherState, SubscriberState
from tests.simulation import collecting
from tests.simulation.crew import LOG
from tests.simulation.database_queue import DELIVERIES, MESSAGES, OPENED
from tests.simulation.databases import Database, Row
from tests.simulation.evidence import Evidence, MessageId, Seen
from tests.simulation.installation import WALL_START_MS
from tests.simulation.site import Cluster

HEARD_S: Final = 1.1
"""So late at most a process hears what persons say."""

Audience = Mapping[str, Sequence[str]]
"""The members of each group."""


def takes_of(database: Database, into: Evidence) -> None:
    """Read what each group took, in the order of the commits, and in one of them by handle."""
    messages: dict[int, tuple[str, str]] = {}
    groups = {row["id"]: row["name"] for row in database.rows("relay_queue_group")}
    for commit in database.history:
        if commit.by == "restore":
            # Who takes from a queue that went back gets what it had before.
            into.seen.clear()
        taken = []
        for table, key, before, after in commit.changes:
            if after is None or commit.by == "restore":
                continue
            if table == MESSAGES:
                messages[key[0]] = (after["publisher"], after["id"])
            elif table == DELIVERIES and after["done_at"] is not None and (before is None or before["done_at"] is None):
                taken.append((after["handle"], groups[after["grp"]]))
        for handle, group in sorted(taken):
            into.seen.append(Seen(group, "queue", (commit.number, handle), messages[handle], commit.at))


class Pause(NamedTuple):
    """So long a publisher was held, in seconds of the world's time."""

    publisher: str
    since: float
    until: float


def shown_while_paused(database: Database, pauses: Sequence[Pause]) -> Iterator[str]:
    """Return what was delayed, and shown although whoever shows such messages has heard that its publisher is held."""
    for message in database.rows(MESSAGES):
        if message["reveal_at"] is None or message["revealed_at"] is None:
            continue
        at = (message["revealed_at"] - WALL_START_MS) / 1000
        for pause in pauses:
            if pause.publisher == message["publisher"] and pause.since + HEARD_S < at < pause.until:
                yield f"shown while held (I6): {message['publisher'], message['id']} at {at:.3f}: {pause}"


def given_again(database: Database) -> set[MessageId]:
    """Return what a person has given to somebody again, behind what came later."""
    changes = [change for commit in database.history for change in commit.changes]
    names = {row["handle"]: (row["publisher"], row["id"]) for table, _, _, row in changes if table == MESSAGES and row}
    return {
        names[after["handle"]]
        for table, _, before, after in changes
        if table == DELIVERIES and before and after and before["unusable_at"] is not None and after["unusable_at"] is None
    }


def is_refused(database: Database) -> bool:
    """Is there a message that a whole group has refused, and nobody has given again?"""
    groups: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in database.rows(DELIVERIES):
        groups[row["handle"], row["grp"]].append(row)
    return any(
        all(row["done_at"] is None for row in rows) and any(row["unusable_at"] is not None for row in rows)
        for rows in groups.values()
    )


class Asked(NamedTuple):
    """What a message's headers asked of the queue; milliseconds."""

    delay_ms: int
    expires_at: int | None


def asked_of(cluster: Cluster) -> dict[MessageId, Asked]:
    """Read the log for what its messages asked for."""
    found = {}
    for partition in cluster.topics.by_name[LOG].partitions:
        for record in partition.records:
            headers = dict(record.headers() or ())
            delay, expiry = headers.get(envelope.DELAY), headers.get(envelope.EXPIRY_TIME)
            if delay or expiry:
                at = None if expiry is None else int(datetime.fromisoformat(expiry.decode()).timestamp() * 1000)
                found[collecting.message_id(record)] = Asked(int(delay or 0), at)
    return found


def audit(
    database: Database, audiences: Sequence[Audience], asked: Mapping[MessageId, Asked], *, quiescent: bool
) -> Iterator[str]:
    """Return the anomalies: each message is for one whole audience, and done in the end, once for each of its groups.

    Nobody gets one that is delayed too early, or one that expires too late, for which that may be the end.
    """
    subscribers = {row["id"]: row["name"] for row in database.rows("relay_queue_subscriber")}
    groups = {row["id"]: row["name"] for row in database.rows("relay_queue_group")}
    rows = defaultdict(list)
    for row in database.rows(DELIVERIES):
        rows[row["handle"]].append(row)
    whole = [sorted((group, name) for group, names in audience.items() for name in names) for audience in audiences]
    for message in database.rows(MESSAGES):
        handle, name = message["handle"], (message["publisher"], message["id"])
        given = sorted((groups[row["grp"]], subscribers[row["sub"]]) for row in rows[handle])
        if given not in whole:
            yield f"torn audience (I5): {name} is for {given}"
        times = asked.get(name, Asked(0, None))
        yield from _untimely(name, message, rows[handle], times)
        for group in {row["grp"] for row in rows[handle]} if quiescent else ():
            mine = [row for row in rows[handle] if row["grp"] == group]
            done = sum(row["done_at"] is not None for row in mine)
            is_expired = times.expires_at is not None and all(row["expired_at"] is not None for row in mine)
            if (done != 1 and not (done == 0 and is_expired)) or any(row["state"] != SubscriberState.JOURNALLED for row in mine):
                yield f"lost message (I1): {name} is DONE {done} times for {groups[group]}"
    if quiescent:
        for row in database.rows(OPENED):
            yield f"lost message (I1): {row['publisher'], row['id']} is {PublisherState(row['state']).name} in the end"


def _untimely(name: MessageId, message: Row, rows: Sequence[Row], asked: Asked) -> Iterator[str]:
    if asked.delay_ms and message["revealed_at"] is not None and message["revealed_at"] < message["put_at"] + asked.delay_ms:
        yield f"shown too early (I6): {name} was put at {message['put_at']} and revealed at {message['revealed_at']}"
    done = [row["grp"] for row in rows if row["done_at"] is not None]
    # Who waited for the row's lock looks by the moment in which it began to.
    until = None if asked.expires_at is None else max(asked.expires_at, message["put_at"])
    for row in rows:
        late = until is not None and row["get_at"] is not None and row["get_at"] >= until
        # A member of a pool whose mate is done expires with that.
        early = row["expired_at"] is not None and row["grp"] not in done and row["expired_at"] < (asked.expires_at or 2**63)
        if late or early:
            yield f"expired at the wrong time (I1): {name}, {asked.expires_at}: taken at {row['get_at']}, expired at {row['expired_at']}"
