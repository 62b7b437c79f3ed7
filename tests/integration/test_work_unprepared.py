"""PostgreSQL prepares no transactions unless it is told to: handlers that need it are refused when they start."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from relay.local.postgres import PostgresServer, StopMode
from relay.queue.states import SubscriberState
from relay.run.restarts import ExitCode
from tests.integration.test_work_also_dropped import BOTH
from tests.integration.work_site import lent_site
from tests.own_services import or_skipped


@pytest.fixture
def unprepared() -> Iterator[str]:
    """Return the address of a server as it is by default."""
    directory = Path(tempfile.mkdtemp(prefix="relay-unprepared-"))
    server = PostgresServer(directory, {"max_prepared_transactions": "0", "shared_buffers": "16MB", "fsync": "off"})
    try:
        with or_skipped():
            server.start()
        yield server.url
    finally:
        server.stop(StopMode.IMMEDIATE)
        shutil.rmtree(directory, ignore_errors=True)


def test_a_further_database_that_prepares_nothing_is_refused_before_a_message_is_taken(
    tmp_path: Path, postgres: str, unprepared: str, kafka: str, kafka_admin: AdminClient
) -> None:
    with psycopg.connect(unprepared, autocommit=True) as other:
        other.execute("create table entry (number integer)")
    extra = f'[resources.other]\nurl = "{unprepared}"'
    with lent_site(tmp_path, kafka, kafka_admin, postgres, extra=extra) as site:
        site.put([0])

        assert site.finish(site.app(BOTH)) == ExitCode.CONFIG

        said = site.said.read_text()
        assert "resources.other: max_prepared_transactions is 0; set it to the number of handlers at once and restart the server" in said
        assert site.states() == {SubscriberState.AVAILABLE: 1}
