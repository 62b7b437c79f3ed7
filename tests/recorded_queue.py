"""A control topic, in memory, that says one thing: a queue's uuid."""

from __future__ import annotations

from relay.queue.desired import encode_uuid


class RecordedQueue:
    """What the control topic would say: the queue's uuid, once."""

    def __init__(self, queue: str, uuid: str) -> None:
        self._left = [encode_uuid(queue, uuid)]

    def records(self) -> list[tuple[bytes, bytes | None]]:
        """Return what nobody was told yet."""
        found, self._left = self._left, []
        return list(found)

    def close(self) -> None:
        """Nothing is held."""
