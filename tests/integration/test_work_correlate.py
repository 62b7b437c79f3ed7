"""Several messages made one: whichever comes last, and whatever is killed meanwhile, the one is published once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from relay.queue.message import NewMessage
from relay.queue.port import Filter
from relay.queue.states import PublisherState
from tests.integration.work_site import Site, lent_site

JOINED = """
[queues.joined]
store = "shop"
subscribers = { reader = {} }
"""
APP = """
from relay.work.correlate import correlate

join = correlate(
    "orders", to="joined", resource="shop", parts=["order", "payment"],
    part_of=lambda one: one.subject, key_of=lambda one: one.key.decode(),
    join=lambda values: values["order"] + b"+" + values["payment"],
)
"""
KEYS = 20


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.slow), "postgresql"])
def site(
    request: pytest.FixtureRequest, tmp_path: Path, kafka: str, kafka_admin: AdminClient
) -> Iterator[Site]:
    url = (
        f"sqlite:///{tmp_path}/shop.db" if request.param == "sqlite" else request.getfixturevalue("postgres")
    )
    with lent_site(tmp_path, kafka, kafka_admin, url, extra=JOINED) as made:
        yield made


def test_two_messages_that_belong_together_become_one_whatever_dies(site: Site) -> None:
    store = site.store()
    for part in ("order", "payment"):
        store.put(
            [
                NewMessage("p", f"{part}{n}", f"{part}{n}".encode(), key=b"%d" % n, subject=part, lane=None)
                for n in range(KEYS)
            ],
            1,
        )
    store.close()
    app = site.app(APP)

    assert site.finish(app, "--concurrency", "4", env={"RELAY_CRASH_AT": f"work.deciding:{KEYS + 5}"}) == 137
    assert site.finish(app, "--concurrency", "4") == 0

    joined = site.store("joined")
    found = joined.find(Filter(state=PublisherState.REVEALED), limit=100)
    values = [view.value for view in map(joined.view, [one.handle for one in found]) if view is not None]
    joined.close()
    assert sorted(values) == sorted(b"order%d+payment%d" % (n, n) for n in range(KEYS))
    assert all(len(one.parents) == 2 for one in found)
    assert site.run_sql("select count(*) from relay_correlation") == [(0,)]
