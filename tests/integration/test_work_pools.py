"""Handlers that use their database and a further one in either order, more of them than either has connections by default."""

from __future__ import annotations

from pathlib import Path

import psycopg
from confluent_kafka.admin import AdminClient

from relay.work.assembly import CONNECTIONS_MAX
from tests.integration.work_site import lent_site

APP = """
import threading
from relay import subscriber

ALL = threading.Barrier({count})

@subscriber("orders", resource="shop", also=["other"])
def book(message, db, other):
    number = int(message.value)
    if number % 2:
        db.execute("insert into effect (lane, number, attempt) values (%s, %s, %s)",
                   (message.lane.decode(), number, message.taken.ticket.attempt))
    else:
        other.execute("insert into entry values (%s)", (number,))
    ALL.wait(20)
    if number % 2:
        other.execute("insert into entry values (%s)", (number,))
"""
COUNT = 2 * CONNECTIONS_MAX


def test_who_has_one_database_and_wants_the_other_waits_for_nobody_who_wants_the_first(
    tmp_path: Path, postgres: str, kafka: str, kafka_admin: AdminClient
) -> None:
    extra = f'[resources.other]\nurl = "{postgres}"'
    with (
        lent_site(tmp_path, kafka, kafka_admin, postgres, extra=extra) as site,
        psycopg.connect(postgres, autocommit=True) as direct,
    ):
        direct.execute("create table entry (number integer)")
        site.put(range(COUNT), lanes=COUNT)

        assert site.finish(site.app(APP.format(count=COUNT)), "--concurrency", str(COUNT), "--deadline", "20") == 0

        assert [number for (number,) in direct.execute("select number from entry order by number")] == list(range(COUNT))
        assert sorted(number for _, number in site.effects()) == list(range(1, COUNT, 2))
