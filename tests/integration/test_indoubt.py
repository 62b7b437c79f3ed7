"""`relay indoubt` on a real broker: what no evidence decides is shown, a person decides, the owner obeys."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
)
from typer.testing import CliRunner

from relay.cli.main import app
from relay.config.loading import load
from relay.delivery.topic.position_note import read_note
from relay.monitor.entries import Begin, InputRange, OutputStart, Page, decode, encode
from relay.run.restarts import ExitCode
from tests.cluster_changes import make_topics, set_topic
from tests.routes import Route, TopicRoute, ce, delete_below, ids, publish, read_all, wait_for

MakeRoute = Callable[..., TopicRoute]


def relay(route: Route, command: str, *words: str) -> tuple[int, dict[str, Any], str]:
    result = CliRunner().invoke(app, ["indoubt", command, str(route.path), *words, "--json"])
    return result.exit_code, json.loads(result.stdout) if result.stdout else {}, result.stderr


def asked(route: Route, command: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, [command, str(route.path), "--json"])
    return result.exit_code, json.loads(result.stdout)


def verified(route: TopicRoute) -> dict[str, Any]:
    """The audit's report; it must be clean."""
    result = CliRunner().invoke(app, ["verify", str(route.path), "--json"])
    assert result.exit_code == 0, result.stdout
    report: dict[str, Any] = json.loads(result.stdout)["routes"]["main"]
    return report


def names(route: TopicRoute, *, needs_person: bool = True) -> list[str]:
    code, found, said = relay(route, "list")
    if code == 3:
        return []  # a busy broker: asked again by who waits
    assert found, said
    return [one["name"] for one in found["items"] if one["needs_person"] is needs_person]


def captured(identifier: str, source: str, capture: str) -> tuple[int, list[tuple[str, bytes]], bytes]:
    return 0, ce(source, identifier, ce_relaycapture=capture, ce_relayresource="elsewhere/u-1"), b"v"


def test_a_capture_of_an_unknown_resource_is_decided_by_a_person_once(make_route: MakeRoute) -> None:
    route = make_route()
    yes, no = "a" * 32, "b" * 32
    publish(route.kafka, route.log, [captured("yes", "/a", yes), captured("no", "/b", no), (0, ce("/b", "behind"), b"v")])
    worker = route.start(until_idle_s=0.5)
    wanted = [f"capture:{yes}", f"capture:{no}"]
    wait_for(lambda: sorted(names(route)) == wanted, what="both captures in the list")
    wait_for(lambda: "3 messages wait for 2 captures that are undecided" in route.said(), what="why the worker does not end")

    code, listed, _ = relay(route, "list")
    assert (code, listed["ok"]) == (1, False)
    assert {one["resource"] for one in listed["items"]} == {"elsewhere/u-1"}
    _, one, _ = relay(route, "show", wanted[1])
    assert (one["evidence_decides"], [m["id"] for m in one["messages"]]) == (False, ["no"])
    assert "resources.elsewhere (u-1) is not configured here" in one["evidence"]

    assert relay(route, "resolve", wanted[0], "--commit", "--reason", "the shop has it", "--who", "ann")[0] == 0
    code, _, refusal = relay(route, "resolve", wanted[0], "--abort", "--reason", "I think not", "--who", "bob")
    assert code == 1
    assert "says commit, by ann ('the shop has it'), came first" in refusal
    assert relay(route, "resolve", wanted[1], "--abort", "--reason", "the shop has not")[0] == 0

    wait_for(lambda: len(route.outputs()) >= 2, what="the committed message and the one behind the aborted")
    assert sorted(ids(route.outputs())) == ["behind", "yes"]
    assert worker.wait(30) == 0, route.said()
    assert (verified(route)["captured"], verified(route)["aborted"]) == (2, 1)
    code, listed, _ = relay(route, "list")
    assert (code, listed["items"]) == (0, [])
    assert {(one["decision"], one["obeyed"]) for one in listed["resolutions"]} == {("commit", True), ("abort", True)}
    code, _, refusal = relay(route, "resolve", "capture:" + "c" * 32, "--abort", "--reason", "x")
    assert (code, "no worker shows a message that waits for it" in refusal) == (1, True)


