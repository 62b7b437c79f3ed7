"""The supervisor with real processes and real signals; its workers here are small programs that fail on demand."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import termios
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from relay.cli.main import app
from relay.cli.run import worker_command
from relay.run.restarts import Past
from relay.world import clock
from tests.inherited_signals import inheriting

DEADLINE_S = 20.0
ROOT = Path(__file__).parents[2]

SUPERVISOR = """
import sys
from relay.run.logging import setup
from relay.run.restarts import Budget
from relay.run.supervisor import Supervisor
setup(as_json=True)
workers, child, routes = int(sys.argv[1]), sys.argv[2], dict(word.split("=", 1) for word in sys.argv[3:])
budget = Budget(restarts=3, window_s=60, first_s=0.05, most_s=0.1)
command = lambda route, number: [sys.executable, child, routes[route], route, str(number)]
sys.exit(Supervisor(list(routes), workers, command, budget=budget).run())
"""

CHILD = """
import os, signal, sys, threading
from pathlib import Path
from relay.run.lifeline import watch
behaviour, route, number = sys.argv[1:]
end = threading.Event()
if behaviour != "frozen":
    watch(end.set)
if behaviour in ("deaf", "frozen"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: end.set())
if behaviour.startswith("exit:"):
    _, code, sentence = behaviour.split(":", 2)
    print("some line before", file=sys.stderr)
    print(sentence, end="", file=sys.stderr)
    sys.exit(int(code))
if behaviour.startswith("once:"):
    _, code, path = behaviour.split(":", 2)
    if not Path(path).exists():
        Path(path).touch()
        sys.exit(int(code))
if behaviour == "loud":
    print("x" * 3_000_000, file=sys.stderr)
if behaviour == "chatty":
    for _ in range(5000):
        print("x" * 200, file=sys.stderr)
if behaviour == "first-fails" and number == "0":
    sys.exit(7)
if behaviour == "remembers":
    from relay.run.restarts import Past
    print("earlier:", Past.told(os.environ), file=sys.stderr)
if behaviour == "json":
    print('{"event": "recovered", "level": "warning", "partitions": 4}', file=sys.stderr)
if behaviour == "applications-json":
    print('{"event": "seen", "level": "info", "worker": "w-7", "route": "/orders", "self": 2, "fields": 3}', file=sys.stderr)
print("ready", file=sys.stderr, flush=True)
end.wait()
sys.exit(9 if behaviour == "drains-badly" else 0)
"""


class Supervised:
    """A supervisor in a process of its own, heard through its JSON lines."""

    def __init__(self, folder: Path, workers: int, routes: dict[str, str]) -> None:
        (folder / "supervisor.py").write_text(SUPERVISOR)
        (folder / "child.py").write_text(CHILD)
        words = [f"{route}={behaviour}" for route, behaviour in routes.items()]
        self.process = subprocess.Popen(
            [sys.executable, folder / "supervisor.py", str(workers), folder / "child.py", *words],
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        assert self.process.stderr is not None
        self._fd = self.process.stderr.fileno()
        os.set_blocking(self._fd, False)
        self._open = b""
        self.lines: list[dict[str, Any]] = []
        self._taken = 0

    def heard(self, event: str, **fields: object) -> dict[str, Any]:
        """Return the next line with this event and these fields, not looked at before."""
        deadline = clock.monotonic() + DEADLINE_S
        while True:
            for index in range(self._taken, len(self.lines)):
                line = self.lines[index]
                if event in line["event"] and fields.items() <= line.items():
                    self._taken = index + 1
                    return line
            if not self._read(deadline - clock.monotonic()):
                pytest.fail(f"never heard {event} {fields} in {self.lines}")

    def ready(self, count: int) -> list[int]:
        """Wait until so many workers say that they are ready, and return the process ids of the last started."""
        while sum(line["event"] == "ready" for line in self.lines) < count:
            assert self._read(DEADLINE_S), self.lines
        return self.pids()

    def pids(self) -> list[int]:
        latest = {
            (line["route"], line["worker"]): line["pid"] for line in self.lines if line["event"] == "started"
        }
        return list(latest.values())

    def pid_of(self, route: str, worker: int = 0) -> int:
        found = [
            line["pid"]
            for line in self.lines
            if line["event"] == "started" and (line["route"], line["worker"]) == (route, worker)
        ]
        return int(found[-1])

    def code(self) -> int:
        code = self.process.wait(DEADLINE_S)
        while self._read(0):
            pass
        return code

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]

    def _read(self, wait_s: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._fd, selectors.EVENT_READ)
            if not selector.select(max(0.0, wait_s)):
                return False
        data = os.read(self._fd, 1 << 20)
        *lines, self._open = (self._open + data).split(b"\n")
        self.lines += [json.loads(line) for line in lines]
        return bool(data)


Supervise = Callable[..., Supervised]


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Supervise]:
    made: list[Supervised] = []

    def make(workers: int = 1, **routes: str) -> Supervised:
        made.append(Supervised(tmp_path, workers, routes))
        return made[-1]

    yield make
    for supervised in made:
        for pid in [*supervised.pids(), supervised.process.pid]:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        supervised.process.wait(DEADLINE_S)
        assert supervised.process.stderr is not None
        supervised.process.stderr.close()


def is_alive(pid: int) -> bool:
    """Zombies, which nobody in a container may reap, count as dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pids: list[int]) -> None:
    deadline = clock.monotonic() + DEADLINE_S
    while any(is_alive(pid) for pid in pids):
        assert clock.monotonic() < deadline, f"still alive: {pids}"
        clock.sleep(0.02)


