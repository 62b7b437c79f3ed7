"""``relay status`` against a real broker and real databases: what it reads, what it says, and its exit codes."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from relay.cli.main import app
from relay.config.loading import load
from relay.control.status import RouteView, State
from relay.control.status_reading import StatusReader
from relay.kafka.settings import DefaultTiming
from relay.kafka.topics import Topics
from relay.resources import open_resource
from relay.run.status_record import PartitionStatus, StatusRecord, encode, key
from relay.setup.migrate import CONTROL_SETTINGS
from relay.world import clock
from tests.cluster_changes import make_topics
from tests.routes import stand_at, wait_for

MakeTopic = Callable[..., str]
ENDS = (7, 4)


class Shop:
    """A relay's topics with records written by hand; partitions hold 7 and 4 messages."""

    def __init__(self, folder: Path, kafka: str, log: str, name: str) -> None:
        self.path = folder / "relay.toml"
        self.kafka = kafka
        self.log = log
        self.name = name
        self.producer = Producer({"bootstrap.servers": kafka})
        for number, end in enumerate(ENDS):
            for _ in range(end):
                self.producer.produce(log, b"x", partition=number)
        self.producer.flush(20)

    def configure(self, to: str = '{ topic = "ledger" }', more: str = "", kafka: str | None = None) -> None:
        self.path.write_text(
            f'[relay]\nname = "{self.name}"\ninstance = "a"\n'
            f'[kafka]\n"bootstrap.servers" = "{kafka or self.kafka}"\n{more}\n'
            f'[routes.r]\nfrom = ["{self.log}"]\nto = {to}\n'
        )

    def says(self, number: int, *partitions: PartitionStatus, **fields: Any) -> None:
        worker = f"{self.name}.r.a.{number}"
        now = clock.wall_ms()
        given = {
            "started_at": now - 100_000,
            "at": now,
            "state": "running",
            "pid": 7,
            "host": "here",
            **fields,
        }
        record = StatusRecord(relay=self.name, route="r", worker=worker, partitions=partitions, **given)
        self.put(key("r", worker), encode(record))

    def put(self, name: bytes, value: bytes | None) -> None:
        self.producer.produce(f"{self.name}.control", value, name, partition=0)
        assert self.producer.flush(20) == 0

    def at(self, partition: int, position: int, **fields: Any) -> PartitionStatus:
        end = ENDS[partition]
        given = {"end": end, "lag": end - position, "last_progress_at": clock.wall_ms(), **fields}
        return PartitionStatus(topic=self.log, partition=partition, position=position, **given)

    def commit(self, *positions: int) -> None:
        stand_at(self.kafka, f"{self.name}.r", self.log, positions)

    def dies(self, producer: Producer, digest: bytes, code: str, route: str = "r") -> None:
        headers = [("__relay.errors.route", route.encode()), ("__relay.errors.code", code.encode())]
        producer.produce(f"{self.name}.deadletter", b"payload", digest, headers=headers)

    def transaction(self) -> Producer:
        identity = f"{self.name}-{secrets.token_hex(4)}"
        producer = Producer({"bootstrap.servers": self.kafka, "transactional.id": identity})
        producer.init_transactions(20)
        producer.begin_transaction()
        return producer

    def read(self) -> RouteView:
        with StatusReader(load(self.path)) as reader:
            (route,) = reader.read()
            return route

    def status(self, *words: str) -> tuple[int, dict[str, Any]]:
        result = CliRunner().invoke(app, ["status", str(self.path), "--json", *words])
        return result.exit_code, json.loads(result.stdout) if result.stdout else {}


