"""A password that a server goes on to refuse: it may have changed since this process read it, and the next one reads it again."""

from __future__ import annotations

from typing import Final

from relay.message.errors import LOCKED_OUT_S, LockedOut, Unreachable

_NOT_LET_IN: Final = "password authentication failed"


class Lockout:
    """Since when the password is refused; ``now`` is on the monotonic clock."""

    def __init__(self) -> None:
        self._since: float | None = None

    def let_in(self) -> None:
        """Forget what was before a connection that was made."""
        self._since = None

    def met(self, away: Unreachable, now: float) -> None:
        """Raise LockedOut, which ends the process, if nothing but such refusals has come for a while."""
        if _NOT_LET_IN not in str(away):
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since >= LOCKED_OUT_S:
            raise LockedOut(f"{away}; another process reads them again") from away
