"""The demonstration from the outside: it proves what it says, and leaves nothing behind however it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from relay.demo.part import Part
from tests.inherited_signals import inheriting
from tests.routes import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(720)]

ZERO = ("lost", "duplicates", "reordered", "phantoms", "in_doubt", "dead_letters", "unseen", "altered")
COMMAND = [sys.executable, "-m", "relay.cli.main", "demo"]


@pytest.fixture
def place() -> Iterator[Path]:
    # Not pytest's own temporary directory: its mode 0700 would lock out PostgreSQL's account under root.
    directory = Path(tempfile.mkdtemp(prefix="relay-test-demo-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def start(place: Path, *words: str, **streams: int | IO[Any]) -> subprocess.Popen[str]:
    """Run the demonstration of flights, of so many messages, or another one that is named."""
    env = {**os.environ, "TMPDIR": str(place)}
    with inheriting(signal.SIGINT, signal.default_int_handler):
        return subprocess.Popen([*COMMAND, *words], env=env, text=True, start_new_session=True, **streams)  # type: ignore[call-overload,no-any-return]


def processes_of(place: Path) -> list[str]:
    """Return the command lines that name the directory, of processes that live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(place) in command:
            found.append(command)
    return found


def test_a_small_run_with_kills_and_crashes_is_exactly_once_and_leaves_nothing(place: Path) -> None:
    demo = start(place, "--messages", "3000", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, said = demo.communicate(timeout=690)
    assert demo.returncode == 0, said

    report = json.loads(out)
    assert report["verdict"] == "exactly once"
    assert (report["kills"], report["publisher_crashes"], report["flights"]) == (2, 3, 3000)
    assert report["rolled_back"] > 0
    assert set(report["routes"]) == {"to-topic", "to-table"}
    for route in report["routes"].values():
        assert {name: route[name] for name in ZERO} == dict.fromkeys(ZERO, 0)
        assert route["captured"] == route["delivered"] == 3000 + report["bookings"]
        assert route["aborted"] > 0
    assert list(place.iterdir()) == []
    assert processes_of(place) == []


def test_credit_over_two_queues_is_exactly_once_and_ends_without_a_word_of_its_client(place: Path) -> None:
    demo = start(place, "credit", "--sales", "60", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, said = demo.communicate(timeout=690)
    assert demo.returncode == 0, said

    report = json.loads(out)
    assert [name for name in ZERO if report.get(name)] == []
    assert (report["captured"], report["delivered"], report["aborted"], report["kills"]) == (57, 57, 3, 2)
    assert "rdkafka" not in said, "a client of its own outlived its broker"
    assert list(place.iterdir()) == []
    assert processes_of(place) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_on_the_way_it_stops_everything_it_started(
    place: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    log = tmp_path / "demo.log"
    with log.open("w") as out:
        demo = start(place, "--messages", "3000", stdout=out, stderr=out)
    wait_for(lambda: any(path.stat().st_size for path in place.glob("relay-demo-*/relay.log")), what="a worker")
    wait_for(lambda: len(processes_of(place)) > 4, what="services, Spark, the booking service and workers")

    demo.send_signal(number)

    assert demo.wait(60) == code, log.read_text()
    assert list(place.iterdir()) == []
    wait_for(lambda: processes_of(place) == [], 20, "the end of every process")


def test_a_directory_with_something_in_it_is_refused_and_left_alone(place: Path) -> None:
    (place / "mine").write_text("mine")
    demo = start(place, "--messages", "3000", "--dir", str(place), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    _, said = demo.communicate(timeout=30)

    assert demo.returncode == 2
    assert "not an empty directory" in said
    assert (place / "mine").read_text() == "mine"


def test_a_part_that_fails_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "print('first'); print('the reason'); raise SystemExit(5)"]
    part = Part("the part", words, tmp_path / "part.log", {})
    code = wait_for(part.ended, what="its end")

    assert code == 5
    assert part.heard() == ["first", "the reason"]
    assert "The end of the log of the part:\nfirst\nthe reason" in str(part.complaint("It failed."))
