"""Collecting evidence: from the broker's partitions and the databases' commits, as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import orjson

from relay.capture.outcomes import decode_marker
from relay.delivery.deadletter import PREFIX
from relay.delivery.table.verdicts import LOST_PAYLOAD
from relay.message import envelope
from relay.message.identity import capture_id, cloudevents
from relay.message.record import LogPartition
from relay.monitor.resolution import Kind, Resolutions
from tests.simulation.broker import StoredRecord
from tests.simulation.crew import RELAY
from tests.simulation.databases import Commit, Database, Row
from tests.simulation.evidence import (
    Decided,
    Effect,
    Evidence,
    Held,
    Logged,
    Marked,
    MessageId,
    Partition,
    Sample,
)
from tests.simulation.publishers import STOCK
from tests.simulation.site import Cluster

CAPTURES = "relay_capture"
POSITIONS = "relay_position"
INBOX = "relay_inbox"


def message_id(record: StoredRecord) -> MessageId:
    """Return (source, id) as the headers say; without them, the place."""
    headers = dict(record.headers() or ())
    source = headers.get(envelope.SOURCE, (record.topic() or "").encode()).decode()
    found = headers.get(envelope.ID)
    return (source, found.decode()) if found else (source, f"@{record.partition()}/{record.offset()}")


def log_of(cluster: Cluster, topics: list[str], is_poison: Callable[[StoredRecord], bool], into: Evidence) -> None:
    """Read the log topics: messages, markers, and where the partitions end."""
    for topic in topics:
        for partition in cluster.topics.by_name[topic].partitions:
            place: Partition = (topic, partition.place.partition)
            into.log_ends[place] = partition.end
            for record in partition.records:
                _logged(place, record, is_poison, into)


def gone_of(records: Iterable[StoredRecord], is_poison: Callable[[StoredRecord], bool], into: Evidence) -> None:
    """Take what has left the log as if it were there still."""
    for record in records:
        before = len(into.log)
        _logged((record.topic(), record.partition()), record, is_poison, into)
        into.log[before:] = [logged._replace(gone=True) for logged in into.log[before:]]


def passed_of(cluster: Cluster, into: Evidence) -> None:
    """Read the audit records: what persons let go as lost, and its owner has noted to pass."""
    told = Resolutions()
    for record in cluster.topics.by_name[f"{RELAY}.control"].partitions[0].visible():
        told.add(record.key() or b"", record.value())
    for one in told.holding:
        if one.subject.kind is Kind.LOST and told.is_obeyed(one):
            place = (one.subject.place.topic, one.subject.place.partition)
            into.passed.setdefault(place, []).append((one.subject.first, one.subject.next))


def _logged(
    place: Partition, record: StoredRecord, is_poison: Callable[[StoredRecord], bool], into: Evidence
) -> None:
    if record.control is not None:
        return
    marker = decode_marker(record.key(), record.value(), record.headers())
    if marker is not None:
        proved = marker.committed and capture_id(marker.nonce or b"") == marker.capture
        into.marked.append(Marked(place, record.offset(), marker.capture.hex(), marker.committed, proved))
        return
    headers = dict(record.headers() or ())
    capture, number = headers.get(envelope.CAPTURE), headers.get(envelope.SEQUENCE)
    incarnation = headers.get(envelope.INCARNATION)
    into.log.append(
        Logged(
            place,
            record.offset(),
            message_id(record),
            capture.decode() if capture else None,
            record.aborted,
            is_poison(record),
            int(number) if number and incarnation else None,
            incarnation.decode() if incarnation else None,
        )
    )


def decisions_of(database: Database, into: Evidence) -> None:
    """Read a publisher's database: how each capture was decided and when, and what conflicting ones wrote in order."""
    conflicts: dict[int, list[str]] = {}
    for commit in database.history:
        captures = [change for change in commit.changes if change[0] == CAPTURES]
        for _, _, before, after in captures:
            if after is None:
                continue
            name = after["capture"].hex()
            if before is None:
                placed = tuple(
                    ((topic, partition), count)
                    for topic, partition, _, count in orjson.loads(after["partitions"] or b"[]")
                )
                into.decisions[name] = Decided(after["outcome"] == "committed", commit.at, placed)
                for table, key, _, _ in commit.changes:
                    if table == STOCK:
                        conflicts.setdefault(key[0], []).append(name)
    into.conflicts += conflicts.values()
    if database.tables.get(CAPTURES):
        into.unmarked += [
            row["capture"].hex()
            for row in database.rows(CAPTURES)
            if row["outcome"] == "committed" and not row["marked"] and orjson.loads(row["partitions"] or b"[]")
        ]


def output_of(cluster: Cluster, topic: str, into: Evidence) -> None:
    """Read what a read_committed reader of an output topic sees now."""
    for partition in cluster.topics.by_name[topic].partitions:
        lane = f"{topic}-{partition.place.partition}"
        for record in partition.visible():
            writer = dict(record.headers() or ()).get(envelope.OUT_INSTANCE, b"").hex()
            into.effects.append(
                Effect(lane, (record.offset(),), message_id(record), writer, record.decided_at or record.stored_at)
            )


def dead_of(cluster: Cluster, topic: str, into: Evidence) -> None:
    """Read the dead letters; the same one may be there more than once, and counts once."""
    partitions = cluster.topics.by_name[topic].partitions
    letters = (record for one in partitions for record in one.visible() if _facts(record).get("code") != envelope.REDRIVEN)
    into.dead += {_dead_id(record): True for record in letters}


