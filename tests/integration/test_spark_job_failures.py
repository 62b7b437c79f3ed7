"""What somebody reads who runs a job that fails: the job's own sentence, and no stack of Spark's before it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from relay.local import spark

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = """
import sys
from relay.jobs import session
from relay.jobs.following import Following
from relay.message.errors import Unreachable

def follow():
    found = session.start("capture", "local[1]")
    rows = found.readStream.schema("value string").json(sys.argv[1])
    def batch(frame, number):
        raise Unreachable("no broker answers; start it")
    Following("drops", checkpoint=sys.argv[2], trigger_s=None).capture(rows, batch)
    return 0

sys.exit(session.run("capture", follow))
"""


def test_a_batch_that_fails_leaves_its_sentence_and_no_stack(tmp_path: Path) -> None:
    """A broker that went away in the midst of a capture left a hundred lines of both languages' stacks above what to do."""
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "1.json").write_text('{"value": "x"}\n', "utf-8")
    job = spark.submission("capture", [])

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "rows"), str(tmp_path / "progress")],
        env=dict(job.environment), capture_output=True, text=True, timeout=500,
    )  # fmt: skip

    assert done.returncode == 3, done.stderr
    *before, last = done.stderr.splitlines()
    assert last == "capture: no broker answers; start it"
    assert not [line for line in before if "Traceback" in line or line.lstrip().startswith(("at ", "File "))]
