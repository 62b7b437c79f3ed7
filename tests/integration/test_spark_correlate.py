"""The job that joins: its progress is of the topics with which its name began, in their order."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from relay.local import spark
from tests.conftest import MakeTopic
from tests.integration.audit_site import Site

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]


def test_other_topics_under_the_same_name_are_refused_and_the_next_run_with_those_of_before_goes_on(
    make_site: Callable[..., Site], make_topic: MakeTopic
) -> None:
    """Spark takes the sources of its checkpoint for lost, and has written down by then a batch that is run again for ever."""
    site, weather = make_site(), make_topic(1)

    def correlate(*topics: str, window: str = "3600") -> tuple[int, str]:
        named = [part for topic in topics for part in ("--topic", topic)]
        job = spark.submission("correlate", [str(site.config.path), *named, "--to", site.log, "--name", "joined", "--window", window, "--json"])
        done = subprocess.run(job.command, env=dict(job.environment), capture_output=True, text=True, timeout=400)
        return done.returncode, done.stdout + done.stderr

    def write(number: int) -> None:
        for topic in (site.output, weather):
            site.write(topic, number, ce_time=f"2026-01-01T00:00:0{number}Z")

    write(1)
    code, said = correlate(site.output, weather)
    assert code == 0, said
    assert '"joined":1' in said
    write(2)

    refused, why = correlate(weather, site.output)
    narrower, too = correlate(site.output, weather, window="1800")
    code, said = correlate(site.output, weather)

    assert code == 0, said
    assert '"joined":3' in said
    assert refused == 2, why
    assert f"joined has joined {site.output}, {weather} before" in why
    assert narrower == 2, too
    assert "--window 1800: joined has joined with 3600 before" in too
