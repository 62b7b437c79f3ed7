"""The audit job in a process that keeps its Spark: only the first run of a module waits for a JVM."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from runpy import run_path

from relay.local import spark


@cache
def _process() -> subprocess.Popen[str]:
    job = spark.submission("audit", [])
    return subprocess.Popen(
        [sys.executable, "-m", "tests.integration.warm_spark", job.command[1]],
        env={**job.environment, "PYTHONPATH": str(Path(__file__).parents[2])}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def audit(*arguments: str) -> tuple[int, str, str]:
    """Run the job's own ``main``; return its exit code and both its outputs."""
    process = _process()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(arguments) + "\n")
    process.stdin.flush()
    code, out, err = json.loads(process.stdout.readline())
    return code, out, err


def end() -> None:
    """End the process, if there is one."""
    if _process.cache_info().currsize:
        with _process():  # its input is closed, and it ends
            pass
        _process.cache_clear()


def _serve(script: str) -> None:
    main, answers = run_path(script)["main"], sys.stdout
    for line in sys.stdin:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(json.loads(line))
            except SystemExit as wrong:
                code = wrong.code
        answers.write(json.dumps([code, out.getvalue(), err.getvalue()]) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve(sys.argv[1])
