"""A route into a queue goes on after its database's connection was lost, with the batch that was formed before."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from relay.delivery.queue.effects import HeldPublishers
from relay.message.record import LogPartition
from relay.transfer.cursor import DELIVERED
from tests.contracts.table_databases import message, outcomes
from tests.integration.test_queue_route import MakeRoute, make, messages
from tests.recorded_queue import cursor_into_queue
from tests.routes import publish, wait_for

PLACE = LogPartition("orders", 0)
ENDED = """select count(*) filter (where pg_terminate_backend(pid)) from pg_stat_activity
where application_name = 'relay:main' and datname = current_database()"""
__all__ = ["make"]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_batch_that_was_formed_before_the_connection_was_lost_is_put_on_the_next_one(
    kind: str, tmp_path: Path, postgres: str
) -> None:
    """It was put on the connection that had been lost, again and again, until somebody started the worker anew."""
    url = postgres if kind == "postgresql" else f"sqlite:///{tmp_path}/shop.db"
    with cursor_into_queue(tmp_path, url, HeldPublishers()) as (cursor, store):
        cursor.claim({PLACE: bytes(16)})
        batches = [cursor.prepare([message(offset)]) for offset in range(2)]
        cursor.close()

        for offset, prepared in enumerate(batches):
            assert outcomes(cursor.deliver({PLACE: offset + 1}, prepared)) == [DELIVERED]
        assert len(store.views([1, 2])) == 2


@pytest.mark.slow
def test_a_route_whose_sessions_the_server_ends_again_and_again_puts_every_message_once(
    make: MakeRoute, postgres: str
) -> None:
    route = make("postgresql")
    route.start()
    wait_for(lambda: "running" in route.said(), what="the worker")
    with psycopg.connect(postgres, autocommit=True) as server:
        for count in range(100, 700, 100):
            publish(route.kafka, route.log, messages(100, count - 100))
            wait_for(lambda: server.execute(ENDED).fetchone() != (0,), what="a session to end", told=route.said)
            # Ended at each try of one batch, the next one would come ever later.
            wait_for(lambda count=count: len(route.found()) >= count, what=f"{count} messages", told=route.said)

    assert sorted(int(view.id[2:]) for view in route.found()) == list(range(600))
