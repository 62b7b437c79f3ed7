"""Sifting: which messages of a batch are new, by the deduplication index and by the batch itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relay.delivery.batch import Counts
from relay.message.identity import CONTENT_BYTES
from relay.message.record import LogMessage
from relay.monitor.index import DedupIndex

_UNKNOWN_CONTENT = bytes(CONTENT_BYTES)


def sift(messages: Sequence[LogMessage], indexes: Mapping[int, DedupIndex], counts: Counts) -> list[LogMessage]:
    """Return the messages that have no proven effect yet, in their order; count the others.

    A repeat whose content differs is counted as a conflict as well: the first one wins.
    """
    by_partition: dict[int, list[LogMessage]] = {}
    for message in messages:
        by_partition.setdefault(message.partition, []).append(message)
    fresh: list[LogMessage] = []
    for partition, group in by_partition.items():
        fresh += _sift_one(group, indexes[partition], counts)
    return fresh


def _sift_one(group: list[LogMessage], index: DedupIndex, counts: Counts) -> list[LogMessage]:
    digests = [message.digest for message in group]
    found = index.find(digests)
    if not any(found) and len(set(digests)) == len(digests):
        return group
    fresh = []
    seen: dict[bytes, bytes] = {}
    for message, value in zip(group, found, strict=True):
        known = value[:CONTENT_BYTES] if value is not None else seen.get(message.digest)
        if known is None:
            seen[message.digest] = message.content
            fresh.append(message)
            continue
        counts.duplicates += 1
        if known not in (message.content, _UNKNOWN_CONTENT):
            counts.conflicts += 1
    return fresh
