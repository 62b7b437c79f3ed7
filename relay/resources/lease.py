"""A block is lent a connection that other blocks have before and after it; its cursors end with it, and its transaction is not lent."""

from __future__ import annotations

from typing import Any, Final, NoReturn

from relay.message.errors import CaptureError

OVER: Final = "the block of this cursor is over: what it wrote now would take effect by itself, or be another block's"
NOT_LENT: Final = (
    "a block ends its transaction itself, commits it at its end, and rolls it back if an exception leaves it; use tx.savepoint() to undo a "
    "part of it, and tx.execute() for each statement of a script"
)


class Lease:
    """The time for which one block has a connection."""

    def __init__(self) -> None:
        self.is_over = False
        self.is_suspect = False
        """If a part of the block fails: may psycopg take for prepared what is not, until it hears of a rollback, as it does not here?"""

    def check(self) -> None:
        """Raise CaptureError once the block is over."""
        if self.is_over:
            raise CaptureError(OVER)


def not_lent(*_: Any, **__: Any) -> NoReturn:
    """Stand in a connection's place for what ends its transaction, or a part of it, behind the block's back."""
    raise CaptureError(NOT_LENT)
