"""The audit job in a process that keeps its Spark: only the first run of a module waits for a JVM."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from functools import cache
from runpy import run_path

from relay.local import spark
from tests.kept_process import KeptProcess, answer

Main = Callable[[list[str]], object]


@cache
def _process() -> KeptProcess:
    job = spark.submission("audit", [])
    return KeptProcess("tests.integration.warm_spark", [job.command[1]], job.environment)


def audit(*arguments: str) -> tuple[int, str, str]:
    """Run the job's own ``main``; return its exit code and both its outputs."""
    code, out, err = _process().ask(arguments)
    return code, out, err


def end() -> None:
    """End the process, if there is one."""
    if _process.cache_info().currsize:
        _process().end()
        _process.cache_clear()


def _run(main: Main, arguments: list[str]) -> tuple[object, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as wrong:
            code = wrong.code
    return code, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    audit_job: Main = run_path(sys.argv[1])["main"]
    answer(lambda arguments: _run(audit_job, arguments))
