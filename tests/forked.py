"""Workers forked from a process that has their modules loaded: most of a short worker's processor time is its imports.

Each is a process of its own in which the worker's module runs as ``python -m`` runs it; it is signalled, frozen and killed
as any other. Variables that only the interpreter reads have no effect. What starts workers itself (`relay run`, `relay work`,
the demo, chaos) starts them its own way in its tests.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn

from tests.kept_process import KeptProcess, answer

MODULES: Final = ("relay.run.process", "relay.work.process")
POLL_S: Final = 0.005


class Forked:
    """What tests use of ``subprocess.Popen``; ``said`` is the file that both its outputs are added to."""

    def __init__(self, module: str, words: list[str], env: Mapping[str, str], said: Path) -> None:
        self.args = [module, *words]
        self.returncode: int | None = None
        said.touch()
        self.pid: int = _ask(start=self.args, env={**env}, said=str(said), folder=str(Path.cwd()))

    def poll(self) -> int | None:
        """Return the exit code, a signal's as a negative number, None while it runs."""
        if self.returncode is None:
            self.returncode = _ask(poll=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; raises TimeoutExpired."""
        limit = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if limit is not None and time.monotonic() > limit:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send it, unless the worker is known to have ended: until then its number is nobody else's."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def _parent() -> KeptProcess:
    return KeptProcess("tests.forked", [], {**os.environ, "PYTHONUNBUFFERED": ""})


def _ask(**what: Any) -> Any:
    return _parent().ask(what)


def _serve() -> None:
    for module in MODULES:
        importlib.import_module(module)
    living: set[int] = set()

    def reply(asked: Mapping[str, Any]) -> int | None:
        if "poll" in asked:
            ended, status = os.waitpid(asked["poll"], os.WNOHANG)
            living.discard(ended)
            return os.waitstatus_to_exitcode(status) if ended else None
        pid = os.fork()
        if not pid:
            _become(asked)
        living.add(pid)
        return pid

    answer(reply)
    for pid in living:
        os.kill(pid, signal.SIGKILL)


def _become(asked: Mapping[str, Any]) -> NoReturn:
    """Go on as the worker, and end as the interpreter ends: with what is registered for its exit, or a traceback."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(asked["said"], os.O_WRONLY | os.O_APPEND), 1)
    os.dup2(1, 2)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["env"])
    importlib.reload(importlib.import_module("relay.world.crash"))  # it reads the environment as it is loaded
    sys.argv = asked["start"]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    _serve()
