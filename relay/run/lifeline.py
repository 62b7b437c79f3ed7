"""A worker process does not outlive its supervisor: a pipe that nobody writes to ends when the supervisor does.

It holds for every death of the supervisor, SIGKILL included, and needs no code between fork and exec.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, MutableMapping
from typing import Final

from relay.message.errors import ConfigError
from relay.world import schedule

VARIABLE: Final = "RELAY_SUPERVISOR_FD"


class ParentEnd:
    """The supervisor's end. Children inherit ``fd`` (``pass_fds``) and ``env``; only the supervisor can write."""

    def __init__(self) -> None:
        self.fd, self._held = os.pipe()

    @property
    def env(self) -> dict[str, str]:
        """What a child's environment needs to find its end."""
        return {VARIABLE: str(self.fd)}

    def close(self) -> None:
        """Let go; children that still run notice."""
        os.close(self._held)
        os.close(self.fd)


def parent_end() -> ParentEnd:
    """Make the pipe; keep it for as long as children run."""
    return ParentEnd()


def watch(on_gone: Callable[[], None], env: MutableMapping[str, str] = os.environ) -> schedule.Thread | None:
    """Call ``on_gone`` once, in a thread of its own, when the supervisor is gone; None if there is none.

    Call it before other processes are started: the variable is taken out of ``env``, so that they do not watch a
    number that means another file to them. Raises ConfigError if the variable names no pipe.
    """
    given = env.pop(VARIABLE, None)
    if given is None:
        return None
    fd = _pipe(given)
    os.set_inheritable(fd, False)

    def _wait() -> None:
        while os.read(fd, 64):
            pass
        os.close(fd)
        on_gone()

    return schedule.start_thread("lifeline", _wait)


def _pipe(given: str) -> int:
    try:
        fd = int(given)
        is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
    except (ValueError, OSError, OverflowError):
        is_pipe = False
    if not is_pipe:
        raise ConfigError(
            f"{VARIABLE} = {given!r}: not a pipe of a supervisor; start workers with `relay run`, or unset it"
        )
    return fd
