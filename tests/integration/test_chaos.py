"""A short run of the real thing: accidents happen to real processes, and what is left behind is clean and explained."""

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

import pytest

from relay.chaos.history import FILE, read
from relay.chaos.nemesis import plan
from relay.local.kafka import tail
from tests.conftest import MakeRoute
from tests.integration.test_demo import processes_of
from tests.routes import ce, publish, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(480)]

COMMAND = [sys.executable, "-m", "relay.cli.main", "chaos"]
FAULTS_MIN = 6
MUST_BE_ZERO = ("lost", "duplicates", "reordered", "phantoms", "in_doubt", "dead_letters", "unseen", "altered")


@pytest.fixture
def place() -> Iterator[Path]:
    # Not pytest's own temporary directory: its mode 0700 would lock out PostgreSQL's account under root.
    directory = Path(tempfile.mkdtemp(prefix="relay-test-chaos-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def mounts_below(place: Path) -> list[str]:
    """The disks that a run has left mounted (proc_mounts(5); none where there is no such file)."""
    mounts = Path("/proc/mounts")
    return [line for line in mounts.read_text().splitlines() if f" {place}/" in line] if mounts.exists() else []


def test_a_minute_of_accidents_is_clean_and_every_one_of_them_is_on_the_page(place: Path) -> None:
    words = ["--demo", "--minutes", "1", "--seed", "5", "--dir", str(place), "--json"]
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout + tail(place / "postgres" / "server.log", 60)

    report = json.loads(done.stdout)
    assert report["verdict"] == "clean"
    assert FAULTS_MIN <= report["faults"] <= len(plan(5, 60))
    assert set(report["routes"]) == {"to-topic", "to-table"}
    for route in report["routes"].values():
        assert {name: route[name] for name in MUST_BE_ZERO} == dict.fromkeys(MUST_BE_ZERO, 0)
        assert route["captured"] == route["delivered"] > 500
        assert route["aborted"] > 20
        assert route["repeats"] > 0
    assert report["reader"]["shown"] == report["routes"]["to-topic"]["delivered"]
    assert report["reader"]["logged"] > report["reader"]["shown"]

    history = list(read(place / FILE))
    begun = [entry for entry in history if entry["word"] == "fault" and entry["phase"] == "begin"]
    assert len(begun) == report["faults"]
    killed = {entry["name"] for entry in history if entry.get("event") == "ended" and entry["how"].endswith("SIGKILL")}
    struck = {entry["target"] for entry in begun if entry["kind"] in ("kill a worker", "kill a publisher")}
    assert killed == struck
    page = (place / "timeline.html").read_text()
    for entry in begun:
        assert f'data-n="{entry["n"]}"' in page
    assert processes_of(place) == []
    assert mounts_below(place) == []


def test_interrupted_on_the_way_it_stops_what_it_started_and_leaves_a_page(place: Path) -> None:
    words = ["--demo", "--minutes", "5", "--brokers", "1", "--dir", str(place)]
    run = subprocess.Popen([*COMMAND, *words], stderr=subprocess.DEVNULL, start_new_session=True)
    written = place / FILE
    wait_for(lambda: written.exists() and any(e["word"] == "fault" for e in read(written)), 120, "a first fault")

    os.kill(run.pid, signal.SIGTERM)

    assert run.wait(150) == 128 + signal.SIGTERM
    assert "not finished" in (place / "timeline.html").read_text()
    wait_for(lambda: processes_of(place) == [], 20, "the end of every process")
    assert mounts_below(place) == []


def test_a_configuration_of_ones_own_is_relayed_with_only_its_workers_struck(make_route: MakeRoute, place: Path) -> None:
    route = make_route(partitions=2)
    publish(route.kafka, route.log, [(n % 2, ce(f"/s{n % 2}", f"m-{n}"), b"{}") for n in range(400)])

    words = [str(route.path), "--minutes", "0.2", "--seed", "2", "--dir", str(place), "--json"]
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout

    report = json.loads(done.stdout)
    assert report["faults"] >= 1
    assert set(report["faults_by_kind"]) <= {"kill a worker", "freeze a worker past its session"}
    assert report["routes"]["main"]["delivered"] == 400
    assert (report["reader"]["shown"], report["reader"]["duplicates"]) == (400, 0)
    assert sorted(entry["how"] for entry in read(place / FILE) if entry.get("ours")) == ["killed by SIGKILL"] * (
        report["faults_by_kind"].get("kill a worker", 0)
    )
