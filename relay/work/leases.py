"""A silent worker is given up only after its beats stood still for a whole lease, measured on the watcher's own clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from relay.queue.port import Holder

BEATS_PER_LEASE: Final = 6


class Leases:
    """What one worker has seen of the others' beats. Times are seconds on its own monotonic clock.

    A lease in which it never looked says nothing: while a store is away, or a host stands still, nobody can beat, and whoever
    comes back first must not take all others for dead. Nor does a shorter time say more than that one beat did not come.
    Source: design.md section 14: a lease is a counter, never a time that somebody wrote down.
    """

    def __init__(self, lease_s: float, own: bytes) -> None:
        self._lease_s = lease_s
        self._own = own
        self._seen: dict[bytes, tuple[int, float]] = {}
        self._looked_at: float | None = None

    def silent(self, holders: Sequence[Holder], now: float) -> list[Holder]:
        """Note the beats of all holders and return those that were seen unchanged for the whole lease."""
        pause = 0.0 if self._looked_at is None else now - self._looked_at
        if pause >= self._lease_s:
            self._seen = {}
        unseen = max(0.0, pause - self._lease_s / BEATS_PER_LEASE)
        self._looked_at = now
        seen: dict[bytes, tuple[int, float]] = {}
        ended = []
        for holder in holders:
            if holder.id == self._own:
                continue
            beats, since = self._seen.get(holder.id, (-1, now))
            since = since + unseen if beats == holder.beats else now
            seen[holder.id] = (holder.beats, since)
            if now - since >= self._lease_s:
                ended.append(holder)
        self._seen = seen
        return ended
