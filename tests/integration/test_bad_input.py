"""Bad input on a topic route: it becomes a message, a dead letter or an alarm, and the lane goes on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from random import randbytes
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from relay.capture.outcomes import encode_marker, marker_headers
from relay.config.loading import load
from relay.local.kafka import SMALL, KafkaCluster
from relay.local.services import LocalServices
from relay.message.envelope import LOG_ONLY_HEADERS, ResourceName
from relay.message.identity import capture_id
from relay.run.restarts import ExitCode
from tests.cluster_changes import make_topics
from tests.raw_headers import append_raw
from tests.routes import Route, TopicRoute, ce, ids, publish, read_all, wait_for

NONCE = b"n" * 16
CAPTURE = capture_id(NONCE)
NOWHERE = ResourceName("elsewhere", "u-1")
CAUSE = "__relay.errors."


def dead_letters(route: TopicRoute) -> list[dict[str, str]]:
    """Return the cause headers of each dead letter, without their prefix."""
    config = load(route.path)
    found = read_all(route.kafka, config.deadletter_topic, route.partitions)
    return [
        {name.removeprefix(CAUSE): (value or b"").decode("utf-8", "replace") for name, value in message.headers()}
        for message in found
    ]


def captured(identifier: str, capture: bytes = CAPTURE, source: str = "/s") -> list[tuple[str, bytes]]:
    own = ce(source, identifier)
    return [*own, ("ce_relaycapture", capture.hex().encode()), ("ce_relayresource", NOWHERE.encode())]


def append_marker(route: TopicRoute, nonce: bytes | None, value: bytes | None = None) -> None:
    producer = Producer({"bootstrap.servers": route.kafka})
    producer.produce(
        route.log,
        key=CAPTURE,
        value=encode_marker(CAPTURE, nonce, None, []) if value is None else value,
        partition=0,
        headers=marker_headers(CAPTURE, b"/s", NOWHERE),
    )
    assert producer.flush(30) == 0


def test_odd_records_pass_as_they_are(make_route: Callable[..., TopicRoute]) -> None:
    route = make_route()
    producer = Producer({"bootstrap.servers": route.kafka, "enable.idempotence": True})
    odd: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]] = [
        (None, None, None),
        (b"", b"", []),
        (b"\xff\xfe", b"\x00\x01\xff", [("ce_id", b"\xff\xfe"), ("ce_source", b"\xc3\x28")]),
        (b"k", b"{broken json", [("ce_id", b"json"), ("content-type", b"application/json")]),
        (b"k", b"null value", [("ce_id", None), ("other", None)]),
        (b"k", b"null source", [("ce_id", b"n"), ("ce_source", None)]),
        (b"k", b"twice", [("ce_id", b"a"), ("ce_id", b"b")]),
        (b"k", b"\xc3\xa9", [("naïve", "ü".encode()), ("ce_id", b"x" * 20_000)]),
        (b"k" * 50_000, b"long key", [("ce_id", b"long key")]),
    ]
    for key, value, headers in odd:
        producer.produce(route.log, key=key, value=value, partition=0, headers=headers)
    assert producer.flush(30) == 0

    assert route.finish() == 0, route.said()

    found = route.outputs()
    shown = [
        (m.key(), m.value(), [h for h in m.headers() if h[0] not in LOG_ONLY_HEADERS]) for m in found
    ]
    assert sorted(shown, key=repr) == sorted(((k, v, h or []) for k, v, h in odd), key=repr)
    assert dead_letters(route) == []


def test_without_an_id_each_record_is_a_message_of_its_own(make_route: Callable[..., TopicRoute]) -> None:
    route = make_route()
    publish(route.kafka, route.log, [(0, [], b"same")] * 5)
    assert route.finish() == 0, route.said()
    assert route.finish() == 0, route.said()

    assert len(route.outputs()) == 5


def test_more_headers_than_a_message_may_have_make_a_dead_letter(make_route: Callable[..., TopicRoute]) -> None:
    route = make_route()
    many = ce("/s", "many") + [(f"h{n}", b"v") for n in range(10_000)]
    publish(route.kafka, route.log, [(0, ce("/s", "a"), b"a"), (0, many, b"m"), (0, ce("/s", "b"), b"b")])

    assert route.finish() == 0, route.said()

    assert ids(route.outputs()) == ["a", "b"]
    (dead,) = dead_letters(route)
    assert (dead["stage"], dead["code"], dead["offset"], dead["message_id"]) == ("decode", "headers", "1", "many")


def test_header_names_that_are_no_text_make_a_dead_letter(make_route: Callable[..., TopicRoute]) -> None:
    """confluent-kafka cannot read them, and crashes when asked twice: red without the guard in the intake."""
    route = make_route()
    publish(route.kafka, route.log, [(0, ce("/s", "a"), b"a")])
    append_raw(route.kafka, route.log, 0, [(b"\xff\xfe", b"v"), (b"ce_id", b"raw")], b"raw")
    publish(route.kafka, route.log, [(0, ce("/s", "b"), b"b")])

    assert route.finish() == 0, route.said()

    assert ids(route.outputs()) == ["a", "b"]
    assert [(dead["code"], dead["offset"]) for dead in dead_letters(route)] == [("headers", "1")]


def test_a_header_name_that_is_not_utf8_behind_many_messages(make_route: Callable[..., TopicRoute]) -> None:
    route = make_route()
    publish(route.kafka, route.log, [(0, ce("/s", f"m{n}"), b"a") for n in range(400)])
    append_raw(route.kafka, route.log, 0, [(b"ce_id", b"raw"), (b"caf\xe9", b"v")], b"raw")
    publish(route.kafka, route.log, [(0, ce("/s", "last"), b"b")])

    assert route.finish() == 0, route.said()

    assert len(ids(route.outputs())) == 401
    assert [(dead["code"], dead["offset"]) for dead in dead_letters(route)] == [("headers", "400")]


@pytest.mark.parametrize("size", [600_000, 1_500_000], ids=["600 kB", "1.5 MB"])
def test_a_value_that_the_output_refuses_is_a_dead_letter_and_the_lane_goes_on(
    make_route: Callable[..., TopicRoute], size: int
) -> None:
    route = make_route(log={"max.message.bytes": "3000000"}, out={"max.message.bytes": "500000"})
    producer = Producer({"bootstrap.servers": route.kafka, "message.max.bytes": 3_000_000, "linger.ms": 0})
    noise = b"".join(n.to_bytes(4, "big") for n in range(size // 4))  # compression must not make it small
    for name, value in [("a", b"1"), ("big", noise), ("b", b"2")]:
        producer.produce(route.log, key=b"k", value=value, partition=0, headers=ce("/s", name))
    assert producer.flush(30) == 0

    assert route.finish() == 0, route.said()

    assert ids(route.outputs()) == ["a", "b"]
    (dead,) = dead_letters(route)
    assert (dead["stage"], dead["message_id"], dead["offset"]) == ("apply", "big", "1")
    assert route.finish() == 0, route.said()
    assert len(dead_letters(route)) == 1


def test_poison_among_ten_thousand_good_ones_is_put_aside(make_route: Callable[..., TopicRoute]) -> None:
    route = make_route(log={"max.message.bytes": "3000000"}, out={"max.message.bytes": "500000"})
    noise = b"".join(n.to_bytes(4, "big") for n in range(150_000))
    malformed = set(range(500, 10_000, 500))

    def record(n: int) -> tuple[int, list[tuple[str, bytes]], bytes]:
        headers = ce("/s", f"m-{n}")
        if n in malformed:
            headers.append(("ce_relaycapture", b"?"))
        return 0, headers, noise if n == 7777 else b"good"

    publish(route.kafka, route.log, map(record, range(10_000)))

    assert route.finish() == 0, route.said()

    poison = malformed | {7777}
    assert ids(route.outputs()) == [f"m-{n}" for n in range(10_000) if n not in poison]
    assert sorted(dead["message_id"] for dead in dead_letters(route)) == sorted(f"m-{n}" for n in poison)


def test_an_id_with_another_content_is_a_conflict_and_the_first_is_kept(make_route: Callable[..., TopicRoute]) -> None:
    route = make_route()
    publish(route.kafka, route.log, [(0, ce("/s", "x"), b"first"), (0, ce("/s", "x"), b"second")])
    assert route.finish() == 0, route.said()
    publish(route.kafka, route.log, [(0, ce("/s", "x"), b"third"), (0, ce("/s", "x"), b"first")])
    assert route.finish() == 0, route.said()

    assert [message.value() for message in route.outputs()] == [b"first"]
    counts = last_counts(route)
    assert (counts["duplicates"], counts["conflicts"]) == (2, 1)


def last_counts(route: TopicRoute) -> dict[str, Any]:
    """Return the counts of the last worker process, as its status record says them."""
    import orjson  # noqa: PLC0415 - the only place that reads a status record raw

    config = load(route.path)
    records = [m for m in read_all(route.kafka, config.control_topic, 1, committed=False) if b"counts" in (m.value() or b"")]
    counts: dict[str, Any] = orjson.loads(records[-1].value())["counts"]
    return counts


@pytest.mark.parametrize("raw", [b"", b"not hex at all", b"\xff" * 32])
def test_a_malformed_capture_header_makes_a_dead_letter(make_route: Callable[..., TopicRoute], raw: bytes) -> None:
    route = make_route()
    broken = [*ce("/s", "broken"), ("ce_relaycapture", raw)]
    publish(route.kafka, route.log, [(0, broken, b"v"), (0, ce("/s", "b"), b"b")])

    assert route.finish() == 0, route.said()

    assert ids(route.outputs()) == ["b"]
    assert [dead["code"] for dead in dead_letters(route)] == ["capture"]


def test_a_forged_committed_marker_is_ignored_and_alarms(make_route: Callable[..., TopicRoute]) -> None:
    route = make_route()
    publish(route.kafka, route.log, [(0, captured("held"), b"v"), (0, ce("/other", "free"), b"v")])
    append_marker(route, b"x" * 16)
    append_marker(route, None, value=b"no record at all")
    worker = route.start()
    wait_for(lambda: ids(route.outputs()) == ["free"], what="the lane that is not held")
    wait_for(lambda: "outcome marker ignored" in route.said(), what="the alarm")
    assert worker.poll() is None

    append_marker(route, NONCE)

    wait_for(lambda: sorted(ids(route.outputs())) == ["free", "held"], what="the true marker")


@pytest.mark.parametrize(
    ("source", "closes"), [(b"/s", [2**62, 2**62 + 5]), (randbytes(600_000), [1, 1])], ids=["numbers beyond 64 bits", "a long source"]
)
def test_a_forged_aborted_marker_stops_nothing(make_route: Callable[..., TopicRoute], source: bytes, closes: list[int]) -> None:
    route = make_route()
    publish(route.kafka, route.log, [(0, ce("/s", "before"), b"v")])
    producer = Producer({"bootstrap.servers": route.kafka})
    value = encode_marker(CAPTURE, None, "inc", closes)
    producer.produce(route.log, key=CAPTURE, value=value, partition=0, headers=marker_headers(CAPTURE, source, NOWHERE))
    assert producer.flush(30) == 0
    publish(route.kafka, route.log, [(0, ce("/s", "behind"), b"v")])

    assert route.finish() == 0, route.said()

    assert ids(route.outputs()) == ["before", "behind"]
    assert dead_letters(route) == []


def test_no_header_that_steers_a_relay_leaves_the_log(make_route: Callable[..., TopicRoute]) -> None:
    route = make_route()
    stranger = [("relay_instance", b"0" * 32), ("relay_n", b"1"), ("relay_digest", b"1" * 32)]
    publish(route.kafka, route.log, [(0, captured("c") + stranger, b"v")])
    append_marker(route, NONCE)

    assert route.finish() == 0, route.said()

    (message,) = route.outputs()
    names = [name for name, _ in message.headers()]
    assert "ce_relaycapture" not in names
    assert "ce_relayresource" not in names
    assert sorted(name for name in names if name.startswith("relay_")) == ["relay_digest", "relay_instance", "relay_n"]
    assert dict(message.headers())["relay_instance"] != b"0" * 32


def test_on_dead_stop_delivers_what_lies_before_and_stops_with_the_remedy(make_route: Callable[..., TopicRoute]) -> None:
    route = make_route('on_dead = "stop"')
    broken = [*ce("/s", "broken"), ("ce_relaycapture", b"?")]
    publish(
        route.kafka, route.log, [(0, ce("/s", "a"), b"a"), (0, broken, b"v"), (0, ce("/s", "b"), b"b")]
    )

    assert route.finish() == ExitCode.PERSON, route.said()
    assert route.finish() == ExitCode.PERSON, route.said()

    assert 'on_dead = "stop"' in route.said()
    assert ids(route.outputs()) == ["a"]
    assert dead_letters(route) == []


def test_a_monitor_with_too_few_partitions_is_refused_with_the_remedy(
    make_route: Callable[..., TopicRoute], kafka_admin: AdminClient
) -> None:
    route = make_route()
    kafka_admin.create_partitions([NewPartitions(route.log, 2)])[route.log].result(30)
    wait_for(lambda: len(kafka_admin.list_topics(route.log, 5).topics[route.log].partitions) == 2)

    assert route.finish() == ExitCode.PERSON, route.said()

    assert "run `relay migrate`" in route.said()


def test_a_destination_that_does_not_exist_is_refused(tmp_path: Path, kafka: str, make_topic: Callable[..., str]) -> None:
    route = Route(tmp_path, kafka, make_topic(1), '{ topic = "no-such-topic" }')
    route.migrate()

    assert route.finish() == ExitCode.PERSON, route.said()

    assert "topic 'no-such-topic' does not exist; create it, or correct `to` of the route" in route.said()


def test_an_unreachable_broker_at_start_is_one_sentence_and_exit_code_3(tmp_path: Path) -> None:
    route = Route(tmp_path, "127.0.0.1:1", "log", '{ topic = "out" }')

    assert route.finish() == ExitCode.UNREACHABLE, route.said()

    last = route.said().strip().splitlines()[-1]
    assert "127.0.0.1:1" in last
    assert "Traceback" not in route.said()


@pytest.mark.slow
def test_a_broker_that_dies_and_comes_back_costs_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "services"
    services = LocalServices.up(directory, postgres=False, settings=SMALL)
    route = Route(tmp_path, services.kafka, "log", '{ topic = "out" }')
    try:
        admin = AdminClient({"bootstrap.servers": services.kafka})
        from confluent_kafka.admin import NewTopic  # noqa: PLC0415

        make_topics(admin, NewTopic("log", 2), NewTopic("out", 2))
        route.migrate()
        publish(services.kafka, "log", [(n % 2, ce(f"/{n % 2}", f"m-{n}"), b"v") for n in range(100_000)])
        worker = route.start()
        wait_for(lambda: len(read_all(services.kafka, "out", 2)) > 0, what="some output")
        cluster = KafkaCluster.find(directory / "kafka")
        assert cluster is not None
        broker = cluster.process(1)
        assert broker is not None
        broker.send(signal.SIGKILL)
        wait_for(lambda: cluster.process(1) is None, what="the broker's end")
        LocalServices.up(directory, postgres=False, settings=SMALL)
        publish(services.kafka, "log", [(n % 2, ce(f"/{n % 2}", f"m-{n}"), b"v") for n in range(100_000, 100_100)])

        wait_for(lambda: len(read_all(services.kafka, "out", 2)) >= 100_100, what="all output", told=route.said)
        worker.terminate()
        assert worker.wait(30) == 0, route.said()

        found = read_all(services.kafka, "out", 2)
        assert sorted(ids(found)) == sorted(f"m-{n}" for n in range(100_100))
    finally:
        route.stop()
        started = LocalServices.find(directory)
        if started is not None:
            started.down()
