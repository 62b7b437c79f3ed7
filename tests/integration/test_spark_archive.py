"""The archive job: each destination has progress of its own, and what has left the log unread is said with its remedy."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyarrow import parquet

from relay.local import spark
from tests.conftest import MakeTopic
from tests.integration.audit_site import Site
from tests.routes import delete_below

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]


def archive(site: Site, to: Path, *topics: str) -> tuple[int, str]:
    """Run the job on topics, else the log; return its exit code and what it said."""
    named = [part for topic in topics or (site.log,) for part in ("--topic", topic)]
    job = spark.submission("archive", [str(site.config.path), *named, "--to", str(to)])
    done = subprocess.run(job.command, env=dict(job.environment), capture_output=True, text=True, timeout=400)
    return done.returncode, done.stdout + done.stderr


def offsets(folder: Path) -> list[int]:
    """Return the offsets of what lies in an archive."""
    files = folder.glob("topic=*/*/*.parquet")
    return sorted(offset for file in files for offset in parquet.ParquetFile(file).read(["offset"])["offset"].to_pylist())


def test_a_second_destination_gets_what_the_first_has_and_what_is_gone_is_said_with_its_remedy(
    make_site: Callable[..., Site], kafka_admin: AdminClient, tmp_path: Path
) -> None:
    site = make_site()
    for number in range(3):
        site.write(site.log, number)

    for name in ("first", "second"):
        code, said = archive(site, tmp_path / name)
        assert code == 0, said
        assert offsets(tmp_path / name) == [0, 1, 2], name

    for number in range(2):
        site.write(site.log, number)
    delete_below(kafka_admin, site.log, 4)
    code, said = archive(site, tmp_path / "first")
    assert code == 2, said
    assert "begin anew at its beginning with another --to" in said
    assert "Traceback" not in said


def test_a_run_without_a_topic_of_before_is_refused_and_the_next_one_with_it_goes_on(
    make_site: Callable[..., Site], make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Spark takes the topic's partitions for lost, and has written down by then a batch that no later run may leave out."""
    site, other = make_site(), make_topic(1)
    site.write(site.log, 0)
    code, said = archive(site, tmp_path / "to")
    assert code == 0, said
    site.write(other, 1)

    refused, why = archive(site, tmp_path / "to", other)
    code, said = archive(site, tmp_path / "to", site.log, other)

    assert code == 0, said
    assert offsets(tmp_path / "to") == [0, 0]
    assert refused == 2, why
    assert f"{site.log} was archived there before" in why
