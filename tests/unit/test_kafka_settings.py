"""Client settings: an allow-list, and nothing the guarantee depends on can be set by a user."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from relay.config.timing import Timing
from relay.kafka import settings

LOCAL = {"bootstrap.servers": "127.0.0.1:9"}
TIMING = Timing()


def refused(**kafka: str) -> dict[str, settings.Refusal]:
    given = {**LOCAL, **{key.replace("__", "."): value for key, value in kafka.items()}}
    return {refusal.key: refusal for refusal in settings.refusals(given)}


def test_the_smallest_settings_are_accepted() -> None:
    assert refused() == {}


@pytest.mark.parametrize("key", sorted({*settings.FORCED, *settings.DERIVED, *settings.REFUSED}))
def test_what_is_not_the_users_to_set_is_refused_with_reason_and_remedy(key: str) -> None:
    (refusal,) = settings.refusals({**LOCAL, key: "x"})

    assert refusal.key == key
    assert refusal.problem
    assert refusal.remedy


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("plugin.library.paths", "/x.so"),
        ("sasl.kerberos.kinit.cmd", "rm"),
        ("ssl.engine.location", "/x.so"),
        ("debug", "all"),
        ("enable.ssl.certificate.verification", "false"),
        ("ssl.endpoint.identification.algorithm", "none"),
        ("sasl.oauthbearer.token.endpoint.url", "http://x"),
        ("made.up", "1"),
        ("queued.max.messages.kbytes", "2000000"),
        ("queued.min.messages", "many"),
        ("compression.type", "lzma"),
        ("linger.ms", "-1"),
        ("linger.ms", "٣"),
    ],
)
def test_dangerous_unknown_and_unbounded_settings_are_refused(key: str, value: str) -> None:
    assert [refusal.key for refusal in settings.refusals({**LOCAL, key: value})] == [key]


@pytest.mark.parametrize(
    "server", ["127.0.0.1:9092", "localhost:9092", "[::1]:9092", "[::1]", "::1", "PLAINTEXT://127.1.2.3:1"]
)
def test_plaintext_on_this_machine_is_fine(server: str) -> None:
    assert list(settings.refusals({"bootstrap.servers": server})) == []


@pytest.mark.parametrize(
    "server",
    ["kafka:9092", "10.0.0.1:9092", "127.0.0.1:1,kafka:9092", "localhost.evil.org:1", "[2001:db8::1]:9092"],
)
def test_plaintext_to_another_machine_must_be_allowed(server: str) -> None:
    kafka = {"bootstrap.servers": server}

    assert [refusal.key for refusal in settings.refusals(kafka)] == ["bootstrap.servers"]
    assert list(settings.refusals(kafka, allow_plaintext=True)) == []
    assert list(settings.refusals({**kafka, "security.protocol": "SSL"})) == []


@pytest.mark.parametrize(("key", "meant"), [("lingr.ms", "linger.ms"), ("bootstrap.server", "bootstrap.servers")])
def test_a_slip_in_a_settings_name_is_answered_with_the_name_that_was_meant(key: str, meant: str) -> None:
    assert refused(**{key.replace(".", "__"): "5"})[key].remedy == f'did you mean "{meant}"?'


@pytest.mark.parametrize("server", ["127.0.0.1:99999", "localhost:0", "SSL://localhost:kafka", "[::1]:70000", "localhost:9092,localhost:"])
def test_a_port_that_no_broker_can_have_is_refused_before_the_client_takes_it_for_another(server: str) -> None:
    refusal = refused(bootstrap__servers=server)["bootstrap.servers"]

    assert refusal.problem == f"{server.rpartition(',')[2]} has a port that is none"
    assert refusal.remedy == "write host:port with a port from 1 to 65535"


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ("kafka://127.0.0.1:9092", "begins with another protocol than plaintext"),
        ("127.0.0.1:1,ssl://127.0.0.1:9092", "begins with another protocol than plaintext"),
        ("127.0.0.1:9092;127.0.0.1:9093", "has a host that is none"),
        ("127.0.0.1:9092 127.0.0.1:9093", "has a host that is none"),
        ("ann@127.0.0.1:9092", "has a host that is none"),
    ],
)
def test_an_address_that_the_client_would_leave_out_or_never_find_is_refused(server: str, problem: str) -> None:
    found = list(settings.refusals({"bootstrap.servers": server}, allow_plaintext=True))

    assert [(one.key, one.problem) for one in found] == [("bootstrap.servers", f"{server.rpartition(',')[2]} {problem}")]
    assert found[0].remedy.startswith("write host:port")


@pytest.mark.parametrize("server", ["SSL://kafka:9092", "ssl://[2001:db8::1]:9092", "fe80::1%eth0", "my_broker-1.shop:9092"])
def test_an_address_may_begin_with_the_protocol_that_is_set(server: str) -> None:
    assert list(settings.refusals({"bootstrap.servers": server, "security.protocol": "ssl"})) == []


@pytest.mark.parametrize("server", ["localhost", "127.0.0.1:1", "[::1]:65535", "::1", " localhost:9092 , localhost:9093 ,"])
def test_an_address_without_a_port_or_with_one_is_taken(server: str) -> None:
    assert "bootstrap.servers" not in refused(bootstrap__servers=server)


def test_a_password_needs_an_encrypted_way_that_uses_it() -> None:
    assert "sasl.username" in refused(sasl__password="x")
    assert "security.protocol" in refused(sasl__password="x", sasl__username="y")
    assert refused(sasl__password="x", sasl__username="y", security__protocol="sasl_ssl") == {}


def test_redaction_keeps_what_is_no_secret() -> None:
    shown = settings.redacted({**LOCAL, "sasl.password": "x", "ssl.key.pem": "y"})

    assert shown == {**LOCAL, "sasl.password": "(hidden)", "ssl.key.pem": "(hidden)"}


def test_a_refused_setting_never_reaches_a_client() -> None:
    hostile = {**LOCAL, **dict.fromkeys([*settings.FORCED, *settings.DERIVED, *settings.REFUSED], "evil")}

    for made in (
        settings.consumer(hostile, TIMING, "g"),
        settings.producer(hostile, TIMING, "t"),
        settings.admin(hostile, TIMING),
    ):
        assert "evil" not in made.values()


def test_what_the_guarantee_depends_on() -> None:
    consumer = settings.consumer(LOCAL, TIMING, "shop.r")
    producer = settings.producer(LOCAL, TIMING, "shop.r.a.0")

    assert consumer["group.id"] == "shop.r"
    assert consumer["enable.auto.commit"] is False
    assert consumer["enable.auto.offset.store"] is False
    assert consumer["auto.offset.reset"] == "error"
    assert consumer["isolation.level"] == "read_committed"
    assert consumer["allow.auto.create.topics"] is False
    assert consumer["check.crcs"] is True
    assert consumer["partition.assignment.strategy"] == "range"
    assert producer["transactional.id"] == "shop.r.a.0"
    assert producer["allow.auto.create.topics"] is False
    assert producer["enable.idempotence"] is True
    assert producer["acks"] == "all"


def test_a_member_of_a_classic_group_beats_at_least_three_times_in_its_session() -> None:
    shortest = settings.consumer(LOCAL, Timing(session_timeout=6.0), "g")

    assert settings.consumer(LOCAL, TIMING, "g")["heartbeat.interval.ms"] == 3000
    assert shortest["heartbeat.interval.ms"] == 2000
    assert shortest["group.protocol"] == "classic", "until the newer one is proved equal, whatever is the client's default"


def test_limits_keep_their_order_in_milliseconds() -> None:
    producer = settings.producer(LOCAL, TIMING, "t")

    assert producer["socket.timeout.ms"] <= producer["transaction.timeout.ms"] - 100
    assert producer["message.timeout.ms"] < producer["transaction.timeout.ms"]
    assert settings.producer(LOCAL, TIMING)["message.timeout.ms"] == 5000
    assert "transactional.id" not in settings.producer(LOCAL, TIMING)


def test_a_users_choice_counts_and_code_has_the_last_word() -> None:
    kafka = {**LOCAL, "linger.ms": "20", "fetch.wait.max.ms": "7", "compression.type": "zstd"}

    assert settings.producer(kafka, TIMING)["linger.ms"] == "20"
    assert settings.producer(kafka, TIMING, **{"linger.ms": 0})["linger.ms"] == 0
    assert settings.consumer(kafka, TIMING, "g")["fetch.wait.max.ms"] == "7"
    assert "linger.ms" not in settings.consumer(kafka, TIMING, "g")
    assert "fetch.wait.max.ms" not in settings.producer(kafka, TIMING)
    assert settings.consumer(kafka, TIMING, "g", **{"isolation.level": "x"})["isolation.level"] == "x"


def test_librdkafka_takes_every_setting(capfd: pytest.CaptureFixture[str]) -> None:
    """The real library refuses an unknown name or a wrong order of limits, and warns of one for the wrong client."""
    given = {
        key: {"ssl.cipher.suites": "DEFAULT"}.get(key)
        or (allowed.words[0] if allowed.words else str(allowed.least))
        for key, allowed in settings.ALLOWED.items()
        if allowed.words or allowed.least is not None
    }
    given.update(LOCAL)
    given["connections.max.idle.ms"] = "0"
    given["fetch.max.bytes"] = "10000000"
    given["receive.message.max.bytes"] = "20000000"
    given["security.protocol"] = "plaintext"
    del given["sasl.mechanism"], given["sasl.mechanisms"]
    given["batch.size"] = "10000"
    assert list(settings.refusals(given)) == []

    Consumer(settings.consumer(given, TIMING, "g")).close()
    Producer(settings.producer(given, TIMING, "t"))
    Producer(settings.producer(given, TIMING))
    AdminClient(settings.admin(given, TIMING))

    assert "CONFWARN" not in capfd.readouterr().err


def test_text_settings_are_names_that_librdkafka_knows() -> None:
    unknown = []
    for key, allowed in settings.ALLOWED.items():
        if not allowed.words and allowed.least is None and key != settings.BEARER_FILE:
            try:
                Producer({**LOCAL, key: "127.0.0.1:9"})
            except KafkaException as error:
                if "No such configuration property" in str(error):
                    unknown.append(key)
    assert unknown == []


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"sasl.mechanism": "OAUTHBEARER", "security.protocol": "sasl_ssl"}, "token_file"),
        ({"sasl.mechanisms": "oauthbearer", "security.protocol": "sasl_ssl"}, "token_file"),
        ({"token_file": "token", "security.protocol": "sasl_ssl"}, "token_file"),
        ({"token_file": "token", "sasl.mechanism": "SCRAM-SHA-512", "security.protocol": "sasl_ssl"}, "token_file"),
        ({"token_file": "token", "sasl.mechanism": "OAUTHBEARER", "security.protocol": "ssl"}, "security.protocol"),
        ({"token_file": "token", "sasl.mechanism": "OAUTHBEARER", "security.protocol": "sasl_ssl"}, None),
    ],
)
def test_a_token_and_its_mechanism_are_given_together(given: dict[str, str], key: str | None) -> None:
    assert [refusal.key for refusal in settings.refusals({**LOCAL, **given})] == ([key] if key else [])


def test_every_client_reads_the_token_by_itself(tmp_path: Path) -> None:
    tokens = tmp_path / "token"
    tokens.write_text("abc.def")
    given = {**LOCAL, "security.protocol": "sasl_plaintext", "sasl.mechanism": "OAUTHBEARER", "token_file": str(tokens)}

    for made in (settings.consumer(given, TIMING, "g"), settings.producer(given, TIMING), settings.admin(given, TIMING)):
        assert made["oauth_cb"]("")[0] == "abc.def"
        assert "token_file" not in made
    AdminClient(settings.admin(given, TIMING))


def test_the_settings_need_no_kafka_client() -> None:
    source = Path(settings.__file__).read_text()

    assert not re.search(r"^(from|import) confluent_kafka", source, re.MULTILINE)


@pytest.mark.parametrize(
    ("given", "limits", "key"),
    [
        ({}, {"session_timeout": 600}, "max.poll.interval.ms"),
        ({"max.poll.interval.ms": "60000"}, {"session_timeout": 90}, "max.poll.interval.ms"),
        ({"max.poll.interval.ms": "600000"}, {"session_timeout": 600}, None),
        ({"reconnect.backoff.ms": "20000"}, {}, "reconnect.backoff.ms"),
        ({"reconnect.backoff.max.ms": "50"}, {}, "reconnect.backoff.ms"),
        ({"fetch.max.bytes": "65536"}, {}, "fetch.max.bytes"),
        ({"fetch.max.bytes": "65536", "message.max.bytes": "65536"}, {}, None),
        ({"receive.message.max.bytes": "1000000"}, {}, "receive.message.max.bytes"),
        ({"receive.message.max.bytes": "52429311"}, {}, "receive.message.max.bytes"),
        ({"receive.message.max.bytes": "52429312"}, {}, None),
        ({"receive.message.max.bytes": "1049088", "queued.max.messages.kbytes": "1024"}, {}, None),
        ({"linger.ms": "1000"}, {"append_timeout": 1}, "linger.ms"),
        ({"linger.ms": "900"}, {"transaction_timeout": 1}, "linger.ms"),
        ({"linger.ms": "1000"}, {}, None),
    ],
)
def test_what_the_client_refuses_together_is_told_before_a_worker_dies_of_it(
    given: dict[str, str], limits: dict[str, float], key: str | None
) -> None:
    timing = Timing.model_validate(limits)
    kafka = {**LOCAL, **given}
    assert list(settings.refusals(kafka)) == []

    found = [refusal.key for refusal in settings.contradictions(kafka, timing)]

    assert found == ([] if key is None else [key])
    try:
        Consumer(settings.consumer(kafka, timing, "g"))
        for transactional_id in (None, "t"):
            Producer(settings.producer(kafka, timing, transactional_id))
    except KafkaException:
        assert found
    else:
        assert not found
