"""The registry: framed values are read with their writer's schema, and only the registry's own word makes one unknown."""

from __future__ import annotations

import io
import json
import ssl
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pytest
from pydantic import SecretStr

pytest.importorskip("confluent_kafka.schema_registry", reason="the extra `registry` is not installed")

from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from relay.config.registry import RegistryConfig
from relay.kafka.registry import Registry
from relay.message.avro_values import AvroDecoder, AvroEncoder, frame, parsed_schema, read_record
from relay.message.errors import CaptureError, ConfigError, MessageRejected, Stopped, Unreachable
from relay.message.identity import digest, rules
from relay.world import clock
from tests.registry_server import RegistryServer, registry_server

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "total", "type": "long"}],
}
LATER = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": "-"}]}
RECORD = {"id": "a", "total": 12}


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as running:
        yield running


@pytest.fixture
def registry(server: RegistryServer) -> Iterator[Registry]:
    made = Registry(RegistryConfig(url=server.url, timeout=2))
    yield made
    made.close()


def body(schema: Any, record: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), record)
    return buffer.getvalue()


def file_of(tmp_path: Path, schema: Any) -> Path:
    path = tmp_path / "wanted.avsc"
    path.write_text(json.dumps(schema))
    return path


def self_signed(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """Return a server's side of TLS for 127.0.0.1, and the certificate that a client must trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "registry")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate = folder / "registry.pem"
    certificate.write_bytes(made.public_bytes(Encoding.PEM))
    private = folder / "registry.key"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, private)
    return context, certificate


class TestReading:
    def test_a_framed_value_is_read_with_its_writers_schema(self, server: RegistryServer, registry: Registry) -> None:
        values = [frame(server.add("orders-value", one)) + body(one, {**RECORD, "note": "x"}) for one in (ORDER, LATER)]
        decode = AvroDecoder(None, registry).decode
        assert [decode(value) for value in values * 2] == [RECORD, {**RECORD, "note": "x"}] * 2
        assert len(server.requests) == 2, "each schema is asked for once"

    def test_and_in_the_terms_of_the_schema_wanted(
        self, tmp_path: Path, server: RegistryServer, registry: Registry
    ) -> None:
        decode = AvroDecoder(file_of(tmp_path, LATER), registry).decode
        assert decode(frame(server.add("orders-value", ORDER)) + body(ORDER, RECORD)) == {**RECORD, "note": "-"}
        assert decode(body(LATER, {**RECORD, "note": "y"})) == {**RECORD, "note": "y"}, "a bare value is read as before"

    def test_a_bare_value_needs_a_schema(self, registry: Registry) -> None:
        with pytest.raises(MessageRejected) as caught:
            AvroDecoder(None, registry).decode(body(ORDER, RECORD))
        assert caught.value.code == "not_framed"

    @pytest.mark.parametrize("magic", ["id", "guid"])
    def test_the_schema_may_be_named_in_a_header(self, server: RegistryServer, registry: Registry, magic: str) -> None:
        number = server.add("orders-value", ORDER)
        raw = frame(number) if magic == "id" else b"\x01" + server.guid(number).bytes
        headers = [("__value_schema_id", b"overwritten"), ("__value_schema_id", raw)]
        assert AvroDecoder(None, registry).decode(body(ORDER, RECORD), headers) == RECORD

    @pytest.mark.parametrize("raw", [b"", b"\x00\x00", b"\x01" + bytes(15), b"\x07" + bytes(4)])
    def test_a_header_that_names_nothing_is_refused(self, registry: Registry, raw: bytes) -> None:
        with pytest.raises(MessageRejected) as caught:
            AvroDecoder(None, registry).decode(body(ORDER, RECORD), [("__value_schema_id", raw)])
        assert caught.value.code == "bad_frame"

    def test_schemas_that_refer_to_others(self, server: RegistryServer, registry: Registry) -> None:
        inner = {"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]}
        middle = {"type": "record", "name": "shop.Price", "fields": [{"name": "net", "type": "shop.Money"}]}
        outer = {"type": "record", "name": "shop.Sale", "fields": [{"name": "price", "type": "shop.Price"}]}
        server.add("money", inner)
        server.add("price", middle, [{"name": "shop.Money", "subject": "money", "version": 1}])
        number = server.add("sales-value", outer, [{"name": "shop.Price", "subject": "price", "version": 1}])
        record = {"price": {"net": {"cents": 7}}}
        assert AvroDecoder(None, registry).decode(frame(number) + body([inner, middle, outer], record)[1:]) == record

    @pytest.mark.parametrize(
        ("outer", "raw", "found"),
        [
            (["shop.Sale", "shop.Refund", "null"], b"\x02\x0e", {"of": {"cents": 7}}),
            (["shop.Sale", "shop.Refund", "null"], b"\x04", None),
            ({"type": "array", "items": "shop.Sale"}, b"\x04\x0e\x10\x00", [{"cents": 7}, {"cents": 8}]),
            ({"type": "map", "values": ["null", "shop.Refund"]}, b"\x02\x02a\x02\x0e\x00", {"a": {"of": {"cents": 7}}}),
            ("shop.Refund", b"\x0e", {"of": {"cents": 7}}),
            (["shop.Node", "null"], b"\x00\x02\x00", {"next": {"next": None}}),
        ],
    )
    def test_and_so_may_a_schema_that_is_no_record(
        self, server: RegistryServer, registry: Registry, outer: Any, raw: bytes, found: Any
    ) -> None:
        fields: dict[str, list[tuple[str, Any]]] = {"Sale": [("cents", "long")], "Refund": [("of", "Sale")], "Node": [("next", ["null", "Node"])]}
        references: list[dict[str, Any]] = []
        for name, own in fields.items():
            inner = {"type": "record", "name": name, "namespace": "shop", "fields": [{"name": one, "type": kind} for one, kind in own]}
            server.add(name, inner, references[:1] if name == "Refund" else None)
            references.append({"name": f"shop.{name}", "subject": name, "version": 1})
        value = frame(server.add("events-value", json.dumps(outer), references)) + raw
        assert [AvroDecoder(None, registry).decode(value) for _ in range(2)] == [found, found]

    @pytest.mark.parametrize(("schema", "kind"), [("{}", "JSON"), ('{"type": "record"}', "AVRO"), ("not JSON", "AVRO")])
    def test_what_is_no_avro_schema_is_the_values_fault(
        self, server: RegistryServer, registry: Registry, schema: str, kind: str
    ) -> None:
        with pytest.raises(MessageRejected) as caught:
            registry.schema(server.add("orders-value", schema, kind=kind))
        assert caught.value.code == "bad_schema"

    def test_a_body_of_another_schema_is_refused(self, server: RegistryServer, registry: Registry) -> None:
        value = frame(server.add("orders-value", ORDER)) + body(LATER, {**RECORD, "note": "canary"})
        with pytest.raises(MessageRejected) as caught:
            AvroDecoder(None, registry).decode(value)
        assert caught.value.code == "not_avro"
        assert "canary" not in str(caught.value)


class TestUnknownIsNotFailed:
    def test_what_the_registry_does_not_know_is_rejected_and_asked_for_again_later(
        self, server: RegistryServer, registry: Registry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(3):
            with pytest.raises(MessageRejected) as caught:
                registry.schema(1)
            assert caught.value.code == "unknown_schema"
        assert len(server.requests) == 1, "a flood of such values does not become a flood of requests"
        server.add("orders-value", ORDER)
        later = clock.monotonic() + 60
        monkeypatch.setattr(clock, "monotonic", lambda: later)
        assert registry.schema(1)["name"] == "Order"

    @pytest.mark.parametrize("raw", [b"\x00\x80\x00\x00\x00", b"\x00\xff\xfe\xfd\xfc rest"])
    def test_a_number_that_no_registry_has_is_the_values_fault(
        self, server: RegistryServer, registry: Registry, raw: bytes
    ) -> None:
        for _ in range(3):
            with pytest.raises(MessageRejected) as caught:
                AvroDecoder(None, registry).decode(raw)
            assert caught.value.code == "unknown_schema"
        assert len(server.requests) == 1
        server.answer_with = (404, b"<html>no such page")  # a proxy's word is nobody's, whatever the number
        with pytest.raises(Unreachable):
            registry.schema((1 << 31) + 5)

    @pytest.mark.parametrize(
        "answer",
        [(500, b"{}"), (503, b"<html>"), (200, b"<html>"), (404, b"<html>no such page"), (200, b"[]"),
         (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}'), (302, b""), (429, b"{}")],
    )  # fmt: skip
    def test_an_answer_of_no_use_says_nothing_of_the_value(
        self, server: RegistryServer, registry: Registry, answer: tuple[int, bytes]
    ) -> None:
        server.answer_with = answer
        with pytest.raises(Unreachable):
            registry.schema(server.add("orders-value", ORDER))
        server.answer_with = None
        assert registry.schema(1)["name"] == "Order", "it is asked again at once"

    @pytest.mark.parametrize("answer", [b"{}", b'{"status": "maintenance"}', b'{"schema": ""}', b'{"schema": 5}'])
    @pytest.mark.parametrize("is_referred_to", [False, True])
    def test_an_answer_without_a_schema_says_nothing_of_the_value(
        self, server: RegistryServer, registry: Registry, monkeypatch: pytest.MonkeyPatch, answer: bytes, *, is_referred_to: bool
    ) -> None:
        server.add("orders", ORDER)
        number = server.add("union", '["Order", "null"]', [{"name": "Order", "subject": "orders", "version": 1}])
        if is_referred_to:
            monkeypatch.setattr(server, "_version", lambda *_: (200, answer))
        else:
            server.answer_with = (200, answer)
        for _ in range(2):
            with pytest.raises(Unreachable, match="no schema"):
                registry.schema(number)
        server.answer_with = None
        monkeypatch.undo()
        assert registry.schema(number)[0]["name"] == "Order", "nothing of it is kept"

    def test_what_is_no_registry_is_found_beforehand(self, server: RegistryServer, registry: Registry) -> None:
        server.answer_with = (200, b'{"status": "ok"}')
        with pytest.raises(Unreachable, match="not as a schema registry"):
            registry.check()

    def test_nobody_listens(self, server: RegistryServer) -> None:
        server.stop()
        with pytest.raises(Unreachable, match=r"refused.*messages wait"):
            Registry(RegistryConfig(url=server.url)).schema(1)

    def test_a_registry_that_does_not_answer_holds_up_for_a_bounded_time(self, server: RegistryServer) -> None:
        server.hang = threading.Event()
        before = clock.monotonic()
        with pytest.raises(Unreachable):
            Registry(RegistryConfig(url=server.url, timeout=0.2)).schema(1)
        assert clock.monotonic() - before < 5

    def test_a_reference_that_is_away(self, server: RegistryServer, registry: Registry) -> None:
        number = server.add("sales-value", ORDER, [{"name": "x", "subject": "gone", "version": 1}])
        with pytest.raises(MessageRejected) as caught:
            registry.schema(number)
        assert caught.value.code == "unknown_schema"

    def test_credentials(self, server: RegistryServer) -> None:
        server.user = ("relay", "s:e:cret")
        server.add("orders-value", ORDER)
        with pytest.raises(Stopped) as caught:
            Registry(RegistryConfig(url=server.url, user="relay", password=SecretStr("wr0ng"))).schema(1)
        assert "wr0ng" not in str(caught.value)
        right = Registry(RegistryConfig(url=server.url, user="relay", password=SecretStr("s:e:cret")))
        assert right.schema(1)["name"] == "Order"

    def test_a_certificate_is_checked_against_the_file_given(self, tmp_path: Path) -> None:
        tls, certificate = self_signed(tmp_path)
        with registry_server(tls) as server:
            server.add("orders-value", ORDER)
            with pytest.raises(Unreachable, match="certificate"):
                Registry(RegistryConfig(url=server.url)).schema(1)
            assert Registry(RegistryConfig(url=server.url, ca=certificate)).schema(1)["name"] == "Order"

    def test_without_the_extra_the_remedy_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
        with pytest.raises(ConfigError, match=r"pip install '.\[registry\]' in the relay's sources"):
            Registry(RegistryConfig(url="http://127.0.0.1"))

    def test_the_caches_are_bounded(self, server: RegistryServer) -> None:
        registry = Registry(RegistryConfig(url=server.url, cache=2))
        for number in (1, 2, 3):
            server.add("orders-value", {**ORDER, "name": f"Order{number}"})
            registry.schema(number)
        registry.schema(3)
        assert server.requests == [f"/schemas/ids/{n}" for n in (1, 2, 3)]
        registry.schema(1)
        assert len(server.requests) == 4, "the one used longest ago has made room"


class TestIdentity:
    def test_by_a_field_of_a_framed_value(self, server: RegistryServer, registry: Registry) -> None:
        (identify,) = rules(["avro:id"], AvroDecoder(None, registry).decode)
        value = frame(server.add("orders-value", ORDER)) + body(ORDER, RECORD)
        assert identify({}, b"orders", value) == digest(b"a", b"id", b"orders", b"a")
        assert identify({}, b"orders", b"bare") is None, "the next rule decides"

    def test_no_other_rule_decides_while_the_schema_is_unknown_or_the_registry_away(
        self, server: RegistryServer, registry: Registry
    ) -> None:
        (identify,) = rules(["avro:id"], AvroDecoder(None, registry).decode)
        with pytest.raises(MessageRejected, match="knows no schema 9"):
            identify({}, b"orders", frame(9) + body(ORDER, RECORD))
        server.answer_with = (503, b"")
        with pytest.raises(Unreachable):
            identify({}, b"orders", frame(8) + body(ORDER, RECORD))


class TestWriting:
    def test_a_registered_schema_frames_with_its_number(self, server: RegistryServer, registry: Registry) -> None:
        parsed, text = parsed_schema(ORDER)
        server.add("other", LATER)
        number = server.add("orders-value", text)
        made = AvroEncoder(parsed, registry.number_of("orders-value", text))
        assert made.encode(RECORD) == frame(number) + body(ORDER, RECORD)
        assert AvroEncoder(parsed).encode(RECORD) == body(ORDER, RECORD), "plain without a registry"

    def test_what_is_not_registered_is_refused_or_registered_as_told(
        self, server: RegistryServer, registry: Registry
    ) -> None:
        text = json.dumps(ORDER)
        with pytest.raises(ConfigError, match="register = true"):
            registry.number_of("orders-value", text)
        assert Registry(RegistryConfig(url=server.url, register=True)).number_of("orders-value", text) == 1
        assert registry.number_of("orders-value", text) == 1

    def test_an_incompatible_schema_is_refused(self, server: RegistryServer) -> None:
        server.incompatible.add("orders-value")
        with pytest.raises(ConfigError, match="not compatible"):
            Registry(RegistryConfig(url=server.url, register=True)).number_of("orders-value", json.dumps(ORDER))

    @pytest.mark.parametrize("data", [{"id": "canary"}, {"id": 1, "total": 2}, {**RECORD, "more": 1}, "canary", 7])
    def test_data_that_does_not_fit_is_refused_without_showing_it(self, data: Any) -> None:
        with pytest.raises(CaptureError, match="schema") as caught:
            AvroEncoder(parsed_schema(ORDER)[0], 1).encode(data)
        assert "canary" not in str(caught.value)

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            ("long", 19.99), ("long", True), ("int", 2**31), ("double", "1.5"), ("boolean", "false"), ("boolean", None), ("null", 5),
            ({"type": "array", "items": "long"}, [1.5]), ({"type": "map", "values": "boolean"}, {"a": 0}),
            ("float", 1e39), ("double", 2**53 + 1), (["null", "double"], ("double", 2**53 + 1)), ({"type": "map", "values": "double"}, {"a": 2**53 + 1}),
            ({"type": "array", "items": ["null", "double"]}, [None, -(2**53) - 1]),
        ],
    )  # fmt: skip
    def test_data_of_another_type_is_refused_and_not_published_as_something_else(self, kind: Any, value: Any) -> None:
        schema = {"type": "record", "name": "Order", "fields": [{"name": "total", "type": kind}]}
        with pytest.raises(CaptureError, match="does not fit"):
            AvroEncoder(parsed_schema(schema)[0]).encode({"total": value})

    @pytest.mark.parametrize(
        ("kind", "value", "read"),
        [
            ("double", 7, 7.0), ("double", 2**53, 2.0**53), ("double", float("inf"), float("inf")), ("float", 0.5, 0.5),
            ({"type": "array", "items": "double"}, (1, 2.5), [1.0, 2.5]),
            (["null", {"type": "record", "name": "A", "fields": [{"name": "a", "type": "double"}]}], ("A", {"a": 3}), {"a": 3.0}),
            ({"type": "string", "logicalType": "uuid"}, UUID(int=7), UUID(int=7)),
            ({"type": "long", "logicalType": "timestamp-millis"}, datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)),
        ],
    )  # fmt: skip
    def test_data_that_its_type_has_a_form_for_is_written(self, kind: Any, value: Any, read: Any) -> None:
        schema = parsed_schema({"type": "record", "name": "Order", "fields": [{"name": "total", "type": kind}]})[0]
        assert read_record(AvroEncoder(schema).encode({"total": value}), 0, schema, None) == {"total": read}

    @pytest.mark.parametrize(("kind", "value"), [("float", 0.1), ({"type": "long", "logicalType": "timestamp-micros"}, 2**62)])
    def test_nor_is_refused_what_a_type_rounds_or_only_python_cannot_read(self, kind: Any, value: Any) -> None:
        AvroEncoder(parsed_schema({"type": "record", "name": "Order", "fields": [{"name": "total", "type": kind}]})[0]).encode({"total": value})


class TestWithConfluentsOwn:
    """Confluent's serializers, as their users run them, and ours read each other."""

    @pytest.mark.parametrize("place", ["value", "header"])
    def test_what_theirs_write_ours_read(self, server: RegistryServer, registry: Registry, place: str) -> None:
        given = {"schema.id.serializer": header_schema_id_serializer} if place == "header" else {}
        theirs = AvroSerializer(SchemaRegistryClient({"url": server.url}), json.dumps(ORDER), conf=given)
        headers: list[tuple[str, bytes]] = []
        value = theirs(RECORD, SerializationContext("orders", MessageField.VALUE, headers))
        assert value is not None
        assert AvroDecoder(None, registry).decode(value, headers) == RECORD
        assert bool(headers) == (place == "header")

    def test_what_ours_write_theirs_read(self, server: RegistryServer, registry: Registry) -> None:
        parsed, text = parsed_schema(ORDER)
        server.add("orders-value", text)
        value = AvroEncoder(parsed, registry.number_of("orders-value", text)).encode(RECORD)
        theirs = AvroDeserializer(SchemaRegistryClient({"url": server.url}))
        assert theirs(value, SerializationContext("orders", MessageField.VALUE)) == RECORD


@pytest.mark.parametrize("name", ["http_proxy", "ALL_PROXY"])
def test_a_registry_of_this_machine_is_not_asked_through_a_proxy(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its user and password went to that machine, without encryption; and what the proxy answers is no word of the registry's."""
    with registry_server() as local, registry_server() as proxy:
        monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with pytest.raises(ConfigError, match=r"\[registry\] url = .*proxy.*NO_PROXY"):
            Registry(RegistryConfig(url=local.url, user="ann", password=SecretStr("canary"))).check()
        assert not proxy.requests

        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        Registry(RegistryConfig(url=local.url)).check()
        assert local.requests


def test_a_proxy_that_the_client_cannot_use_is_not_called_a_fault_of_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import is missing for socks5."""
    monkeypatch.setenv("ALL_PROXY", "socks5://ann:canary@127.0.0.1:1")

    with pytest.raises(ConfigError, match="ALL_PROXY") as refused:
        Registry(RegistryConfig(url="https://127.0.0.1:1"))

    assert "canary" not in str(refused.value)
