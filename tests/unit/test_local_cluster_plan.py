"""The brokers' settings follow from how many there are and what stands before them."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from relay.local import kafka as local_kafka
from relay.local import ports as local_ports
from relay.local.kafka import ClusterPlan, KafkaCluster, broker_properties
from relay.local.ports import free_ports
from relay.local.postgres import check_answers
from relay.local.services import LocalServices
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


def test_no_other_listener_is_given_a_port_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_kafka, "free_ports", lambda count: list(range(20_000, 20_000 + count)))

    plan = ClusterPlan.new(2, 20_001, None)

    assert [broker.port for broker in plan.brokers] == [20_001, 20_002]
    assert len({port for b in plan.brokers for port in (b.port, b.internal_port, b.controller_port)}) == 6


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


@pytest.mark.parametrize("host", ["a,b", "a b", "a\nlog.dirs=/", "a\udcff", "[::g]"])
def test_an_advertised_host_is_one_host(host: str) -> None:
    with pytest.raises(ConfigError, match="not HOST:PORT"):
        ClusterPlan.new(1, None, f"{host}:9092")


def test_ports_beyond_the_last_one_are_a_usage_error() -> None:
    assert ClusterPlan.new(3, 65533, None).brokers[2].port == 65535
    with pytest.raises(ConfigError, match="give 65533 or less"):
        ClusterPlan.new(3, 65534, None)


@pytest.mark.parametrize("name", ["a,b", "not-utf8-\udcff"])
def test_a_directory_that_brokers_cannot_name_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(KafkaCluster, "launch", lambda *_: pytest.fail("it was started"))

    with pytest.raises(ConfigError, match="Kafka cannot use a path"):
        LocalServices.up(tmp_path / name, postgres=False)
    assert not (tmp_path / name).exists()


def test_settings_are_written_as_java_reads_them(tmp_path: Path) -> None:
    directory = tmp_path / "zürich\\x"
    plan = ClusterPlan.new(1, None, None)
    (directory / "1" / "data").mkdir(parents=True)
    (directory / "1" / "data" / "meta.properties").touch()

    KafkaCluster(directory, plan)._format(plan.brokers[0], "no-java", [])

    written = (directory / "1" / "server.properties").read_text("ascii")
    assert f"log.dirs={tmp_path}/z\\u00fcrich\\\\x/1/data\n" in written
    assert f"listeners=PLAINTEXT://127.0.0.1:{plan.brokers[0].port}," in written


def test_a_url_that_is_not_utf8_is_a_usage_error() -> None:
    with pytest.raises(ConfigError, match="malformed"):
        check_answers("postgresql://clerk:secret\udcff@127.0.0.1:1/shop")


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
