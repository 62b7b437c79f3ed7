"""A relay that is new to the cluster is told where another one's route has led the same log to the same place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from relay.config.model import RelayConfig
from relay.config.reading import read
from relay.kafka.topics import TopicFacts
from relay.setup.new_name import judge_new_name

FACTS = {"orders": TopicFacts("orders", b"1" * 16, 1, 1)}
LOG = "orders/" + "31" * 16


def config(**of_route: Any) -> RelayConfig:
    route = {"from": ["orders"], "to": {"topic": "ledger"}, **of_route}
    found, faults = read(
        {"relay": {"name": "shop2", "instance": "a"}, "kafka": {"bootstrap.servers": "127.0.0.1:9092"}, "routes": {"r": route}},
        Path("relay.toml"),
        {},
    )
    assert found is not None, faults
    return found


def start(place: str = "topic ledger", log: str = LOG, route: str = "r") -> tuple[bytes, bytes]:
    return f"start/{route}".encode(), orjson.dumps({"policy": "earliest", "starts": {log: {"0": 0}}, "place": place})


@pytest.mark.parametrize("route", ["r", "another"])
def test_it_is_told_which_relay_it_may_have_been(route: str) -> None:
    fault = judge_new_name(config(), FACTS, {"bank": [], "shop": [start(route=route)]})
    assert fault is not None
    assert str(fault).startswith(f"relay.name = shop2: route '{route}' of relay 'shop' has led orders to topic ledger")
    assert "give it the name 'shop' back" in fault.remedy
    assert 'set routes.r.start = "earliest"' in fault.remedy


@pytest.mark.parametrize(
    "others",
    [{}, {"shop": []}, {"shop": [start("topic archive")]}, {"shop": [start(log="orders/" + "32" * 16)]}, {"shop": [(b"start/r", None)]}],
    ids=["none", "one that never ran", "another place", "another log of the name", "a start that was taken back"],
)
def test_a_relay_that_repeats_nothing_may_be_new(others: dict[str, list[tuple[bytes, bytes]]]) -> None:
    assert judge_new_name(config(), FACTS, others) is None


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_who_says_where_the_route_starts_means_it(policy: str) -> None:
    assert judge_new_name(config(start=policy), FACTS, {"shop": [start()]}) is None