def test_what_a_dead_worker_held_of_a_topic_that_its_route_reads_no_more_waits_for_nobody(
    make_route: MakeRoute, make_topic: Callable[..., str], kafka_admin: AdminClient
) -> None:
    route = make_route()
    publish(route.kafka, route.log, [captured("held", "/a", "a" * 32)])
    worker = route.start()
    wait_for(lambda: names(route), what="the capture in the list")
    written = route.path.read_text()
    route.path.write_text(written.replace(f'from = ["{route.log}"]', f'from = ["{make_topic(1)}"]'))
    assert names(route), "a worker lives that waits for it"
    worker.kill()
    assert worker.wait(30)

    wait_for(lambda: not names(route), what="the worker to be taken for gone")
    assert relay(route, "list")[0] == 0
    route.path.write_text(written)
    assert names(route), "it is asked for again once the route reads its topic"
    kafka_admin.delete_topics([route.log])[route.log].result(30)
    wait_for(lambda: not names(route), what="the topic to be gone")
    code, found, _ = relay(route, "list")
    note = f"topic = {route.log}: route main reads it and it does not exist; create it, or correct `from` of the route"
    assert (code, found["items"], found["notes"]) == (0, [], [note])
    code, _, refusal = relay(route, "resolve", "capture:" + "a" * 32, "--abort", "--reason", "x")
    assert (code, "no worker shows a message that waits for it" in refusal) == (1, True)
    make_topics(kafka_admin, NewTopic(route.log, 1))  # for whoever made it, to delete


def unreadable(route: TopicRoute, admin: AdminClient, *, how: str) -> None:
    """A transaction without a seal, whose outputs have left their topic, may have been compacted away, or lay in one that is no more."""
    publish(route.kafka, route.log, [(0, ce("/a", f"m-{n}"), b"v") for n in range(4)])
    out = f"{route.out}-former" if how == "no more" else route.out
    begin = Begin(
        "x", f"{route.name}.x", b"i" * 16, 1, -1, [InputRange(route.log, 0, 0, 4)], [OutputStart(out, 0, 0)],
        output_id=b"o" * 16 if how == "a namesake" else b"",
    )  # fmt: skip
    key, value = encode(begin)
    producer = Producer({"bootstrap.servers": route.kafka})
    if how == "vanished":
        vanish(route, begin)
    else:
        producer.produce(f"{route.name}.main.monitor", value, key, 0)
    if how in ("trimmed", "vanished"):
        producer.produce(route.out, b"what was there", partition=0)
    assert producer.flush(20) == 0
    if how in ("trimmed", "vanished"):
        delete_below(admin, route.out, 1)
    elif how == "compacted":
        set_topic(admin, route.out, "cleanup.policy", "compact")


def vanish(route: TopicRoute, begin: Begin) -> None:
    """Its part in the monitor hung and was aborted, and the position, which an undecided capture held back, was stored."""
    key, value = encode(begin)
    producer = Producer({"bootstrap.servers": route.kafka, "transactional.id": begin.transactional_id})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(f"{route.name}.main.monitor", value, key, 0)
    assert producer.flush(20) == 0, "an abort drops what is not sent"
    producer.abort_transaction(20)
    consumer = Consumer({"bootstrap.servers": route.kafka, "group.id": load(route.path).group_id("main")})
    (stored,) = consumer.committed([TopicPartition(route.log, 0)], 20)
    note = read_note(stored.metadata)._replace(instance=begin.instance, n=begin.n)
    consumer.commit(offsets=[TopicPartition(route.log, 0, stored.offset, metadata=note.text)], asynchronous=False)
    consumer.close()


