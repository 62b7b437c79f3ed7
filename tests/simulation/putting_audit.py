"""What a queue shows of a route that put into it, from its tables and their commits alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from relay.queue.states import PublisherState, SubscriberState
from tests.simulation.database_queue import DELIVERIES, MESSAGES, OPENED
from tests.simulation.databases import Database
from tests.simulation.evidence import Evidence, Seen

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


def audit(database: Database, audiences: Sequence[Audience], *, quiescent: bool) -> Iterator[str]:
    """Return the anomalies: each message is for one whole audience, and done in the end, once for each of its groups."""
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
        for group in {row["grp"] for row in rows[handle]} if quiescent else ():
            done = sum(row["done_at"] is not None for row in rows[handle] if row["grp"] == group)
            if done != 1 or any(row["state"] != SubscriberState.JOURNALLED for row in rows[handle] if row["grp"] == group):
                yield f"lost message (I1): {name} is DONE {done} times for {groups[group]}"
    if quiescent:
        for row in database.rows(OPENED):
            yield f"lost message (I1): {row['publisher'], row['id']} is {PublisherState(row['state']).name} in the end"
