"""A file that a worker keeps locked: while the lock holds the worker lives, and what stands in it killed the worker.

The kernel lets the lock go with the process, whatever ends it, so a peer on the same host need not wait for the lease.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relay.message.errors import Unreachable
from relay.message.limits import raise_limit
from relay.queue.message import Ticket


class Mark:
    """One worker's own mark. Make it before the worker enters its queue: a holder without a locked file counts as dead."""

    def __init__(self, folder: Path, holder: bytes) -> None:
        self._path = folder / holder.hex()
        with _written(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def blame(self, ticket: Ticket | None) -> None:
        """Note which message is to blame if the process ends now; None: none. Raises Unreachable: a disk without room has some again."""
        with _written(self._path.parent):
            os.ftruncate(self._fd, 0)
            if ticket is not None:
                os.pwrite(self._fd, f"{ticket.handle} {ticket.attempt}".encode(), 0)

    def close(self) -> None:
        """Remove the mark: the worker has left its queue. Raises Unreachable."""
        _let_go(self._path, self._fd, remove=True)


class DeadMark:
    """The mark of a worker of this host that is proven dead; ``blamed`` is what it ran alone, or hung in."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd
        words = os.pread(fd, 64, 0).decode("ascii", "replace").split()
        self.blamed = Ticket(int(words[0]), int(words[1])) if len(words) == 2 else None

    def close(self, *, remove: bool) -> None:
        """Let go; ``remove`` once nothing is left to recover. Raises Unreachable."""
        _let_go(self._path, self._fd, remove=remove)


def dead_mark(folder: Path, holder: bytes) -> DeadMark | None:
    """Return a holder's mark if it ran on this host and is dead; None: it lives, or nothing is known here. Raises Unreachable."""
    path = folder / holder.hex()
    with _written(folder):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return DeadMark(path, fd)


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    """Raise as Unreachable what keeps the folder from being written: it passes, so the process is started again as long as it takes."""
    try:
        yield
    except OSError as error:
        raise_limit(error)
        raise Unreachable(
            f"[relay] state: {folder} cannot be written ({error.strerror}); make room there, or let the relay write there"
        ) from error


def _let_go(path: Path, fd: int, *, remove: bool) -> None:
    try:
        if remove:
            with _written(path.parent):
                path.unlink(missing_ok=True)
    finally:
        os.close(fd)
