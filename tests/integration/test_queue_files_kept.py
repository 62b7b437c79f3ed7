"""A queue in flat files is open in one process: its worker, which keeps its journal within the retention all the same."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import AdminClient

from relay.queue.states import SubscriberState
from tests.integration.work_site import lent_site


def test_a_worker_lets_the_journal_of_a_queue_in_files_go(
    tmp_path: Path, kafka: str, kafka_admin: AdminClient
) -> None:
    given = {"store": "files:///orders", "extra": "retain = { count = 5 }"}
    with lent_site(tmp_path, kafka, kafka_admin, f"sqlite:///{tmp_path}/shop.db", **given) as site:
        site.put(range(20), lanes=1)  # in order, whatever is tried again: the newest handle, which stays, is among the last five

        for _ in range(3):
            assert site.finish(site.app(), "--concurrency", "1", deadline_s=120.0) == 0
            if site.states() == {SubscriberState.JOURNALLED: 5}:
                break
        assert site.states() == {SubscriberState.JOURNALLED: 5}
        assert len(site.effects()) == 20
