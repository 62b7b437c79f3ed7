"""Decisions on a real broker: one for each unit whoever races, found out after a crash, obeyed by workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from relay.capture.decisions import Attempt, Unit, UnitDecision, batch_unit, encode_decision, named_unit
from relay.cli import unit
from relay.config.timing import Timing
from relay.jobs.following import has_captured
from relay.kafka import settings
from relay.kafka.decisions import DecisionWriter, decisions_partition, writer_id
from relay.kafka.transactions import TransactionalInstance
from relay.message.envelope import CAPTURE, ID, RESOURCE, SOURCE, SPECVERSION, TYPE
from relay.message.errors import CheckFailed, ConfigError, Stopped
from relay.message.record import LogPartition
from relay.world import crash, randomness
from tests.cluster_changes import make_topics
from tests.conftest import MakeRoute, MakeTopic
from tests.routes import IN_ORDER, TopicRoute, ce, ids, publish, read_all, wait_for

DECIDER = """
import sys
from typer.testing import CliRunner

from relay.capture.decisions import Attempt, UnitDecision, batch_unit
from relay.kafka.decisions import DecisionWriter
from relay.config.timing import Timing
kafka, relay = sys.argv[1:]
wanted = UnitDecision(batch_unit("q", 1), "killed", True, (Attempt(b"k" * 16, 1, ()),))
DecisionWriter({"bootstrap.servers": kafka}, Timing(), relay).decide(wanted)
"""


@pytest.fixture
def relay_name(make_topic: MakeTopic, kafka_admin: AdminClient) -> str:
    name = f"r{uuid4().hex[:8]}"
    make_topics(kafka_admin, NewTopic(f"{name}.decisions", 1))
    return name


def decision(of: Unit, run: str, *, committed: bool = True) -> UnitDecision:
    attempts = (Attempt(randomness.random_bytes(16), 1, (LogPartition("t", 0),)),) if committed else ()
    return UnitDecision(of, run, committed, attempts)


def writer(kafka: str, relay: str) -> DecisionWriter:
    return DecisionWriter({"bootstrap.servers": kafka}, Timing(), relay)


def test_the_first_commit_of_a_unit_stands_and_an_abort_leaves_it_to_the_next_run(kafka: str, relay_name: str) -> None:
    decides = writer(kafka, relay_name)
    aborted = decides.decide(decision(batch_unit("q", 1), "a", committed=False))
    refused = decides.decide(decision(batch_unit("q", 1), "a"))
    mine = decides.decide(decision(batch_unit("q", 1), "b"))
    late = decides.decide(decision(batch_unit("q", 1), "c"))
    following = decides.decide(decision(batch_unit("q", 2), "b"))
    others = decides.decide(decision(batch_unit("other", 1), "b"))
    again = decides.decide(decision(batch_unit("q", 1), "d", committed=False))

    assert refused == aborted
    assert (mine.committed, mine.run) == (True, "b")
    assert late == mine
    assert again == mine
    assert (following.previous >= 0, others.previous) == (True, -1)
    assert len(read_all(kafka, f"{relay_name}.decisions", 1)) == 4


@pytest.mark.parametrize("step", ["decide.fenced", "decide.written", "decide.committed"])
def test_a_driver_that_dies_while_deciding_leaves_the_unit_decided_or_free(
    kafka: str, relay_name: str, step: str
) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", DECIDER, kafka, relay_name],
        env={**os.environ, crash.VARIABLE: step}, timeout=60, check=False,
    )  # fmt: skip
    stands = writer(kafka, relay_name).decide(decision(batch_unit("q", 1), "next"))

    assert killed.returncode == crash.EXIT_STATUS
    assert stands.run == ("killed" if step == "decide.committed" else "next")
    assert len(read_all(kafka, f"{relay_name}.decisions", 1)) == 1


def test_a_zombie_that_decides_late_is_fenced(kafka: str, relay_name: str) -> None:
    name = writer_id(relay_name, "q")
    given = settings.producer({"bootstrap.servers": kafka}, Timing(), name)
    zombie = TransactionalInstance(given, name, 10)
    zombie.init()
    zombie.begin()
    zombie.produce(decisions_partition(relay_name), b"q/1", b"late")
    zombie.flush()

    stands = writer(kafka, relay_name).decide(decision(batch_unit("q", 1), "living"))

    with pytest.raises(KafkaException):
        zombie.commit()
    assert stands.run == "living"
    assert [record.key() for record in read_all(kafka, f"{relay_name}.decisions", 1)] == [b"q/1"]


def test_drivers_that_connected_early_decide_by_turns_each_unit_once(kafka: str, relay_name: str) -> None:
    drivers = {name: writer(kafka, relay_name) for name in ("a", "b")}
    stands: list[UnitDecision] = []
    for number in range(4):
        for decides in drivers.values():
            decides.connect("q")
        order = sorted(drivers, reverse=bool(number % 2))
        stands += [drivers[run].decide(decision(batch_unit("q", number), run)) for run in order]

    # The second of each pair was connected before the first decided: it must fence and read after that, not before.
    assert [one.run for one in stands] == ["a", "a", "b", "b", "a", "a", "b", "b"]
    assert [one.previous for one in stands[2::2]] == sorted({one.previous for one in stands[2::2]})
    assert len(read_all(kafka, f"{relay_name}.decisions", 1)) == 4


def write_of_another_version(kafka: str, relay: str, unit: Unit) -> None:
    place, (key, value) = decisions_partition(relay), encode_decision(decision(unit, "later"))
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(place.topic, key=key, value=value[:2] + bytes(8) + value[10:], partition=place.partition)
    assert producer.flush(30) == 0


def test_a_driver_stops_where_another_version_may_have_decided_and_no_other_does(kafka: str, relay_name: str) -> None:
    place, decides = decisions_partition(relay_name), writer(kafka, relay_name)
    before = decides.decide(decision(batch_unit("q", 0), "now"))
    write_of_another_version(kafka, relay_name, batch_unit("q", 1))

    following = decides.decide(decision(batch_unit("q", 2), "now"))
    others = [decides.decide(decision(unit, "now")) for unit in (batch_unit("other", 1), named_unit("load"))]
    written = len(read_all(kafka, place.topic, 1))

    assert (before.run, following.run, [one.run for one in others]) == ("now", "now", ["now"] * 2)
    for number in (1, 0):  # the unit itself, and one whose decisions lie behind it
        with pytest.raises(Stopped, match=rf"{place.topic}\[0\] has at offset \d+ what another version of the relay wrote"):
            decides.decide(decision(batch_unit("q", number), "again"))
    with pytest.raises(Stopped, match="what another version of the relay wrote"):
        decides.known(decision(batch_unit("q", 1), "again"))
    assert len(read_all(kafka, place.topic, 1)) == written, "or the unit would be committed twice"


def test_a_named_unit_that_another_version_may_have_decided_is_in_doubt_whatever_its_name(kafka: str, relay_name: str) -> None:
    decides = writer(kafka, relay_name)
    write_of_another_version(kafka, relay_name, named_unit("load/7"))

    with pytest.raises(Stopped, match="what another version of the relay wrote"):
        decides.decide(decision(Unit("load/7", "load/7"), "now"))
    with pytest.raises(Stopped, match="what another version of the relay wrote"):
        decides.decide(decision(batch_unit("load", 7), "now"))
    assert decides.decide(decision(named_unit("load/8"), "now")).run == "now"


def append(route: TopicRoute, of: Unit, run: str, attempt: Attempt, count: int, prefix: str) -> None:
    producer = Producer({"bootstrap.servers": route.kafka, **IN_ORDER})
    for number in range(count):
        headers: list[tuple[str, str | bytes | None]] = [
            (SPECVERSION, b"1.0"), (SOURCE, b"/spark/q"), (ID, f"{prefix}-{number}".encode()), (TYPE, b"t"),
            (CAPTURE, attempt.capture.hex().encode()), (RESOURCE, of.resource(run).encode()),
        ]  # fmt: skip
        producer.produce(route.log, value=b"{}", partition=0, headers=headers)
    assert producer.flush(30) == 0


def test_a_worker_reads_how_a_unit_ended_without_any_marker(make_route: MakeRoute) -> None:
    route = make_route(partitions=1)
    first, following = batch_unit("q", 1), batch_unit("q", 2)
    dead, counted, open_one = (Attempt(randomness.random_bytes(16), 5, ()) for _ in range(3))
    append(route, first, "a", dead, 5, "dead")
    append(route, first, "b", counted, 5, "counted")
    append(route, following, "b", open_one, 5, "open")
    route.start()
    decides = writer(route.kafka, route.name)
    decides.decide(UnitDecision(first, "b", True, (counted,)))

    wait_for(lambda: len(route.outputs()) == 5, what="the counted attempt's messages")
    shown = ids(route.outputs())
    decides.decide(UnitDecision(following, "b", True, (open_one,)))
    wait_for(lambda: len(route.outputs()) == 10, what="the next unit's messages")

    assert shown == [f"counted-{n}" for n in range(5)]
    assert ids(route.outputs())[5:] == [f"open-{n}" for n in range(5)]


def test_an_operator_closes_a_run_whose_driver_is_gone(make_route: MakeRoute) -> None:
    route = make_route(partitions=1)
    gone = Attempt(randomness.random_bytes(16), 2, ())
    append(route, batch_unit("q", 1), "a", gone, 2, "gone")
    publish(route.kafka, route.log, [(0, ce("/spark/q", "behind"), b"{}")])
    route.start()
    told = ["close", str(route.path), "q/1", "a", "--reason", "the cluster was given back", "--who", "ann", "--json"]

    closed = CliRunner().invoke(unit.app, told)
    wait_for(lambda: len(route.outputs()) == 1, what="what waited behind the run")
    writer(route.kafka, route.name).decide(decision(batch_unit("q", 2), "b"))
    refused = CliRunner().invoke(unit.app, ["close", str(route.path), "q/2", "c", "--reason", "too late"])

    assert closed.exit_code == 0, closed.output
    assert json.loads(closed.stdout)["why"] == "ann: the cluster was given back"
    assert ids(route.outputs()) == ["behind"]
    assert isinstance(refused.exception, CheckFailed)
    assert "unit q/2 is committed" in str(refused.exception)


def test_a_job_is_told_that_its_relay_was_never_migrated(kafka: str) -> None:
    """Whoever was told to create the decisions' topic again, if it was deleted, mended the wrong thing."""
    with pytest.raises(ConfigError, match=r"there is no relay 'nobody' on these brokers; run `relay migrate`"):
        has_captured("nobody", {"bootstrap.servers": kafka}, "drops", behind=-1)
