"""A silent worker is given up only after its beats stood still for a whole lease, measured on the watcher's own clock."""

from __future__ import annotations

from collections.abc import Sequence

from relay.queue.port import Holder


class Leases:
    """What one worker has seen of the others' beats. Times are seconds on its own monotonic clock.

    A lease in which it never looked says nothing: while a store is away, or a host stands still, nobody can beat, and whoever
    comes back first must not take all others for dead. Source: design.md section 14: a lease is a counter, never a time
    that somebody wrote down.
    """

    def __init__(self, lease_s: float, own: bytes) -> None:
        self._lease_s = lease_s
        self._own = own
        self._seen: dict[bytes, tuple[int, float]] = {}
        self._looked_at: float | None = None

    def silent(self, holders: Sequence[Holder], now: float) -> list[Holder]:
        """Note the beats of all holders and return those that were seen unchanged for the whole lease."""
        if self._looked_at is not None and now - self._looked_at >= self._lease_s:
            self._seen = {}
        self._looked_at = now
        seen: dict[bytes, tuple[int, float]] = {}
        ended = []
        for holder in holders:
            if holder.id == self._own:
                continue
            beats, since = self._seen.get(holder.id, (holder.beats, now))
            if beats != holder.beats:
                beats, since = holder.beats, now
            seen[holder.id] = (beats, since)
            if now - since >= self._lease_s:
                ended.append(holder)
        self._seen = seen
        return ended