def test_it_ends_when_all_workers_are_done(supervise: Supervise) -> None:
    supervisor = supervise(2, a="exit:0:idle", b="exit:0:idle")

    assert supervisor.code() == 0
    assert supervisor.events().count("started") == 4
    assert supervisor.events().count("done") == 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_drains_the_workers(supervise: Supervise, number: signal.Signals) -> None:
    with inheriting(signal.SIGHUP, signal.SIG_DFL):  # whoever runs the tests may ignore it
        supervisor = supervise(2, a="run")
    pids = supervisor.ready(2)

    supervisor.process.send_signal(number)

    assert supervisor.code() == 0
    assert supervisor.events().count("drained") == 2
    wait_until_gone(pids)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_leaves_at_once_and_leaves_nobody_behind(
    supervise: Supervise, number: signal.Signals, code: int
) -> None:
    supervisor = supervise(2, a="frozen")
    pids = supervisor.ready(2)
    supervisor.process.send_signal(signal.SIGTERM)
    supervisor.heard("draining")

    time.sleep(0.6)
    supervisor.process.send_signal(number)

    assert supervisor.code() == code
    wait_until_gone(pids)


def test_signals_of_one_moment_are_one(supervise: Supervise) -> None:
    """`timeout` sends its signal to the command and then to its whole group; a terminal that closes, and its shell, do the like."""
    supervisor = supervise(2, a="run")
    pids = supervisor.ready(2)

    for number in (signal.SIGINT, signal.SIGTERM):  # two of the same may arrive as one
        supervisor.process.send_signal(number)

    assert supervisor.code() == 0
    assert supervisor.events().count("drained") == 2
    wait_until_gone(pids)


def test_workers_end_when_the_supervisor_is_killed(supervise: Supervise) -> None:
    supervisor = supervise(2, a="run", b="deaf")
    pids = supervisor.ready(4)

    supervisor.process.kill()

    wait_until_gone(pids)


def test_a_killed_worker_is_started_again(supervise: Supervise) -> None:
    supervisor = supervise(1, a="run", b="run")
    supervisor.ready(2)
    other = supervisor.pid_of("b")
    os.kill(supervisor.pid_of("a"), signal.SIGKILL)

    supervisor.heard("restarting", route="a", reason="killed by SIGKILL")
    supervisor.heard("started", route="a")
    supervisor.ready(3)

    assert is_alive(other)
    supervisor.process.terminate()
    assert supervisor.code() == 0


def test_a_process_is_told_how_its_worker_failed_before(supervise: Supervise) -> None:
    supervisor = supervise(2, a="remembers")
    supervisor.ready(2)

    os.kill(supervisor.pid_of("a", 1), signal.SIGKILL)

    supervisor.heard(f"earlier: {Past(1, 1, 'killed by SIGKILL')}", worker=1)
    assert supervisor.events().count(f"earlier: {Past()}") == 2


def test_an_unreachable_service_is_waited_for(supervise: Supervise, tmp_path: Path) -> None:
    supervisor = supervise(1, a=f"once:3:{tmp_path / 'been'}")

    supervisor.heard("restarting", reason="a broker, a database or a resource of this machine is unreachable")
    supervisor.ready(1)

    supervisor.process.terminate()
    assert supervisor.code() == 0