def _dead_id(record: StoredRecord) -> MessageId:
    """Return (source, id); of one whose message has left the log, only the log's topic and where it lay are known."""
    facts = _facts(record)
    if facts.get("code") == LOST_PAYLOAD.code:
        return facts["topic"], f"@{facts['route']}/{facts['partition']}/{facts['offset']}"
    return message_id(record)


def _facts(record: StoredRecord) -> dict[str, str]:
    return {name.removeprefix(PREFIX): (value or b"").decode() for name, value in record.headers() or ()}


def leaks_of(cluster: Cluster, topics: list[str], into: Evidence) -> None:
    """Look for records outside the log that still name a capture."""
    for topic in topics:
        for partition in cluster.topics.by_name[topic].partitions:
            for record in partition.visible():
                if envelope.CAPTURE_HEADERS & {name for name, _ in record.headers() or ()}:
                    into.leaks.append(f"{topic}[{partition.place.partition}]@{record.offset()}")


def group_positions(cluster: Cluster, group: str) -> dict[Partition, int]:
    """Return the committed offsets of a group."""
    return {(p.topic, p.partition): offset for p, (offset, _) in cluster.groups.group(group).committed.items()}


def table_of(
    database: Database,
    table: str,
    into: Evidence,
    first_of: Callable[[bytes], int] = lambda _topic_id: 0,
    *,
    named: Callable[[Row], MessageId] = lambda row: (row["source"], row["id"]),
    placed: Callable[[Row], tuple[int, ...]] | None = None,
) -> None:
    """Read a destination table: its rows with the commits that made them, and every write of a position on the way.

    ``first_of`` a topic id is where its offsets count from, if several topics had the log's name. Rows stand in the order
    of their commits, or as they are ``placed``.
    """
    effects: dict[tuple[object, ...], Effect] = {}
    rows: dict[tuple[int, Partition], int] = {}
    for commit in database.history:
        into.restored = into.restored or commit.by == "restore"
        new = []
        worker = next((after["worker"] for name, _, _, after in commit.changes if name == POSITIONS and after), "")
        for number, (name, key, before, after) in enumerate(commit.changes):
            if name == table and before is None and after is not None:
                new.append(named(after))
                place = (commit.number, number) if placed is None else placed(after)
                effects[key] = Effect(table, place, named(after), worker, commit.at)
            elif name == table and after is None:
                effects.pop(key, None)
            elif name == POSITIONS:
                _position(commit, (before, after), rows, first_of, into)
        if commit.by != "restore":
            _torn(commit, new, into)
        if any(change[0] == POSITIONS for change in commit.changes):
            into.samples.append(Sample(commit.at, _standing(rows), frozenset(e.id for e in effects.values())))
    into.effects += effects.values()
    into.positions.update(_standing(rows))


def _standing(rows: Mapping[tuple[int, Partition], int]) -> dict[Partition, int]:
    """Return where a route stands: a commit of the first topic's that comes late says nothing of the second's row."""
    return {place: position for (_, place), position in sorted(rows.items())}


def _position(
    commit: Commit,
    change: tuple[Row | None, Row | None],
    rows: dict[tuple[int, Partition], int],
    first_of: Callable[[bytes], int],
    into: Evidence,
) -> None:
    before, after = change
    known = after or before
    assert known is not None
    first = first_of(known["topic_id"])
    row = (first, (known["topic"], known["partition"]))
    if after is None or after["position"] is None:
        rows.pop(row, None)
    else:
        rows[row] = after["position"] + first
    if after is None:
        return
    claim = before is None or before["epoch"] != after["epoch"]
    # Who held it when the backup was made holds it again: its word stands in the row.
    by = commit.by if commit.by != "restore" else _last_name(after["worker"], into)
    held = (f"{after['topic']} of {after['route']} ({after['topic_id'].hex()[:4]})", after["partition"])
    into.held.append(
        Held(held, after["epoch"], after["worker"], by, after["position"], claim or commit.by == "restore", commit.at)
    )


def _last_name(owner: str, into: Evidence) -> str:
    return next((one.by for one in reversed(into.held) if one.owner == owner), "")


def _torn(commit: Commit, new: list[MessageId], into: Evidence) -> None:
    """Effects and inbox rows of one commit name the same messages."""
    digests = {after["digest"] for name, _, before, after in commit.changes
               if name == INBOX and (before is None or before["outcome"] == 1) and after is not None
               and after["outcome"] == 0}  # fmt: skip
    effects = {digest_of(name): name for name in new}
    for digest in digests ^ effects.keys():
        what = "an inbox row without its effect" if digest in digests else f"{effects[digest]} without its inbox row"
        into.torn.append(f"commit {commit.number} of {commit.by} at {commit.at:.4f} has {what}")


def digest_of(name: MessageId) -> bytes:
    """Return the identity that the route's rule gives a message."""
    headers = {envelope.SOURCE: name[0].encode(), envelope.ID: name[1].encode()}
    found = cloudevents(headers, b"", None)
    assert found is not None
    return found


def end_of(cluster: Cluster, partition: LogPartition) -> int:
    """Return where a partition ends now."""
    return cluster.topics.partition(partition).end