@pytest.fixture
def shop(
    tmp_path: Path, kafka: str, kafka_admin: AdminClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    monkeypatch.setattr("relay.control.status.GONE_AFTER_MS", 60_000)  # a busy machine may look that late
    control = make_topic(1, {"cleanup.policy": "compact"}, name="control")
    name = f"shop{control.rpartition('-')[2]}"
    owned = [make_named(kafka_admin, f"{name}.control", 1), make_named(kafka_admin, f"{name}.deadletter", 2)]
    yield Shop(tmp_path, kafka, make_topic(len(ENDS)), name)
    for deleted in kafka_admin.delete_topics(owned).values():
        deleted.result(30)


def make_named(admin: AdminClient, name: str, partitions: int) -> str:
    make_topics(admin, NewTopic(name, partitions))
    return name


def test_a_running_route_is_shown_with_owners_positions_and_lag(shop: Shop) -> None:
    shop.configure()
    shop.commit(5, 4)
    shop.says(0, shop.at(0, 4), counts={"delivered": 4})
    shop.says(1, shop.at(1, 4), counts={"delivered": 5})
    shop.put(b"start/r/other", b"another record of the control topic")

    code, document = shop.status()

    route = document["routes"]["r"]
    assert (code, document["ok"], document["notes"]) == (0, True, [])
    assert (route["state"], route["lag"]) == ("running", 2)
    assert route["guarantee"] == "exactly once for read_committed readers"
    assert route["counts"]["delivered"] == 9
    places = [(p["owner"], p["position"], p["end"], p["lag"]) for p in route["partitions"]]
    assert places == [(f"{shop.name}.r.a.0", 5, 7, 2), (f"{shop.name}.r.a.1", 4, 4, 0)]


def test_workers_whose_hosts_clocks_are_hours_off_live_as_long_as_the_broker_hears_them(shop: Shop) -> None:
    shop.configure()
    shop.commit(5, 4)
    with Topics({"bootstrap.servers": shop.kafka}, DefaultTiming()) as topics:
        topics.alter(f"{shop.name}.control", {"message.timestamp.type": CONTROL_SETTINGS["message.timestamp.type"]})
    now = clock.wall_ms()
    for number, hours in enumerate((5, -5)):
        at = now + hours * 3_600_000
        shop.says(number, shop.at(number, 4, last_progress_at=at), started_at=at - 100_000, at=at)

    route = shop.read()

    assert (route.state, route.why) == (State.RUNNING, None)
    assert [(worker.state, worker.age_ms < 60_000) for worker in route.workers] == [(State.RUNNING, True), (State.IDLE, True)]
    assert [place.owner for place in route.partitions] == [f"{shop.name}.r.a.0", f"{shop.name}.r.a.1"]
    assert all(abs((place.last_progress_at or 0) - now) < 60_000 for place in route.partitions)


def test_what_waits_and_is_about_to_leave_the_log_raises_an_alarm(shop: Shop) -> None:
    shop.configure()
    shop.commit(5, 4)
    shop.says(0, shop.at(0, 5), shop.at(1, 4))
    with Topics({"bootstrap.servers": shop.kafka}, DefaultTiming()) as topics:
        topics.alter(shop.log, {"retention.ms": "86400000"})
        code, document = shop.status()
        assert (code, document["routes"]["r"]["why"]) == (0, None)

        topics.alter(shop.log, {"retention.ms": "1000"})
    wait_for(lambda: shop.read().needs_attention, what="the alarm")

    shop.says(0, shop.at(0, 5), shop.at(1, 4))
    code, document = shop.status()
    route = document["routes"]["r"]
    assert code == 1
    assert [place["nears_retention"] for place in route["partitions"]] == [True, False], "nothing waits in the second"
    assert f"{shop.log}[0] waits at offset 5" in route["why"]
    assert route["state"] == "running"


def test_what_waits_and_is_next_to_leave_a_log_kept_by_size_raises_an_alarm(shop: Shop, kafka_admin: AdminClient) -> None:
    shop.configure()
    shop.commit(4, 4)
    shop.says(0, shop.at(0, 4), shop.at(1, 4))
    with Topics({"bootstrap.servers": shop.kafka}, DefaultTiming()) as topics:
        topics.alter(shop.log, {"retention.bytes": "2097152"})
    assert not shop.read().needs_attention, "nothing of it was taken yet"

    for deleted in kafka_admin.delete_records([TopicPartition(shop.log, 0, 4)]).values():
        deleted.result(30)

    code, document = shop.status()
    assert code == 1
    assert f"{shop.log}[0] waits at offset 4" in document["routes"]["r"]["why"]
    shop.commit(5, 4)
    assert not shop.read().needs_attention, "what lies before it goes first"
    with Topics({"bootstrap.servers": shop.kafka}, DefaultTiming()) as topics:
        topics.alter(shop.log, {"retention.bytes": str(1024**3)})
    shop.commit(4, 4)
    assert not shop.read().needs_attention, "three records are no gigabyte"


def test_an_idle_route_is_well(shop: Shop) -> None:
    shop.configure()
    shop.commit(*ENDS)
    shop.says(0, shop.at(0, 7), shop.at(1, 4))

    code, document = shop.status()

    assert (code, document["routes"]["r"]["state"]) == (0, "idle")


def test_a_stalled_worker_is_not_running(shop: Shop) -> None:
    shop.configure()
    shop.commit(2, 4)
    shop.says(0, shop.at(0, 2, last_progress_at=clock.wall_ms() - 31_000), shop.at(1, 4))

    code, document = shop.status()

    assert (code, document["ok"]) == (1, False)
    assert document["routes"]["r"]["workers"][0]["state"] == "stalled"
    assert f"{shop.log}[0] did not move" in document["routes"]["r"]["why"]


def test_a_worker_that_says_nothing_any_more_is_gone(shop: Shop) -> None:
    shop.configure()
    shop.says(0, shop.at(0, 7), at=clock.wall_ms() - 70_000)

    code, document = shop.status()

    assert (code, document["routes"]["r"]["state"]) == (1, "gone")


def test_a_route_that_never_ran_is_stopped(shop: Shop) -> None:
    shop.configure()

    code, document = shop.status()

    route = document["routes"]["r"]
    assert (code, route["state"], route["lag"]) == (1, "stopped", None)
    assert route["why"] == "no worker has reported; start them with `relay run`"


def test_dead_letters_are_counted_once_committed_and_of_this_route(shop: Shop) -> None:
    shop.configure()
    shop.dies(shop.producer, b"1", "json")
    shop.dies(shop.producer, b"2", "json")
    shop.dies(shop.producer, b"2", "json")
    shop.dies(shop.producer, b"3", "column")
    shop.dies(shop.producer, b"4", "elsewhere", route="other")
    shop.producer.flush(20)
    aborted, opened = shop.transaction(), shop.transaction()
    for producer in (aborted, opened):
        for number in range(9):
            shop.dies(producer, b"t%d" % number, "undone")
        producer.flush(20)
    aborted.abort_transaction(20)

    started = clock.monotonic()
    dead = shop.read().dead
    took_s = clock.monotonic() - started
    opened.abort_transaction(20)

    assert (dead.count, dead.commonest, dead.causes) == (3, "json", {"json": 2, "column": 1})
    assert took_s < 4, "an open transaction is not waited for"


def test_what_a_redrive_has_delivered_is_no_dead_letter_any_more(shop: Shop) -> None:
    shop.configure()
    for digest, code in ((b"1", "json"), (b"2", "json"), (b"1", "redriven"), (b"3", "column")):
        shop.dies(shop.producer, digest, code)
    shop.producer.flush(20)

    dead = shop.read().dead

    assert dead.causes == {"json": 1, "column": 1}


def test_a_dead_letter_keeps_its_cause_when_a_recovery_repeats_it_without(shop: Shop) -> None:
    shop.configure()
    for digest, code in ((b"1", "22P02"), (b"1", "cause_lost"), (b"2", "cause_lost"), (b"2", "22P02"), (b"3", "cause_lost")):
        shop.dies(shop.producer, digest, code)
    shop.producer.flush(20)

    dead = shop.read().dead

    assert dead.causes == {"22P02": 2, "cause_lost": 1}


def test_only_the_latest_dead_letters_are_read(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.configure()
    for number in range(40):
        shop.dies(shop.producer, b"%d" % number, "json")
    shop.producer.flush(20)
    monkeypatch.setattr("relay.control.status_reading.DEAD_LETTERS_MAX", 10)

    dead = shop.read().dead

    assert not dead.complete
    assert 10 <= dead.count <= 20


def test_dead_letters_behind_what_was_read_are_not_denied(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.configure()
    shop.dies(shop.producer, b"old", "json")
    for number in range(40):
        shop.dies(shop.producer, b"%d" % number, "redriven")
    shop.producer.flush(20)
    monkeypatch.setattr("relay.control.status_reading.DEAD_LETTERS_MAX", 5)

    said = CliRunner().invoke(app, ["status", str(shop.path)]).stdout

    assert "dead letters: none among the latest records" in said


@pytest.mark.parametrize("earlier", [100, 3])
def test_a_worker_that_stopped_long_ago_still_says_why(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, earlier: int
) -> None:
    shop.configure()
    shop.put(b"process/x", b"1 y")
    shop.says(0, state="stopped", last_error="the topic was created again")
    for number in range(40):  # other routes' workers go on: compaction leaves few of these, and their offsets
        shop.put(b"status/other/w", b"%d" % number)
    monkeypatch.setattr("relay.control.status_reading.CONTROL_RECORDS_MAX", 10)
    monkeypatch.setattr("relay.control.status_reading.CONTROL_EARLIER_MAX", earlier)

    with StatusReader(load(shop.path)) as reader:
        (route,) = reader.read()

    assert (route.why or "").endswith("is stopped: the topic was created again")
    assert [worker.why for worker in route.workers] == ["the topic was created again"]
    assert any("not all of it was read" in note for note in reader.notes) == (earlier == 3)


def test_watching_sees_what_is_new_and_what_is_withdrawn(shop: Shop) -> None:
    shop.configure()
    with StatusReader(load(shop.path)) as reader:
        states = [reader.read()[0].state]
        shop.says(0, shop.at(0, 7), shop.at(1, 4))
        shop.commit(*ENDS)
        states.append(reader.read()[0].state)
        shop.put(key("r", f"{shop.name}.r.a.0"), None)
        states.append(reader.read()[0].state)

    assert states == [State.STOPPED, State.IDLE, State.STOPPED]


def test_a_broken_record_is_noted_and_hides_nothing(shop: Shop) -> None:
    shop.configure()
    shop.commit(*ENDS)
    shop.put(b"status/r/\xffbroken", b"\x00\x01")
    shop.says(0, shop.at(0, 7), shop.at(1, 4))

    code, document = shop.status()

    assert (code, document["routes"]["r"]["state"]) == (0, "idle")
    assert "is no status record" in document["notes"][0]


def test_a_person_gets_tables(shop: Shop) -> None:
    shop.configure()
    shop.commit(*ENDS)
    shop.says(0, shop.at(0, 7), shop.at(1, 4), last_error="[red]no[/red] \x1b[31m", last_error_at=clock.wall_ms() - 7_200_000)

    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["status", str(shop.path)])

    assert result.exit_code == 0
    for shown in (
        "r: idle",
        "guarantee: exactly once",
        f"{shop.log}[0]",
        "dead letters: none",
        "2 h ago: [red]no[/red]",
    ):
        assert shown in result.stdout
    assert "\x1b" not in result.stdout


TABLE = '{ table = "ledger", resource = "db", columns = { id = "ce:id" } }'


def test_the_position_of_a_table_route_is_its_database_s(
    shop: Shop, postgres: str, kafka_admin: AdminClient
) -> None:
    shop.configure(TABLE, f'[resources.db]\nurl = "{postgres}"')
    shop.commit(1, 1)
    shop.says(0, shop.at(0, 3), shop.at(1, 2))
    open_resource("db", postgres).create_tables()
    with psycopg.connect(postgres) as connection:
        insert_positions(connection.cursor().executemany, "%s", shop, topic_id_of(shop))

    route = shop.read()

    assert [place.position for place in route.partitions] == [6, 4]
    assert route.guarantee == "exactly once"


def test_the_position_of_a_table_route_may_be_in_a_file(shop: Shop, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    shop.configure(TABLE, f'[resources.db]\nurl = "{url}"')
    shop.says(0, shop.at(0, 3), shop.at(1, 2))
    resource = open_resource("db", url)
    resource.create_tables()
    connection = resource.connect()
    insert_positions(connection.executemany, "?", shop, topic_id_of(shop))
    connection.close()

    assert [place.position for place in shop.read().partitions] == [6, 4]


def test_without_the_database_the_workers_last_word_is_shown_and_said_to_be_that(shop: Shop) -> None:
    shop.configure(TABLE, '[resources.db]\nurl = "postgresql://nobody:canary@127.0.0.1:1/none"')
    shop.says(0, shop.at(0, 3), shop.at(1, 2))

    code, document = shop.status()

    assert (code, document["ok"]) == (3, False), "more may be wrong than can be seen"
    assert [place["position"] for place in document["routes"]["r"]["partitions"]] == [3, 2]
    assert "positions are those its workers told last" in document["notes"][0]
    assert "canary" not in json.dumps(document)


def topic_id_of(shop: Shop) -> bytes:
    config = load(shop.path)
    with Topics(config.kafka, config.timing) as topics:
        return topics.describe([shop.log], settings=False)[shop.log].topic_id


def insert_positions(executemany: Callable[..., object], mark: str, shop: Shop, topic_id: bytes) -> None:
    """Positions 6 and 4, and one of a namesake that was deleted."""
    rows = [
        (shop.name, "r", topic_id, shop.log, 0, 6, 1, "w"),
        (shop.name, "r", topic_id, shop.log, 1, 4, 1, "w"),
        (shop.name, "r", b"\xff" * 16, shop.log, 0, 999, 1, "w"),
        (shop.name, "other", topic_id, shop.log, 0, 998, 1, "w"),
    ]
    columns = "relay, route, topic_id, topic, partition, position, epoch, worker"
    executemany(f"insert into relay_position ({columns}) values ({', '.join([mark] * 8)})", rows)


def test_topics_that_do_not_exist_name_the_remedy(shop: Shop) -> None:
    shop.name = "nobody"
    shop.configure()

    result = CliRunner().invoke(app, ["status", str(shop.path)])

    assert result.exit_code == 2
    assert "relay migrate" in result.stderr


def test_an_unreachable_broker_is_exit_code_3(tmp_path: Path) -> None:
    shop = Shop.__new__(Shop)
    shop.path, shop.name, shop.log = tmp_path / "relay.toml", "shop", "orders"
    shop.configure(kafka="127.0.0.1:1")

    result = CliRunner().invoke(app, ["status", str(shop.path)])

    assert result.exit_code == 3
    assert "127.0.0.1:1" in result.stderr


def test_a_worker_that_still_runs_a_route_which_was_renamed_is_noted(shop: Shop) -> None:
    shop.configure()
    shop.says(0, shop.at(0, 7), shop.at(1, 4))
    shop.path.write_text(shop.path.read_text().replace("[routes.r]", "[routes.renamed]"))

    _, document = shop.status()

    assert [note.partition(" is not in this configuration")[0] for note in document["notes"]] == ["route r"]
