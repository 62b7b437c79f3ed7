"""What a queue is configured to be: its subscribers, its order, its bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from relay.queue.message import Audience, Group


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
    """One queue. ``publishers`` None: everybody may put; ``message_bytes`` bounds key, value and headers together."""

    name: str
    audience: Audience
    order: Literal["publisher", "key", "none"] = "publisher"
    ttl_ms: int | None = None
    publishers: frozenset[str] | None = None
    message_bytes: int = 1 << 20
    waiting_max: int = 10_000_000
    tries: int = 5
    retain: Retention = field(default_factory=Retention)
    balancing: Balancing | None = None

    def group_of(self, subscriber: str) -> Group | None:
        """Return the group a subscriber belongs to, None if the queue does not know it."""
        return next((group for group in self.audience.groups if subscriber in group.members), None)
