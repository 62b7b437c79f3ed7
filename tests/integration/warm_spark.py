"""Jobs in a process that keeps its Spark: only the first run of a module waits for a JVM."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import cache
from runpy import run_path
from typing import Any

from relay.local import spark
from tests.kept_process import KeptProcess, answer, outcome

OPTIONS = "--driver-java-options"
BRIEF = "-XX:TieredStopAtLevel=1"
"""A job of a few rows is over before a second compiler's work pays: with it each takes half as much processor time again."""
SETTINGS = ("--conf", "spark.sql.shuffle.partitions=2")
"""Where a job leaves their number to Spark: it makes 200, of a few rows."""


def brief(job: spark.Submission) -> spark.Submission:
    """Return the job as it is submitted, but with a JVM and settings for few rows beside its own."""
    *words, program = shlex.split(job.environment["PYSPARK_SUBMIT_ARGS"])
    at = words.index(OPTIONS) + 1
    words[at] += f" {BRIEF}"
    return replace(job, environment={**job.environment, "PYSPARK_SUBMIT_ARGS": shlex.join((*words, *SETTINGS, program))})


class WarmSpark:
    """A process with the JVM of one of the jobs, started by the first run."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._process: KeptProcess | None = None

    def run(self, *arguments: str, program: str | None = None) -> tuple[int, str, str]:
        """Run the ``main`` of the job, or of another program's file; return its exit code and both its outputs."""
        if self._process is None:
            self._process = KeptProcess("tests.integration.warm_spark", [], brief(spark.submission(self._job, [])).environment)
        code, out, err = self._process.ask((program or str(spark.jobs()[self._job]), arguments))
        return code, out, err

    def end(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.end()


@cache
def _main_of(program: str) -> Any:
    return run_path(program)["main"]


if __name__ == "__main__":
    answer(lambda asked: outcome(_main_of(asked[0]), asked[1]))
