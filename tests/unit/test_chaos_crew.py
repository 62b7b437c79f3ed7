"""A crew starts again what ends, counts what it did not bring about, and leaves nobody behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relay.chaos.crew import Command, Crew
from relay.chaos.history import FILE, History, read
from relay.local.process import RecordedProcess
from relay.run.lifeline import parent_end

DEADLINE_S = 20.0
FREEZING = """
import sys, time
from pathlib import Path
from relay.chaos.crew import Crew
from relay.chaos.history import History
from relay.run.lifeline import parent_end
place = Path(sys.argv[1])
crew = Crew("worker", lambda name: place / name, History(place / "history"), parent_end())
worker = "import os, time; from relay.run import lifeline; lifeline.watch(lambda: os._exit(1)); print('watches', flush=True); time.sleep(60)"
crew.add("r.0", lambda _: [sys.executable, "-c", worker])
while b"watches" not in (place / "r.0").read_bytes():
    time.sleep(0.02)
print(crew.freeze("r.0"), flush=True)
time.sleep(60)
"""


def wait_for(crew: Crew, done: Callable[[], bool]) -> None:
    limit = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < limit
        crew.tend()
        time.sleep(0.02)


def saying(words: str) -> Command:
    return lambda runs: [sys.executable, "-c", f"import sys, time; run = {runs}\n{words}"]


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    history, lifeline = History(tmp_path / FILE), parent_end()
    made = Crew("worker", lambda name: tmp_path / f"{name}.log", history, lifeline)
    yield made
    made.end(0)
    lifeline.close()
    history.close()


def started(tmp_path: Path) -> list[int]:
    return [entry["pid"] for entry in read(tmp_path / FILE) if entry.get("event") == "started"]


def test_one_that_was_killed_is_started_again_and_not_counted(crew: Crew, tmp_path: Path) -> None:
    crew.add("r.0", saying("time.sleep(60)"))
    crew.kill("r.0")

    wait_for(crew, lambda: len(started(tmp_path)) == 2)

    assert crew.running() == ["r.0"]
    assert not crew.ends


def test_one_that_fails_is_counted_and_one_that_ends_well_is_done(crew: Crew) -> None:
    crew.add("r.0", saying("sys.exit(3 if run == 0 else 0)"))

    wait_for(crew, lambda: crew.is_empty)

    assert dict(crew.ends) == {"r: exit code 3": 1}
    assert crew.complaints == []


def test_one_that_stops_for_a_person_is_complained_of_and_not_started_again(crew: Crew, tmp_path: Path) -> None:
    crew.add("r.0", saying("print('positions are lost'); sys.exit(10)"))

    wait_for(crew, lambda: crew.is_empty)

    assert "r.0 stopped for a person" in crew.complaints[0]
    assert "positions are lost" in crew.complaints[0]
    assert len(started(tmp_path)) == 1


def test_a_frozen_one_does_not_count_as_running_and_ends_when_told(crew: Crew, tmp_path: Path) -> None:
    crew.add("r.0", saying("time.sleep(60)"))
    crew.freeze("r.0")
    assert crew.running() == []

    crew.end(DEADLINE_S)

    assert crew.is_empty
    with pytest.raises(ProcessLookupError):
        os.kill(started(tmp_path)[0], signal.SIG_DFL)


def test_a_frozen_one_does_not_outlive_a_run_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FREEZING, str(tmp_path)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], start_new_session=True)
    assert run.stdout is not None
    frozen = RecordedProcess.of(int(run.stdout.readline()))
    try:
        run.kill()
        run.wait()

        assert frozen.wait_for_end(DEADLINE_S)
    finally:
        frozen.kill()
        run.stdout.close()


def test_one_is_refused_every_write_until_it_is_allowed_again(crew: Crew, tmp_path: Path) -> None:
    crew.add(
        "r.0",
        saying(
            f"""
import errno, pathlib
said = pathlib.Path({str(tmp_path)!r})
refused = False
while True:
    try:
        (said / "file").write_bytes(b"x")
    except OSError as error:
        refused = refused or error.errno == errno.EFBIG
        (said / "refused").mkdir(exist_ok=True)
    else:
        if refused:
            print("refused for a while", flush=True)
            sys.exit(0)
        (said / "written").touch()
    time.sleep(0.01)
"""
        ),
    )
    wait_for(crew, (tmp_path / "written").exists)

    assert crew.let_write("r.0", may=False) is not None
    wait_for(crew, (tmp_path / "refused").exists)
    assert crew.heard(b"refused for a while") == 0
    crew.let_write("r.0", may=True)

    log = tmp_path / "r.0.log"
    wait_for(crew, lambda: crew.is_empty)
    assert b"refused for a while" in log.read_bytes()
    assert crew.let_write("r.0", may=True) is None
