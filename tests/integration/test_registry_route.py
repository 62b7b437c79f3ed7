"""Framed values on real routes: columns and identity from the writer's schema, and a registry that is away loses nothing."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import psycopg
import pytest

pytest.importorskip("confluent_kafka.schema_registry", reason="the extra `registry` is not installed")

from capture_log import messages, shown, until
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from typer.testing import CliRunner

from relay import Capture
from relay.cli.main import app
from relay.config.model import RegistryConfig
from relay.kafka.settings import DefaultTiming
from relay.message.avro_values import frame
from relay.message.errors import CaptureError, Unreachable
from relay.resources import open_resource
from tests.registry_server import RegistryServer, registry_server
from tests.routes import Route, TopicRoute, publish, read_all, wait_for

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "int"}],
}
LATER = {**ORDER, "fields": [{"name": "note", "type": ["null", "string"], "default": None}, *ORDER["fields"]]}
CAUSE = "__relay.errors.code"


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as running:
        yield running


@pytest.fixture
def table_route(
    tmp_path: Path, kafka: str, postgres: str, make_topic: Callable[..., str], server: RegistryServer
) -> Iterator[Route]:
    with psycopg.connect(postgres) as connection:
        connection.execute("create table ledger (id text primary key, n int not null)")
    to = '{ table = "ledger", resource = "shop", columns = { id = "avro:id", n = "avro:n" } }'
    sections = f'[resources.shop]\nurl = "{postgres}"\n[registry]\nurl = "{server.url}"\ntimeout = "1s"\n'
    route = Route(tmp_path, kafka, make_topic(1), to, f'identity = ["avro:id"]\n{sections}')
    route.migrate()
    yield route
    route.stop()


def rows(postgres: str) -> list[tuple[str, int]]:
    with psycopg.connect(postgres) as connection:
        return connection.execute("select id, n from ledger order by n").fetchall()


def written(server: RegistryServer, schema: Any, count: int, first: int = 0) -> list[tuple[int, list[Any], bytes]]:
    """Values as Confluent's own serializer writes them."""
    serialize = AvroSerializer(SchemaRegistryClient({"url": server.url}), json.dumps(schema))
    found = []
    for n in range(first, first + count):
        value = serialize({"id": f"m-{n}", "n": n}, SerializationContext("orders", MessageField.VALUE))
        assert value is not None
        found.append((0, [], value))
    return found


def bare(record: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(ORDER), record)
    return buffer.getvalue()


def test_values_of_several_schemas_become_rows_and_only_an_unknown_one_a_dead_letter(
    table_route: Route, postgres: str, server: RegistryServer
) -> None:
    values = [*written(server, ORDER, 50), *written(server, LATER, 50, first=50)]
    unknown = (0, [], frame(999) + bare({"id": "x", "n": 1}))
    publish(table_route.kafka, table_route.log, [*values[:70], unknown, *values[70:], *values[:10]])

    assert table_route.finish() == 0, table_route.said()

    assert rows(postgres) == [(f"m-{n}", n) for n in range(100)]
    (dead,) = read_all(table_route.kafka, f"{table_route.name}.deadletter", 1)
    assert dict(dead.headers())[CAUSE] == b"unknown_schema"
    assert dead.value() == unknown[2]


def test_while_the_registry_is_away_messages_wait_and_none_becomes_a_dead_letter(
    table_route: Route, postgres: str, server: RegistryServer
) -> None:
    publish(table_route.kafka, table_route.log, written(server, ORDER, 50))
    server.answer_with = (503, b"")
    worker = table_route.start()

    wait_for(lambda: table_route.said().count("messages wait for it") >= 2, what="the worker asks again")
    assert rows(postgres) == []
    server.answer_with = None
    wait_for(lambda: len(rows(postgres)) == 50, what="all rows")
    worker.terminate()

    assert worker.wait(30) == 0, table_route.said()
    assert read_all(table_route.kafka, f"{table_route.name}.deadletter", 1) == []


