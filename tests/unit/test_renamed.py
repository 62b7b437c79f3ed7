"""A route that never ran and would repeat what a former one has delivered is refused, and none that would not."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from relay.config.routes import QueueDestination, RouteConfig, TableDestination, TopicDestination
from relay.message.errors import Stopped
from relay.run.renamed import refuse_repeats

LOG = "orders/" + "31" * 16
OUT = TopicDestination(topic="ledger")


Records = list[tuple[bytes, bytes | None]]


def recorded(**starts: object) -> Records:
    return [(f"start/{name}".encode(), value if isinstance(value, bytes | None) else orjson.dumps(value)) for name, value in starts.items()]


def started(place: str = "topic ledger", log: str = LOG) -> dict[str, Any]:
    return {"policy": "earliest", "starts": {log: {"0": 0}}, "place": place}


def route(to: object = OUT, **more: str) -> RouteConfig:
    return RouteConfig.model_validate({"name": "new", "from": ["orders"], "to": to, **more})


def refused(records: Records, one: RouteConfig | None = None, *configured: str) -> str | None:
    try:
        refuse_repeats(lambda: records, one or route(), ["new", *configured], [LOG])
    except Stopped as stopped:
        return str(stopped)
    return None


def test_what_a_former_route_has_led_to_the_same_place_is_not_delivered_again_unasked() -> None:
    said = refused(recorded(old=started()))
    assert said is not None
    assert "'new' has not run before" in said
    assert "'old', which is not configured any more, has led orders to topic ledger" in said
    assert "give it the name 'old' back" in said
    assert 'start = "earliest"' in said


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_who_says_where_to_start_means_it(start: str) -> None:
    assert refused(recorded(old=started()), route(start=start)) is None


@pytest.mark.parametrize(
    "to",
    [
        TableDestination(table="ledger", resource="shop", columns={"id": "ce:id"}),
        TableDestination(resource="shop", mode="sql", sql="select post(%(id)s)", columns={"id": "ce:id"}),
        QueueDestination(queue="credit"),
    ],
    ids=lambda to: to.place,
)
def test_it_holds_for_every_kind_of_place(to: TableDestination | QueueDestination) -> None:
    assert refused(recorded(old=started(to.place)), route(to)) is not None
    assert refused(recorded(old=started()), route(to)) is None


@pytest.mark.parametrize(
    "records",
    [
        [],
        [(b"progress/old", orjson.dumps(started()))],
        recorded(old=started("topic archive")),
        recorded(old=started(log="returns/" + "31" * 16)),
        recorded(old=started(log="orders/" + "32" * 16)),  # deleted since, and created again
        recorded(old={"policy": "earliest", "starts": {LOG: {"0": 0}}}),  # of an earlier version
        recorded(old=b"broken", older=b"[]", oldest=None),
    ],
    ids=["nothing", "another kind of record", "another place", "another topic", "another of its name", "no place", "no record"],
)
def test_a_route_that_repeats_nothing_starts(records: Records) -> None:
    assert refused(records) is None


def test_a_route_beside_one_that_is_configured_may_lead_to_its_place() -> None:
    """That is two routes, of which `relay check` says what it means."""
    assert refused(recorded(old=started()), None, "old") is None
    assert refused(recorded(old=started(), gone=started()), None, "old") is not None
