"""A process is signalled only while it is the very one that was recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.local.process import RecordedProcess, children


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_recorded_process_is_alive_until_killed(child: subprocess.Popen[bytes]) -> None:
    recorded = RecordedProcess.of(child.pid)
    assert recorded.is_alive()

    recorded.kill()

    assert not recorded.is_alive()
    child.returncode = -signal.SIGKILL  # reaped by the record


def test_stranger_that_got_the_pid_is_left_alone(child: subprocess.Popen[bytes]) -> None:
    stale = RecordedProcess(child.pid, RecordedProcess.of(child.pid).started + "0")

    assert not stale.is_alive()
    assert not stale.send(signal.SIGKILL)
    stale.kill()

    assert child.poll() is None


def test_ended_child_that_nobody_waited_for_is_not_alive(child: subprocess.Popen[bytes]) -> None:
    recorded = RecordedProcess.of(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and left as a zombie

    assert not recorded.is_alive()
    child.returncode = -signal.SIGKILL  # reaped by the record


def test_no_such_process_cannot_be_recorded() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()

    with pytest.raises(ProcessLookupError):
        RecordedProcess.of(process.pid)


def test_children_are_found(child: subprocess.Popen[bytes]) -> None:
    assert child.pid in [process.pid for process in children(os.getpid())]


def test_a_name_that_the_system_has_cut_inside_a_character_is_read_past(tmp_path: Path) -> None:
    (tmp_path / ("x" * 14 + "é")).symlink_to("/bin/sleep")

    with subprocess.Popen([tmp_path / ("x" * 14 + "é"), "60"]) as child:
        try:
            assert RecordedProcess.of(child.pid) in children(os.getpid())
        finally:
            child.kill()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only /proc tells how many threads are left")
def test_a_process_whose_main_thread_has_ended_lives_as_long_as_another_holds_its_sockets() -> None:
    """So ends a killed broker: its main thread first, its port with the last of a hundred others."""
    ends_its_main_thread = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(30,)).start(); "
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    child = subprocess.Popen([sys.executable, "-c", ends_its_main_thread])
    try:
        recorded = RecordedProcess.of(child.pid)
        stat = Path(f"/proc/{child.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        assert recorded.is_alive()
        recorded.kill()
        assert not recorded.is_alive()
    finally:
        child.kill()
        child.wait(10)


def test_a_process_of_which_no_record_can_be_kept_is_ended(tmp_path: Path) -> None:
    before = children(os.getpid())
    (tmp_path / "process.new").mkdir()  # where the record is written first

    with pytest.raises(OSError, match="directory"):
        RecordedProcess.start(["sleep", "60"], tmp_path / "process.json", tmp_path / "log", tmp_path)

    assert children(os.getpid()) == before
