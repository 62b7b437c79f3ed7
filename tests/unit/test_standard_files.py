"""What a command has to open: nothing takes the numbers of standard files that its caller has closed, and limits are said."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from relay.cli import main

OPENS = """
import os, sys
from relay.cli import main
from relay.run.handed import Handed
main._open_what_is_closed()
numbers = [*os.pipe(), Handed("text").fd]
print("x", file=sys.stdout, flush=True)
print("y", file=sys.stderr, flush=True)
open(sys.argv[1], "w").write(f"{min(numbers) > 2} {sys.stdin.read()!r}")
"""


@pytest.mark.parametrize("closed", [(2,), (0, 1), (1, 2), (0, 1, 2)])
def test_what_is_closed_is_given_to_nobody(closed: tuple[int, ...], tmp_path: Path) -> None:
    """The configuration that is handed to workers had the number of their own standard error."""

    def close() -> None:
        for number in closed:
            os.close(number)

    given = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    done = subprocess.run(
        [sys.executable, "-c", OPENS, str(tmp_path / "told")],
        preexec_fn=close,
        check=False,
        **given,
    )

    assert done.returncode == 0
    assert (tmp_path / "told").read_text() == "True ''"


def test_a_configuration_is_handed_over_where_nothing_can_be_written() -> None:
    made = "import tempfile; tempfile.tempdir = '/nowhere'; from relay.run.handed import Handed; print(Handed('text').fd > 2)"

    assert subprocess.run([sys.executable, "-c", made], capture_output=True, text=True, check=True).stdout == "True\n"


@pytest.mark.parametrize(("error", "code"), [(MemoryError(), 1), (OSError(errno.EMFILE, "x"), 3), (RuntimeError("can't start new thread"), 3)])
def test_a_command_that_meets_a_limit_says_so(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answered(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(main, "_answered", answered)

    assert main._run("status", []) == code
    assert "is at one of its limits (`ulimit -a`)" in capsys.readouterr().err
