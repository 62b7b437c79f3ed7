"""The brokers' settings follow from how many there are and what stands before them."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from relay.local import ports as local_ports
from relay.local.kafka import ClusterPlan, broker_properties
from relay.local.ports import free_ports
from relay.message.errors import CheckFailed, ConfigError


def test_three_brokers_replicate_three_times_with_two_in_sync(tmp_path: Path) -> None:
    plan = ClusterPlan.new(3, None, None)

    properties = broker_properties(plan, plan.brokers[0], tmp_path, {})

    for prefix in ("offsets.topic", "transaction.state.log", "default"):
        assert properties[f"{prefix}.replication.factor"] == "3"
    assert properties["transaction.state.log.min.isr"] == properties["min.insync.replicas"] == "2"
    assert properties["controller.quorum.voters"].count("@127.0.0.1:") == 3
    assert properties["auto.create.topics.enable"] == "false"
    ports = {port for b in plan.brokers for port in (b.port, b.internal_port, b.controller_port)}
    assert len(ports) == 9


def test_proxy_is_advertised_to_clients_only(tmp_path: Path) -> None:
    plan = ClusterPlan.new(2, 19092, "proxy.example:29092")

    properties = [broker_properties(plan, broker, tmp_path, {}) for broker in plan.brokers]

    assert [p["listeners"].split(",")[0] for p in properties] == [
        "PLAINTEXT://127.0.0.1:19092",
        "PLAINTEXT://127.0.0.1:19093",
    ]
    assert [p["advertised.listeners"].split(",")[0] for p in properties] == [
        "PLAINTEXT://proxy.example:29092",
        "PLAINTEXT://proxy.example:29093",
    ]
    assert all("INTERNAL://127.0.0.1:" in p["advertised.listeners"] for p in properties)
    assert {p["inter.broker.listener.name"] for p in properties} == {"INTERNAL"}


def test_overrides_win(tmp_path: Path) -> None:
    plan = ClusterPlan.new(1, None, None)

    properties = broker_properties(plan, plan.brokers[0], tmp_path, {"message.max.bytes": "2000"})

    assert properties["message.max.bytes"] == "2000"


def test_plan_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    plan = ClusterPlan.new(2, None, "h:1")
    plan.write(tmp_path / "cluster.json")

    assert ClusterPlan.read(tmp_path / "cluster.json") == plan
    assert ClusterPlan.read(tmp_path / "none.json") is None


@pytest.mark.parametrize("address", ["host", ":9092", "host:", "host:abc", "host:0", "host:65536"])
def test_malformed_advertised_address_is_a_usage_error(address: str) -> None:
    with pytest.raises(ConfigError, match="not HOST:PORT"):
        ClusterPlan.new(1, None, address)


def test_free_ports_differ() -> None:
    ports = free_ports(20)

    assert len(set(ports)) == 20


def test_no_server_is_given_a_port_that_an_outgoing_connection_may_have() -> None:
    with ExitStack() as stack, socket.create_server((local_ports.LOOPBACK, 0)) as server:
        address = (local_ports.LOOPBACK, server.getsockname()[1])
        own = {stack.enter_context(socket.create_connection(address)).getsockname()[1] for _ in range(50)}

    assert max(free_ports(50)) < min(own)


def test_too_few_free_ports_are_told_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        port = free_ports(1)[0]
        listener.bind((local_ports.LOOPBACK, port))
        monkeypatch.setattr(local_ports, "SERVERS", range(port, port + 1))

        with pytest.raises(CheckFailed, match="relay dev down"):
            free_ports(1)
