"""What is kept of a handler's failure, with its message and in the log: what failed and where, and nothing that came in a message."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final

from relay.message.errors import RelayError, words_of
from relay.work.subscriber import Handler

CAUSE_CHARACTERS_MAX: Final = 4000


def storable(cause: str) -> str:
    """Return a cause as every store takes it, and not at any length: an application's own may quote what came in a message.

    PostgreSQL has no NUL, and no store one half of a surrogate pair. What the store refused would be written anew for ever.
    """
    return cause[:CAUSE_CHARACTERS_MAX].replace("\0", "\\x00").encode(errors="backslashreplace").decode()


def cause_of(error: BaseException, handler: Handler) -> str:
    """Return what failed and where, without the error's text: it may hold a payload or a secret, but for our own errors.

    Where is the line of the application that was left last: the last line of all is mostly a driver's or a library's.
    """
    if isinstance(error, RelayError):
        return words_of(error)
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return type(error).__name__
    file = handler.file
    for frame in reversed(frames):
        if frame.filename == file:
            return f"{type(error).__name__} in {frame.name}, line {frame.lineno}"
    last = frames[-1]
    return f"{type(error).__name__} in {last.name}, line {last.lineno} of {Path(last.filename).name}"
