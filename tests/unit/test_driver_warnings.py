"""What psycopg warns of in a route's worker is no line of the log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.unit.configurations import BASE, ROUTES

WORKER = """
import logging
import sys
from relay.message.errors import Stopped
from relay.run import process

def assemble(*_):
    logging.getLogger("psycopg").warning("error ignored terminating %r: %s", "a pipeline", "a customer's name")
    raise Stopped("as it should")

process.assemble = assemble
sys.exit(process.main([sys.argv[1], "--route", "to-ledger", "--worker", "0"]))
"""


def test_an_error_behind_an_error_is_told_by_nobody(tmp_path: Path) -> None:
    """A row that is refused in a batch of statements left such a line for each try, outside the count of dead letters."""
    (tmp_path / "relay.toml").write_text(BASE + ROUTES)
    command = [sys.executable, "-c", WORKER, str(tmp_path / "relay.toml")]

    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)

    said = ended.stderr.splitlines()
    assert said[-1] == "as it should"
    assert [line for line in said if "error ignored" in line] == []