def proofs(route: TopicRoute) -> dict[int, str | None]:
    """Log offsets with an entry, and whose recovery wrote it."""
    found: dict[int, str | None] = {}
    for record in read_all(route.kafka, f"{route.name}.main.monitor", 1):
        entry = decode(record.key(), record.value())
        if isinstance(entry, Page):
            found.update(dict.fromkeys(entry.offsets, entry.recovery))
    return found


@pytest.mark.parametrize(
    "how", ["trimmed", *(pytest.param(how, marks=pytest.mark.slow) for how in ("vanished", "compacted", "a namesake", "no more"))]
)
def test_a_delivery_that_no_output_can_tell_is_entered_or_delivered_as_told(
    make_route: MakeRoute, kafka_admin: AdminClient, how: str
) -> None:
    route = make_route()
    assert route.finish() == 0, "its position is stored"
    unreadable(route, kafka_admin, how=how)
    whole = f"delivery:main/{route.log}/0/0-3"
    assert names(route) == [whole], "without any worker"
    worker = route.start()
    wait_for(lambda: relay(route, "list")[1]["stuck"], what="the stuck partition")
    assert route.outputs() == []

    code, made, _ = relay(route, "resolve", f"delivery:main/{route.log}/0/0-1", "--commit", "--reason", "seen there")
    assert code == 0
    code, _, refusal = relay(route, "resolve", whole, "--abort", "--reason", "all of it")
    assert (code, "came first" in refusal) == (1, True)
    assert relay(route, "resolve", f"delivery:main/{route.log}/0/2-3", "--abort", "--reason", "not there")[0] == 0

    wait_for(lambda: len(route.outputs()) == 2, what="what did not happen")
    worker.terminate()
    assert worker.wait(30) == 0, route.said()
    assert ids(route.outputs()) == ["m-2", "m-3"]
    assert (verified(route)["delivered"], verified(route)["told"]) == (2, 2)
    found = proofs(route)
    assert sorted(found) == [0, 1, 2, 3]
    assert [made["id"] in (found[n] or "") for n in range(4)] == [True, True, False, False]
    code, listed, _ = relay(route, "list")
    assert (code, listed["items"], listed["stuck"]) == (0, [], [])
    code, _, refusal = relay(route, "resolve", f"delivery:main/{route.log}/0/7", "--commit", "--reason", "x")
    assert (code, "is not in doubt" in refusal) == (1, True)


def test_what_left_the_log_is_passed_as_lost_only_when_told(make_route: MakeRoute, kafka_admin: AdminClient) -> None:
    route = make_route()
    publish(route.kafka, route.log, [(0, ce("/a", f"m-{n}"), b"v") for n in range(2)])
    assert route.finish() == 0, route.said()
    publish(route.kafka, route.log, [(0, ce("/a", f"m-{n}"), b"v") for n in range(2, 8)])
    delete_below(kafka_admin, route.log, 5)
    lost = f"lost:main/{route.log}/0/2-4"
    code, status = asked(route, "status")
    assert (code, status["routes"]["main"]["why"].partition("; ")[2]) == (
        1, f"{route.log}[0] stands at offset 2, and the log begins at 5: 3 offsets left it; `relay indoubt list` names what a person must let go"
    )  # fmt: skip

    assert route.finish() == ExitCode.PERSON
    assert names(route) == [lost]
    assert "--abort passes it as lost" in relay(route, "resolve", lost, "--commit", "--reason", "x")[2]
    assert "is still there to be read" in relay(route, "resolve", lost[:-1] + "5", "--abort", "--reason", "x")[2]
    words = ["indoubt", "resolve", str(route.path), lost, "--abort", "--reason", "the shop does not want them"]
    assert CliRunner().invoke(app, words).stdout.endswith(
        f": {lost}: abort; the owner obeys it within seconds, one that has stopped when it is started again\n"
    )
    listed = CliRunner().invoke(app, ["indoubt", "list", str(route.path)]).stdout
    assert "\nnot yet obeyed: the owner obeys it within seconds, one that has stopped" in listed, listed

    assert route.finish() == 0, route.said()
    assert ids(route.outputs()) == ["m-0", "m-1", "m-5", "m-6", "m-7"]
    assert asked(route, "status")[1]["routes"]["main"]["counts"]["lost"] == 3
    (note,) = verified(route)["notes"]
    assert note.startswith(f"3 offsets left the log unread, and were passed as a person said ({lost}, by ")
    assert "'the shop does not want them'" in note