def test_credentials_that_are_refused_stop_the_worker_with_the_remedy(
    table_route: Route, postgres: str, server: RegistryServer
) -> None:
    publish(table_route.kafka, table_route.log, written(server, ORDER, 1))
    server.user = ("relay", "secret")

    assert table_route.finish() == 10, table_route.said()

    assert "refuses these credentials" in table_route.said()
    assert rows(postgres) == []


def test_a_topic_route_knows_a_repeat_by_a_field_of_its_value(
    make_route: Callable[..., TopicRoute], server: RegistryServer
) -> None:
    route = make_route(f'identity = ["avro:id"]\n[registry]\nurl = "{server.url}"\n')
    values = written(server, ORDER, 30)
    publish(route.kafka, route.log, [*values, (0, [], frame(999) + b"x"), *values])

    assert route.finish() == 0, route.said()

    assert [message.value() for message in route.outputs()] == [value for _, _, value in values]
    (dead,) = read_all(route.kafka, f"{route.name}.deadletter", 1)
    assert dict(dead.headers())[CAUSE] == b"unknown_schema"


@pytest.fixture
def opened(kafka: str, tmp_path: Path, server: RegistryServer) -> Iterator[Capture]:
    resource = open_resource("shop", f"sqlite:///{tmp_path}/shop.db")
    resource.create_tables()
    with Capture(
        kafka={"bootstrap.servers": kafka},
        resource=resource,
        source="/checkout",
        registry=RegistryConfig(url=server.url, register=True, timeout=30),
    ) as capture:
        yield capture


def test_what_a_capture_publishes_confluents_deserializer_reads(
    opened: Capture, kafka: str, make_topic: Callable[..., str], server: RegistryServer
) -> None:
    topic = make_topic(1)
    orders = opened.avro(topic, ORDER)
    asked = list(server.requests)
    with opened.transaction() as tx:
        tx.publish(topic, {"id": "m-1", "n": 1}, schema=orders)
        with pytest.raises(CaptureError, match="does not fit"), tx.savepoint():
            tx.publish(topic, {"id": "m-2"}, schema=orders)
        tx.publish(topic, None, key="gone", schema=orders)
    until(lambda: len(shown(kafka, topic)) == 2, "the marker")

    first, second = messages(kafka, topic)
    read = AvroDeserializer(SchemaRegistryClient({"url": server.url}))
    assert read(first.value, SerializationContext(topic, MessageField.VALUE)) == {"id": "m-1", "n": 1}
    assert dict(first.headers)["content-type"] == b"application/avro"
    assert second.value is None
    assert asked == server.requests[: len(asked)] == [f"/subjects/{topic}-value/versions"], "no block asks the registry"


def test_without_a_registry_values_are_plain_avro(kafka: str, tmp_path: Path) -> None:
    resource = open_resource("shop", f"sqlite:///{tmp_path}/shop.db")
    resource.create_tables()
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(ORDER))
    with Capture(
        kafka={"bootstrap.servers": kafka}, resource=resource, source="/s", timing=DefaultTiming()
    ) as capture:
        assert capture.avro("orders", path).encode({"id": "a", "n": 1}) == bare({"id": "a", "n": 1})


def test_a_registry_that_is_away_is_said_before_any_block(opened: Capture, server: RegistryServer) -> None:
    server.answer_with = (500, b"{}")
    with pytest.raises(Unreachable, match="schema registry"):
        opened.avro("orders", ORDER)


def test_check_says_what_is_wrong_with_the_registry(table_route: Route, server: RegistryServer) -> None:
    def check() -> tuple[int, dict[str, Any]]:
        done = CliRunner().invoke(app, ["check", str(table_route.path), "--connect", "--json"])
        return done.exit_code, json.loads(done.stdout)

    _, well = check()
    assert "schema registry" in well["checked"]
    server.user = ("relay", "secret")
    code, refused = check()
    assert code == 1
    assert [fault["remedy"][:20] for fault in refused["faults"] if fault["key"] == "registry"] == ["give the user of [re"]
    server.answer_with = (502, b"<html>")
    code, away = check()
    assert code == 3
    assert any("schema registry" in sentence for sentence in away["unreachable"])
