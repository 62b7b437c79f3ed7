"""A route that never ran and would repeat what a former one has delivered is refused, and none that would not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from relay.config.routes import QueueDestination, RouteConfig, TableDestination, TopicDestination
from relay.message.errors import Stopped
from relay.run.renamed import refuse_repeats

LOG = "orders/" + "31" * 16
OUT = TopicDestination(topic="ledger")


class Control:
    def __init__(self, **starts: object) -> None:
        self.records: list[tuple[bytes, bytes | None]] = [
            (f"start/{name}".encode(), value if isinstance(value, bytes | None) else orjson.dumps(value)) for name, value in starts.items()
        ]

    def under(self, prefixes: Sequence[bytes]) -> list[tuple[bytes, bytes | None]]:
        (prefix,) = prefixes
        assert all(key.startswith(prefix) for key, _ in self.records)
        return self.records


def started(place: str = "topic ledger", log: str = LOG) -> dict[str, Any]:
    return {"policy": "earliest", "starts": {log: {"0": 0}}, "place": place}


def route(to: object = OUT, **more: str) -> RouteConfig:
    return RouteConfig.model_validate({"name": "new", "from": ["orders"], "to": to, **more})


def refused(control: Control, one: RouteConfig | None = None, *configured: str) -> str | None:
    try:
        refuse_repeats(control, one or route(), ["new", *configured], [LOG])
    except Stopped as stopped:
        return str(stopped)
    return None


def test_what_a_former_route_has_led_to_the_same_place_is_not_delivered_again_unasked() -> None:
    said = refused(Control(old=started()))
    assert said is not None
    assert "'new' has not run before" in said
    assert "'old', which is not configured any more, has led orders to topic ledger" in said
    assert "give it the name 'old' back" in said
    assert 'start = "earliest"' in said


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_who_says_where_to_start_means_it(start: str) -> None:
    assert refused(Control(old=started()), route(start=start)) is None


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
    assert refused(Control(old=started(to.place)), route(to)) is not None
    assert refused(Control(old=started()), route(to)) is None


@pytest.mark.parametrize(
    "control",
    [
        Control(),
        Control(old=started("topic archive")),
        Control(old=started(log="returns/" + "31" * 16)),
        Control(old=started(log="orders/" + "32" * 16)),  # deleted since, and created again
        Control(old={"policy": "earliest", "starts": {LOG: {"0": 0}}}),  # of an earlier version
        Control(old=b"broken", older=b"[]", oldest=None),
    ],
    ids=["nothing", "another place", "another topic", "another of its name", "no place", "no record"],
)
def test_a_route_that_repeats_nothing_starts(control: Control) -> None:
    assert refused(control) is None


def test_a_route_beside_one_that_is_configured_may_lead_to_its_place() -> None:
    """That is two routes, of which `relay check` says what it means."""
    assert refused(Control(old=started()), None, "old") is None
    assert refused(Control(old=started(), gone=started()), None, "old") is not None
