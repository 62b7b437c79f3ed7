"""An error that says nothing but that this process, or its machine, is at one of its limits: files, memory, threads.

Such an error tells nothing of a message, a file or a configuration: whatever was asked for may go well when there is room again.
"""

from __future__ import annotations

import errno
import os
import re
from typing import Final

from relay.message.errors import Unreachable, words_of

_LIMITS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
"""Files of a process, files of the machine, memory, processes."""
AT_LIMIT: Final = "this process, or its machine, is at one of its limits (`ulimit -a`)"
_NO_THREAD: Final = "can't start new thread"
"""The interpreter's own words: its error has no number."""
_NO_CLIENT_THREAD: Final = re.compile(r"Failed to create (?:\w+ )?thread")
"""The Kafka client's, which takes a dozen of them."""
_NO_JSON_MEMORY: Final = "Not enough memory"
"""The JSON reader asks for twelve times a value's bytes at once; refused, it calls the value none of JSON, in these words."""


def limit_met(error: BaseException) -> str | None:
    """Return a sentence that names the limit; None if the error may say something else."""
    words = "out of memory" if isinstance(error, MemoryError) else ""
    if isinstance(error, OSError) and error.errno in _LIMITS:
        words = os.strerror(error.errno or 0)
    elif isinstance(error, ImportError) and words_of(error).endswith(os.strerror(errno.EMFILE)):
        words = os.strerror(errno.EMFILE)
    elif (said := words_of(error)) == _NO_THREAD or _NO_CLIENT_THREAD.search(said):
        words = "no further thread can be started"
    return f"{words}; {AT_LIMIT}" if words else None


def limit_code(error: BaseException) -> int:
    """Return the exit code of a process that met a limit. Memory alone uses up restarts: a single message may be what takes it."""
    return 1 if isinstance(error, MemoryError) else Unreachable.exit_code


def raise_limit(error: BaseException) -> None:
    """Raise what the caller is about to take for a fault of what it reads, if it is only a limit that was met."""
    if isinstance(error, MemoryError):
        raise error
    if isinstance(error, ValueError) and words_of(error).startswith(_NO_JSON_MEMORY):
        raise MemoryError from None
    if (sentence := limit_met(error)) is not None:
        raise Unreachable(sentence) from error
