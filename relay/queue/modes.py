"""The modes of a queue, per queue or per message: everybody, the first free one, both combined, or by load.

Load balancing that switches itself has two thresholds, so that it does not flicker between them.
Source: document 003, [26], [35] to [38], [61] to [63].
"""

from __future__ import annotations

from typing import Final

from relay.message.queue_headers import Mode
from relay.queue.message import Audience, Group
from relay.queue.settings import Balancing

BALANCED_GROUP: Final = "all"
"""The pool of all subscribers."""


def in_mode(audience: Audience, mode: Mode) -> Audience:
    """Return the audience with every member for itself, all as one pool, or as it is ("combined")."""
    if mode == "balance":
        return pooled(audience)
    if mode == "publish-subscribe":
        members = [member for group in audience.groups for member in group.members]
        return Audience(tuple(Group(member, (member,)) for member in members), audience.in_order)
    return audience


def pooled(audience: Audience) -> Audience:
    """Return all members as one pool, which has no order; one member stays as it is."""
    members = [member for group in audience.groups for member in group.members]
    return Audience((Group(BALANCED_GROUP, tuple(members)),)) if len(members) > 1 else audience


class Balance:
    """Whether new messages of a queue are balanced now. Each publisher's process has its own; off at first."""

    def __init__(self, thresholds: Balancing | None) -> None:
        self.is_on = False
        self._thresholds = thresholds

    @property
    def is_wanted(self) -> bool:
        """Whether the queue balances by load at all: else nobody needs to count what waits."""
        return self._thresholds is not None

    def seen(self, waiting: int) -> bool:
        """Go by how many messages wait now and return whether to balance the next ones."""
        if self._thresholds is not None:
            if waiting > self._thresholds.on_above:
                self.is_on = True
            elif waiting < self._thresholds.off_below:
                self.is_on = False
        return self.is_on
