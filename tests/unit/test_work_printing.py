"""What an application prints in a process of handlers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_it_is_passed_on_as_utf8_whatever_the_locale(encoding: str, tmp_path: Path) -> None:
    """The supervisor takes it for that; and a print that raises would use up its message's tries."""
    application = tmp_path / "app.py"
    application.write_text('print("caf\\u00e9 \\U0001f600 \\udc80")\nraise SystemExit("printed")\n', encoding="ascii")
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    process = [sys.executable, "-m", "relay.work.process", "relay.toml", str(application)]
    command = [*process, "--queue", "q", "--subscriber", "s"]

    ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60)

    assert ended.stdout.decode() == "café 😀 \\udc80\n"
    assert "SystemExit: printed" in ended.stderr.decode()
