"""Several routes audited at once, each in a process of its own: an audit keeps one processor busy, and shares nothing with another.

A process prints what it has read so far, a line of JSON each time, and at last its report, or why there is none.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from relay.audit.seen import Watch
from relay.audit.verify import Refused, RouteReport, named, verify
from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.kafka.topics import Topics
from relay.message.errors import RelayError
from relay.world import clock, schedule

SAID_EVERY_S: Final = 0.1
_REPORT: Final = TypeAdapter(RouteReport)
_ALLOW_LAG: Final = "--allow-lag"


class NotAudited(RelayError):
    """A route's audit ended without a report; ``exit_code`` is that of what kept it from one."""

    def __init__(self, sentence: str, exit_code: int = 1) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


def verify_at_once(
    config: RelayConfig,
    routes: Iterable[str],
    *,
    processes: int,
    allow_lag: bool = False,
    watch: Watch = lambda *_: None,
    refused: Refused | None = None,
) -> list[RouteReport]:
    """Audit the routes as ``verify`` does, and raise what it does, with up to ``processes`` audits at a time.

    ``watch`` is called by several threads, for one route by one. What keeps a route from being audited is a NotAudited.
    """
    names = named(config, routes)
    with Topics(config.kafka, config.timing) as topics:
        topics.names()  # a broker that is away is told once, not for each route
    audits = _Audits(config.path, watch, allow_lag=allow_lag)
    reports = []
    with schedule.pool("audit", processes) as pool:
        reporting = {name: pool.submit(audits.report, name) for name in names}
        with audits.ended_unless_done(reporting.values()):
            for name, report in reporting.items():
                try:
                    reports.append(report.result())
                except RelayError as error:
                    if refused is None:
                        raise
                    refused(name, error)
    return reports


class _Audits:
    """The processes of an audit, as the one that started them sees them."""

    def __init__(self, path: Path, watch: Watch, *, allow_lag: bool) -> None:
        self._command = (sys.executable, "-m", "relay.audit.at_once", str(path), *[_ALLOW_LAG] * allow_lag)
        self._watch = watch
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_over = False

    def report(self, route: str) -> RouteReport:
        """Have a route audited. Raises NotAudited."""
        last: dict[str, Any] = {}
        with self._started(route) as process:
            self._running.add(process)
            if self._is_over:
                process.kill()
            assert process.stdout is not None, "asked for above"
            for line in process.stdout:
                try:
                    last = json.loads(line)
                except ValueError:
                    continue  # it was killed while it wrote: how it ended is what is said
                if "step" in last:
                    self._watch(last["step"], last["done"], last["total"])
        self._running.discard(process)
        if "report" in last:
            return _REPORT.validate_python(last["report"])
        if "error" in last:
            raise NotAudited(last["error"], last["exit_code"])
        raise NotAudited(f"routes.{route}: its audit {_ended(process.returncode)}")

    def _started(self, route: str) -> subprocess.Popen[bytes]:
        # In a group of its own, so that a terminal's Ctrl-C reaches it through this process only.
        try:
            return subprocess.Popen([*self._command, route], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, process_group=0)
        except OSError as refused:
            raise NotAudited(f"routes.{route}: its audit cannot be started ({refused}); audit fewer routes at once") from refused

    @contextmanager
    def ended_unless_done(self, reporting: Iterable[Future[RouteReport]]) -> Iterator[None]:
        """End what still runs when the block is left by whatever interrupts it: nobody would hear of it."""
        try:
            yield
        except BaseException:
            self._is_over = True
            for report in reporting:
                report.cancel()
            for process in list(self._running):
                process.kill()
            raise


def _ended(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed; if memory ran out, audit fewer routes at once"
    return f"ended without a report (exit code {code})"


def _say(**fields: Any) -> None:
    # In ASCII, which every text fits into.
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _audit(path: Path, route: str, *, allow_lag: bool) -> None:
    """Audit one route, and print what ``_Audits.report`` reads."""
    due: dict[str, float] = {}

    def watch(step: str, done: int, total: int) -> None:
        now = clock.monotonic()
        if done == total or now >= due.get(step, now):
            due[step] = now + SAID_EVERY_S
            _say(step=step, done=done, total=total)

    try:
        (report,) = verify(load(path), [route], allow_lag=allow_lag, watch=watch)
    except RelayError as error:
        _say(error=str(error), exit_code=error.exit_code)
    else:
        _say(report=_REPORT.dump_python(report, mode="json"))


if __name__ == "__main__":
    try:
        _audit(Path(sys.argv[1]), sys.argv[-1], allow_lag=_ALLOW_LAG in sys.argv[2:-1])
    except BrokenPipeError:
        sys.exit("nobody waits for this audit any more")
