"""Where the values of a queue lie that keeps only its index: the Kafka log, read back by place ([31], [33])."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Protocol

from relay.queue.message import Place


class Values(Protocol):
    """Reads values back. One thread at a time uses it."""

    def read(self, places: Sequence[Place]) -> Mapping[Place, bytes | None]:
        """Return the values that are there; a place that is missing in the answer has left the log for good.

        Raises StoreAway if the log does not answer: nothing is known then.
        """

    def close(self) -> None:
        """Free what the reader holds."""


def digest_of(value: bytes) -> str:
    """Return what a value is known by: a topic that was made anew may have another one in the same place."""
    return blake2b(value, digest_size=16).hexdigest()