def test_a_worker_that_cannot_be_started_for_a_limit_is_started_when_there_is_room(supervise: Supervise) -> None:
    """It was given up after some seconds, with all the others of its route, for good."""
    supervisor = supervise(1, a="run")
    (pid,) = supervisor.ready(1)
    most = resource.prlimit(supervisor.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(supervisor.process.pid, resource.RLIMIT_NOFILE, (4, most[1]))
    os.kill(pid, signal.SIGKILL)

    for _ in range(6):  # more than the budget has
        said = supervisor.heard("restarting", reason="a broker, a database or a resource of this machine is unreachable")
        assert "cannot be started: Too many open files; this process" in said["last"]
    resource.prlimit(supervisor.process.pid, resource.RLIMIT_NOFILE, most)
    supervisor.ready(2)

    supervisor.process.terminate()
    assert supervisor.code() == 0


def test_whoever_reads_no_log_line_holds_nobody_up(supervise: Supervise) -> None:
    """Standard error was waited for, deaf to signals, and whoever died was not started again."""
    supervisor = supervise(1, a="chatty")
    unread = array("i", [0])
    deadline = clock.monotonic() + DEADLINE_S
    assert supervisor.process.stderr is not None
    while unread[0] < 60_000:
        assert clock.monotonic() < deadline
        clock.sleep(0.05)
        fcntl.ioctl(supervisor.process.stderr, termios.FIONREAD, unread)

    supervisor.process.terminate()

    assert supervisor.process.wait(DEADLINE_S) == 0


def test_under_nohup_the_end_of_a_terminal_ends_nothing(supervise: Supervise) -> None:
    with inheriting(signal.SIGHUP, signal.SIG_IGN):
        supervisor = supervise(1, a="run")
    supervisor.ready(1)

    supervisor.process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        supervisor.process.wait(1)

    supervisor.process.terminate()
    assert supervisor.code() == 0
    assert not any("draining" in line["event"] and line.get("signal") == "SIGHUP" for line in supervisor.lines)


@pytest.mark.parametrize("code", [10, 11])
def test_a_worker_stopped_for_a_person_stays_stopped_and_the_others_go_on(
    supervise: Supervise, code: int
) -> None:
    supervisor = supervise(1, a=f"exit:{code}:offsets expired, set them", b="run")

    supervisor.heard("stopped", route="a", reason="offsets expired, set them", code=code)
    supervisor.ready(1)
    assert is_alive(supervisor.pid_of("b"))

    supervisor.process.terminate()
    assert supervisor.code() == 1
    assert supervisor.events().count("started") == 2


def test_a_wrong_configuration_stops_all(supervise: Supervise) -> None:
    supervisor = supervise(1, b="run", a="exit:2:kafka.x = 1: wrong")

    supervisor.heard("stopped", route="a", reason="kafka.x = 1: wrong")

    assert supervisor.code() == 2
    wait_until_gone(supervisor.pids())


def test_a_route_is_given_up_when_a_worker_s_budget_is_used_up(supervise: Supervise) -> None:
    supervisor = supervise(2, a="first-fails", b="run")

    supervisor.heard("route a is given up", worker=0, reason="exit code 7")
    supervisor.heard("drained", route="a", worker=1)
    starts = [line for line in supervisor.lines if line["event"] == "started" and line["route"] == "a"]
    assert sum(line["worker"] == 0 for line in starts) == 1 + 3
    assert is_alive(supervisor.pid_of("b"))

    supervisor.process.terminate()
    assert supervisor.code() == 1


def test_a_worker_that_fails_while_draining_is_told(supervise: Supervise) -> None:
    supervisor = supervise(1, a="drains-badly")
    supervisor.ready(1)

    supervisor.process.terminate()

    assert supervisor.code() == 1
    assert supervisor.heard("failed while draining")["reason"] == "exit code 9"


def test_what_workers_say_is_passed_on_and_bounded(supervise: Supervise) -> None:
    supervisor = supervise(1, a="json", b="loud")
    supervisor.ready(2)

    recovered = supervisor.heard("recovered", route="a")
    loud = next(line for line in supervisor.lines if line["event"].startswith("xxx"))

    assert (recovered["level"], recovered["partitions"], recovered["worker"]) == ("warning", 4, 0)
    assert len(loud["event"]) <= 2000
    supervisor.process.terminate()
    assert supervisor.code() == 0


def test_an_application_s_own_fields_may_have_any_name(supervise: Supervise) -> None:
    supervisor = supervise(1, a="applications-json")
    supervisor.ready(1)

    seen = next(line for line in supervisor.lines if line["event"] == "seen")
    assert (seen["route"], seen["worker"], seen["fields"]) == ("a", 0, 3)
    supervisor.process.terminate()
    assert supervisor.code() == 0


def test_the_command_of_a_worker() -> None:
    command = worker_command(Path("relay.toml"), 2.5, "blue")("to-ledger", 1)

    words = "-m relay.run.process relay.toml --route to-ledger --worker 1 --until-idle 2.5 --instance blue"
    assert command == [sys.executable, *words.split()]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--route", "no"], "--route no: there is no such route; there are: a, b"),
        (["--instance", "two words"], "--instance 'two words': not an instance's name"),
        (["--workers", "0"], "--workers"),
        (["--until-idle", "0"], "--until-idle"),
    ],
)
def test_wrong_words_start_nothing(tmp_path: Path, words: list[str], sentence: str) -> None:
    route = 'from = ["orders"]\nto = { topic = "ledger-%s" }\n'
    (tmp_path / "relay.toml").write_text(
        '[relay]\nname = "shop"\ninstance = "a"\n[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n'
        + "".join(f"[routes.{name}]\n{route % name}" for name in "ab")
    )

    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["run", str(tmp_path / "relay.toml"), *words])

    assert result.exit_code == 2
    assert sentence in result.stderr
