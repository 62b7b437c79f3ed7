"""What a queue is configured to be: its subscribers, its order, its bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from relay.message.queue_headers import Mode
from relay.queue.message import Audience, Group

CLOCKS_MS: Final = 300_000
"""So far apart the clocks of a queue's workers may be."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long JOURNALLED messages stay readable; what passes any bound is archived. None: no such bound."""

    age_ms: int | None = None
    count: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Balancing:
    """Above ``on_above`` waiting messages new ones go to all subscribers as one pool, until fewer than ``off_below`` wait."""

    on_above: int
    off_below: int


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """One queue. ``publishers`` None: everybody may put; ``message_bytes`` bounds key, value and headers together.

    ``audience`` is that of ``mode``, made of ``written``, the subscribers and pools as they are configured (None: the same),
    which a message with a mode of its own goes by.
    """

    name: str
    audience: Audience
    order: Literal["publisher", "key", "none"] = "publisher"
    ttl_ms: int | None = None
    publishers: frozenset[str] | None = None
    message_bytes: int = 1 << 20
    waiting_max: int = 10_000_000
    tries: int = 5
    pause_max_ms: int = 300_000
    retain: Retention = field(default_factory=Retention)
    balancing: Balancing | None = None
    mode: Mode = "combined"
    written: Audience | None = None

    @property
    def wait_max_ms(self) -> int:
        """How far ahead a retry may lie; one beyond it was set by a clock that was wrong, and would hold its lane for hours."""
        return 2 * self.pause_max_ms + CLOCKS_MS

    def group_of(self, subscriber: str) -> Group | None:
        """Return the group a subscriber belongs to, None if the queue does not know it."""
        return next((group for group in self.audience.groups if subscriber in group.members), None)