def test_where_the_positions_cannot_be_asked_nothing_is_called_lost(
    tmp_path: Path, kafka: str, kafka_admin: AdminClient, make_topic: Callable[..., str]
) -> None:
    table = '{ resource = "db", table = "ledger", mode = "insert", columns = { id = "ce:id" } }'
    route = Route(tmp_path, kafka, make_topic(1), table)
    with route.path.open("a") as file:
        file.write(f'\n[resources.db]\nurl = "sqlite:///{tmp_path}/ledger.db"\n')
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as database:
        database.execute("create table ledger (id text)")
    route.migrate()
    publish(route.kafka, route.log, [(0, ce("/a", f"m-{n}"), b"v") for n in range(4)])
    assert route.finish() == 0, route.said()
    delete_below(kafka_admin, route.log, 3)  # all of it was delivered
    assert relay(route, "list")[1]["items"] == []
    route.path.write_text(route.path.read_text().replace(f"{tmp_path}/ledger.db", f"{tmp_path}/away/ledger.db"))

    code, found, _ = relay(route, "list")

    assert (code, found["ok"], found["items"]) == (3, False, []), "nor that nothing is"
    assert "positions are those its workers told last" in found["notes"][0]


def begun(route: TopicRoute, name: str, frame: bytes | None = None) -> None:
    """A transaction of a route of which nothing is known but its begin; ``frame`` is that of another version's record."""
    inputs, outputs = [InputRange(route.log, 0, 0, 4)], [OutputStart(route.out, 0, 0)]
    key, value = encode(Begin("x", f"{route.name}.x", b"i" * 16, 1, -1, inputs, outputs))
    producer = Producer({"bootstrap.servers": route.kafka})
    producer.produce(f"{route.name}.{name}.monitor", value if frame is None else frame + value[len(frame) :], key, 0)
    assert producer.flush(20) == 0


def test_what_another_version_wrote_of_one_route_hides_no_other_route(make_route: MakeRoute, kafka_admin: AdminClient) -> None:
    route = make_route(partitions=1)
    with route.path.open("a") as config:
        config.write(f'\n[routes.other]\nfrom = ["{route.log}"]\nto = {{ topic = "{route.out}" }}\n')
    route.migrate()
    publish(route.kafka, route.log, [(0, ce("/a", f"m-{n}"), b"v") for n in range(4)])
    begun(route, "main", b"\xc3\x01" + bytes(8))

    code, listed, said = relay(route, "list")
    assert (code, listed.get("ok"), listed.get("items")) == (3, False, []), said
    (note,) = [one for one in listed["notes"] if "route main" in one]
    assert f"{route.name}.main.monitor[0] has at offset 0 what another version of the relay wrote" in note
    assert note.endswith("run that version, or a newer one")

    begun(route, "other")
    producer = Producer({"bootstrap.servers": route.kafka})
    producer.produce(route.out, b"what was there", partition=0)
    assert producer.flush(20) == 0
    delete_below(kafka_admin, route.out, 1)
    mine, others = (f"delivery:{name}/{route.log}/0/0-3" for name in ("main", "other"))
    code, listed, said = relay(route, "list")
    assert (code, [one["name"] for one in listed["items"]]) == (1, [others]), said
    assert note in listed["notes"]

    for words in (("show",), ("resolve", "--commit", "--reason", "it is there")):
        code, _, refusal = relay(route, words[0], mine, *words[1:])
        assert (code, "main.monitor[0] has at offset 0 what another version" in refusal) == (1, True), refusal
    assert relay(route, "resolve", others, "--commit", "--reason", "it is there")[0] == 0
