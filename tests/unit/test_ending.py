"""Commands that start services end in order when they are told to, and not by the end of a terminal that they were started to outlive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from relay.local.process import RecordedProcess
from relay.local.spark import Submission, run
from relay.run.ending import ending_properly


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_unwinds_what_runs(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit, match=str(128 + number)), ending_properly():
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_what_is_ignored_from_the_start_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_properly():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_first_signal_counts_and_a_second_does_not_end_the_cleaning_up() -> None:
    cleaned = []

    def ended_twice() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            cleaned.append(True)

    with pytest.raises(SystemExit), ending_properly():
        ended_twice()
    assert cleaned


@pytest.mark.parametrize(("end", "code"), [("exit 3", 3), ("kill -9 $$", 128 + signal.SIGKILL)])
def test_a_job_is_told_of_as_a_shell_would_whatever_bytes_it_says(end: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Submission(("sh", "-c", rf"printf 'Krak\303\263w, Z\374rich\n' >&2; {end}"), os.environ)) == code
    assert capsys.readouterr().err == "Kraków, Z\N{REPLACEMENT CHARACTER}rich\n"


def test_a_job_ends_with_the_command_that_runs_it() -> None:
    job = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    command = (
        "import os, sys; from relay.local.spark import Submission, run\n"
        f"sys.exit(run(Submission((sys.executable, '-c', {job!r}), os.environ)))"
    )
    with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        running = RecordedProcess.of(int(started.stdout.readline()))
        started.terminate()
        try:
            assert started.wait(60) == 128 + signal.SIGTERM
            assert not running.is_alive()
        finally:
            running.kill()
