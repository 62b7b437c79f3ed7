"""Facts in, faults out: what brokers, topics and tables must be like, judged without any of them."""

from __future__ import annotations

import sqlite3
import tomllib
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from relay.config.model import RelayConfig, ResourceConfig, TableDestination
from relay.config.reading import read
from relay.kafka.topics import BrokerFacts, TopicFacts
from relay.message.errors import ConfigError, Unreachable
from relay.setup.check import judge_state, notes
from relay.setup.check_table import Column, TableFacts, judge_table, look_at
from relay.setup.check_topics import VERIFICATION, Findings, judge_brokers, judge_topics
from relay.setup.migrate import Migration, plan_topics, wanted_topics

TEXT = """
[relay]
name = "shop"
instance = "a"
[kafka]
"bootstrap.servers" = "127.0.0.1:9092"
[resources.shop]
url = "sqlite:///shop.db"
[routes.r]
from = ["orders", "returns"]
to = { topic = "ledger" }
"""
DAY = 86_400_000
BROKER = {VERIFICATION: "true", "group.coordinator.rebalance.protocols": "classic,consumer"}


def config_of(text: str = TEXT) -> RelayConfig:
    config, faults = read(tomllib.loads(text), Path("/nowhere/relay.toml"), {})
    assert config is not None, faults
    return config


def topic(name: str, partitions: int = 4, **settings: str) -> TopicFacts:
    given = {"cleanup.policy": "delete", "retention.ms": str(7 * DAY), "segment.ms": str(7 * DAY)}
    return TopicFacts(
        name, bytes(16), partitions, 1, given | {k.replace("_", "."): v for k, v in settings.items()}
    )


def healthy(config: RelayConfig) -> dict[str, TopicFacts]:
    """The logs and the output, and the relay's own topics exactly as migrate makes them."""
    facts = {name: topic(name) for name in ("orders", "returns", "ledger")}
    for plan in wanted_topics(config, facts, 1):
        facts[plan.name] = TopicFacts(plan.name, bytes(16), plan.partitions, 1, plan.settings)
    return facts


def faults_with(**changes: TopicFacts | None) -> list[str]:
    config = config_of()
    facts = healthy(config)
    for name, fact in changes.items():
        facts.pop(name.replace("__", "."), None)
        if fact is not None:
            facts[fact.name] = fact
    findings = Findings()
    judge_topics(config, facts, findings)
    return [fault.key for fault in findings.faults]


def test_what_migrate_makes_passes_the_check() -> None:
    assert faults_with() == []


@pytest.mark.parametrize(("log", "kept"), [("1", 14 * DAY), (str(30 * DAY), 37 * DAY), ("-1", -1)])
def test_decisions_without_a_database_are_kept_as_long_as_a_message_may_ask_for_one(log: str, kept: int) -> None:
    facts = {"orders": topic("orders", retention_ms=log), "returns": topic("returns", retention_ms="1")}

    (made,) = (plan for plan in wanted_topics(config_of(), facts, 1) if plan.name == "shop.decisions")

    assert (made.settings["retention.ms"], made.settings["cleanup.policy"]) == (str(kept), "delete")


@pytest.mark.parametrize(
    ("decisions", "faults"),
    [
        (None, ["topic shop.decisions"]),
        (topic("shop.decisions", retention_ms=str(7 * DAY - 1)), ["topic shop.decisions retention.ms"] * 2),
        (topic("shop.decisions", retention_ms="-1"), []),
        (topic("shop.decisions", cleanup_policy="compact", retention_ms="-1"), ["topic shop.decisions cleanup.policy"]),
    ],
)
def test_decisions_that_go_before_their_messages_are_a_fault(decisions: TopicFacts | None, faults: list[str]) -> None:
    assert faults_with(shop__decisions=decisions) == faults


def test_it_is_said_whose_word_is_taken_for_aborts() -> None:
    without = TEXT.replace('[resources.shop]\nurl = "sqlite:///shop.db"\n', "")

    assert "captures of a resource other than shop: whoever may write the log is trusted for aborts" in notes(config_of())
    assert "no resource is configured: whoever may write the log is trusted for aborts of captures" in notes(config_of(without))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"orders": None}, "routes.r.from"),
        ({"orders": topic("orders", cleanup_policy="compact")}, "topic orders cleanup.policy"),
        ({"orders": topic("orders", cleanup_policy="compact,delete")}, "topic orders cleanup.policy"),
        ({"returns": topic("returns", partitions=3)}, "routes.r.from"),
        ({"orders": topic("orders", retention_ms=str(8 * DAY))}, "topic shop.r.monitor retention.ms"),
        ({"orders": topic("orders", max_message_bytes="9000000")}, "topic shop.deadletter max.message.bytes"),
        ({"ledger": None}, "routes.r.to.topic"),
        ({"ledger": topic("ledger", cleanup_policy="compact")}, "topic ledger cleanup.policy"),
        ({"ledger": topic("ledger", retention_ms="1000")}, "topic ledger retention.ms"),
        ({"ledger": topic("ledger", message_timestamp_before_max_ms="1")}, "topic ledger message.timestamp.before.max.ms"),
        ({"shop__r__monitor": None}, "topic shop.r.monitor"),
        ({"shop__deadletter": None}, "topic shop.deadletter"),
        ({"shop__control": None}, "topic shop.control"),
        ({"shop__control": topic("shop.control")}, "topic shop.control cleanup.policy"),
        ({"shop__control": topic("shop.control", cleanup_policy="compact,delete")}, "topic shop.control cleanup.policy"),
        (
            {"shop__control": topic("shop.control", cleanup_policy="compact", max_message_bytes="100")},
            "topic shop.control max.message.bytes",
        ),
        ({"shop__decisions": topic("shop.decisions", retention_ms="-1", max_message_bytes="100")}, "topic shop.decisions max.message.bytes"),
        (
            {"shop__deadletter": topic("shop.deadletter", cleanup_policy="compact")},
            "topic shop.deadletter cleanup.policy",
        ),
        (
            {
                "shop__r__monitor": topic(
                    "shop.r.monitor", cleanup_policy="delete", retention_ms=str(14 * DAY)
                )
            },
            "topic shop.r.monitor cleanup.policy",
        ),
        (
            {
                "shop__r__monitor": topic(
                    "shop.r.monitor", cleanup_policy="compact,delete", retention_ms="-1", partitions=3
                )
            },
            "topic shop.r.monitor partitions",
        ),
    ],
)
def test_one_thing_wrong_is_one_fault(changes: dict[str, TopicFacts | None], key: str) -> None:
    assert faults_with(**changes) == [key]


def test_a_short_monitor_breaks_the_horizon_and_both_logs() -> None:
    monitor = topic("shop.r.monitor", cleanup_policy="delete,compact", retention_ms=str(DAY))

    assert faults_with(shop__r__monitor=monitor) == ["topic shop.r.monitor retention.ms"] * 3


def test_a_compacted_output_is_noted_when_compaction_waits_long_enough() -> None:
    config = config_of()
    ledger = topic("ledger", cleanup_policy="compact")
    ledger = replace(ledger, settings=ledger.settings | {"min.compaction.lag.ms": str(DAY)})
    findings = Findings()
    judge_topics(config, healthy(config) | {"ledger": ledger}, findings)

    assert findings.faults == []
    assert "ledger is compacted after 1d" in findings.notes[0]


@pytest.mark.parametrize(
    ("settings", "noted"),
    [
        ({"max_message_bytes": "20000"}, ["up to 20000 bytes (max.message.bytes), fewer than orders"]),
        ({"message_timestamp_before_max_ms": str(DAY)}, ["for 1d after they were captured"] * 2),
        ({"message_timestamp_before_max_ms": str(DAY), "message_timestamp_type": "LogAppendTime"}, []),
        ({"message_timestamp_before_max_ms": str(2**63 - 1), "max_message_bytes": "1048588"}, []),
        ({"retention_ms": str(DAY)}, ["ledger keeps messages for 1d after they were captured"] * 2),
        ({"retention_ms": str(DAY), "message_timestamp_type": "LogAppendTime"}, []),
        ({"retention_ms": str(DAY), "cleanup_policy": "compact", "min_compaction_lag_ms": str(DAY)}, ["ledger is compacted after 1d"]),
        ({"retention_ms": "-1"}, []),
    ],
)
def test_what_an_output_would_refuse_or_delete_is_noted(settings: dict[str, str], noted: list[str]) -> None:
    config = config_of()
    findings = Findings()
    facts = healthy(config) | {"orders": topic("orders", max_message_bytes="1048588"), "ledger": topic("ledger", **settings)}
    judge_topics(config, facts, findings)

    assert len(findings.notes) == len(noted)
    assert all(words in note for words, note in zip(noted, findings.notes, strict=True))


def broker_findings(settings: dict[str, str] | None, text: str = TEXT) -> Findings:
    findings = Findings()
    judge_brokers(config_of(text), [BrokerFacts(1, "b:9", settings)], findings)
    return findings


def test_brokers() -> None:
    assert broker_findings(BROKER).faults == []
    assert "set it to true" in broker_findings(BROKER | {VERIFICATION: "false"}).faults[0].remedy
    assert "older than 3.6" in broker_findings({}).faults[0].problem
    assert "3.6.0 is not enough" in broker_findings({VERIFICATION: "true"}).notes[0]
    assert "session" in broker_findings(BROKER | {"group.min.session.timeout.ms": "15000"}).faults[0].key
    assert "transaction" in broker_findings(BROKER | {"transaction.max.timeout.ms": "5000"}).faults[0].key


def test_what_may_not_be_asked_must_be_said_in_the_configuration() -> None:
    assured = TEXT.replace('instance = "a"', 'instance = "a"\npartition_verification = "assured"')

    assert 'partition_verification = "assured"' in broker_findings(None).faults[0].remedy
    assert broker_findings(None, assured).faults == []
    assert broker_findings(None, assured).notes


@pytest.mark.parametrize("settings", [None, {}, BROKER | {VERIFICATION: "false"}], ids=["not seen", "older", "off"])
def test_where_brokers_do_not_verify_each_transaction_may_have_a_client_of_its_own(settings: dict[str, str] | None) -> None:
    absent = TEXT.replace('instance = "a"', 'instance = "a"\npartition_verification = "absent"')

    assert 'partition_verification = "absent"' in broker_findings(settings).faults[0].remedy or settings is None
    assert broker_findings(settings, absent).faults == []
    assert "a client of its own" in broker_findings(settings, absent).notes[0]


UPSERT = TableDestination(
    table="ledger", resource="shop", mode="upsert", columns={"id": "ce:id", "n": "json:/n"}, key=["id"]
)
LEDGER = TableFacts({"id": Column(required=True), "n": Column(required=False)}, [frozenset({"id"})])


def table_faults(facts: TableFacts | None) -> list[str]:
    findings = Findings()
    judge_table(UPSERT, facts, "to", findings)
    return [f"{fault.key}: {fault.problem}" for fault in findings.faults]


def test_a_table_that_takes_what_the_route_writes() -> None:
    assert table_faults(LEDGER) == []


def test_tables_that_do_not() -> None:
    columns = LEDGER.columns
    assert "no such table" in table_faults(None)[0]
    assert table_faults(replace(LEDGER, unique=[frozenset({"id", "n"})])) == [
        "to.key: ledger has no unique index on it"
    ]
    assert "no such column" in table_faults(replace(LEDGER, columns={"id": columns["id"]}))[0]
    assert (
        "insert"
        in table_faults(replace(LEDGER, columns=columns | {"id": Column(required=False, insert=False)}))[0]
    )
    assert (
        "update"
        in table_faults(replace(LEDGER, columns=columns | {"n": Column(required=False, update=False)}))[0]
    )
    assert "not mapped" in table_faults(replace(LEDGER, columns=columns | {"z": Column(required=True)}))[0]


def test_notes_say_what_the_configuration_means() -> None:
    text = TEXT.replace("[routes.r]", '[routes.r]\nidentity = ["position"]')
    bare = text.replace('[resources.shop]\nurl = "sqlite:///shop.db"\n', "")

    assert "route r: identity is the position" in notes(config_of(text))[0]
    assert "other than shop" in notes(config_of(text))[1]
    assert "no resource" in notes(config_of(bare))[1]


@pytest.mark.parametrize(
    ("to", "place"),
    [
        ('{ topic = "ledger" }', "topic ledger"),
        ('{ table = "ledger", resource = "shop", columns = { id = "ce:id" } }', "table ledger in shop"),
        ('{ table = "ledger", resource = "shop", mode = "upsert", key = ["id"], columns = { id = "ce:id" } }', ""),
    ],
)
def test_routes_that_lead_one_log_into_one_place_twice_are_noted(to: str, place: str) -> None:
    routes = [f'[routes.{name}]\nfrom = {topics}\nto = {to}\n' for name, topics in (("one", '["a", "b"]'), ("other", '["b"]'))]
    text = TEXT[: TEXT.index("[routes.r]")]

    twice = [note for note in notes(config_of(text + "".join(routes))) if "comes twice" in note]

    assert [note.startswith(f"routes one and other both lead b into {place}: ") for note in twice] == [True] * bool(place)
    apart = text + "".join(routes).replace('["b"]', '["c"]')
    assert not any("comes twice" in note for note in notes(config_of(apart)))


def test_migrating_twice_plans_nothing() -> None:
    config = config_of()
    migration = Migration()
    plan_topics(config, healthy(config), 1, migration)

    assert (migration.create, migration.grow, migration.alter) == ([], {}, {})


def test_evidence_is_kept_by_the_brokers_clocks_and_for_its_time_also_beside_a_broker_that_was_down() -> None:
    config = config_of()
    facts = healthy(config)
    assert {facts[name].settings["message.timestamp.type"] for name in config.own_topics} == {"LogAppendTime"}
    monitor = {key: facts["shop.r.monitor"].settings[key] for key in ("delete.retention.ms", "min.compaction.lag.ms", "segment.ms")}
    kept = round(config.timing.monitor_retention * 1000)

    # Markers of transactions go by it: a replica that was away for longer gives what was aborted for committed, or hides it.
    assert int(monitor["delete.retention.ms"]) >= kept
    assert int(monitor["min.compaction.lag.ms"]) >= DAY // 24, "what a crash left can be read as it was written"
    assert int(monitor["segment.ms"]) <= DAY, "retention goes by whole segments"


def test_migrating_follows_the_log_and_the_configuration() -> None:
    config = config_of(TEXT + '[timing]\nmonitor_retention = "20d"\n')
    facts = healthy(config_of()) | {"orders": topic("orders", partitions=6)}
    migration = Migration()
    plan_topics(config, facts, 1, migration)

    assert migration.create == []
    assert migration.grow == {"shop.r.monitor": 6, "shop.deadletter": 6}
    assert migration.alter["shop.r.monitor"]["retention.ms"] == str(20 * DAY)


@pytest.mark.parametrize(("brokers", "replication", "insync"), [(1, 1, "1"), (2, 2, "1"), (5, 3, "2")])
def test_replication_follows_the_cluster(brokers: int, replication: int, insync: str) -> None:
    for plan in wanted_topics(config_of(), {"orders": topic("orders"), "returns": topic("returns")}, brokers):
        assert plan.replication == replication
        assert plan.settings["min.insync.replicas"] == insync


def test_a_log_that_does_not_exist_is_not_migrated() -> None:
    logs = {"orders": topic("orders"), "returns": topic("returns")}
    thrice = config_of(TEXT.replace('"a"', '"a"\nreplication = 3'))

    with pytest.raises(ConfigError, match="orders"):
        wanted_topics(config_of(), {}, 1)
    with pytest.raises(ConfigError, match=r"relay.replication = 3"):
        wanted_topics(thrice, logs, 1)


def test_a_state_that_cannot_be_written_is_noted_before_every_start_reads_the_whole_monitor(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = {}
    for state in ("file/state", "file", "new/state"):
        findings = Findings()
        judge_state(config_of(TEXT.replace('instance = "a"', f'instance = "a"\nstate = "{tmp_path / state}"')), findings)
        told[state] = findings.notes

    assert [len(notes) for notes in told.values()] == [1, 1, 0]
    assert told["file"][0].startswith(f"relay.state = {tmp_path / 'file'}: this user cannot write there")
    assert not (tmp_path / "new").exists(), "looking makes nothing"


def test_a_file_that_is_no_database_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    path.write_text("somebody's notes, long enough to have a header")
    resource = ResourceConfig.model_validate({"url": f"sqlite:///{path}"})

    with pytest.raises(Unreachable, match=r"cannot be opened \(file is not a database\); .*correct the path"):
        look_at("shop", resource, "orders")


def sqlite_faults(path: Path, ddl: str) -> list[str]:
    """Make a file and return what is at fault with its table, for a route that inserts id and n."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(ddl)
    findings = Findings()
    facts = look_at("shop", ResourceConfig.model_validate({"url": f"sqlite:///{path}"}), "ledger")
    judge_table(UPSERT.model_copy(update={"mode": "insert", "key": []}), facts, "to", findings)
    return [fault.key for fault in findings.faults]


@pytest.mark.parametrize(
    ("ddl", "faults"),
    [
        ("create table ledger (id text, n integer)", []),
        ("create table book (id text, n integer); create view ledger as select * from book", ["to.table"]),
        (("create table book (id text, n integer); create view ledger as select * from book; create trigger entered "
          "instead of insert on ledger begin insert into book values (new.id, new.n); end"), []),
    ],
)
def test_a_view_in_a_file_takes_rows_by_a_trigger_only(tmp_path: Path, ddl: str, faults: list[str]) -> None:
    assert sqlite_faults(tmp_path / "shop.db", ddl) == faults


@pytest.mark.parametrize(
    ("ddl", "faults"),
    [
        ("create table ledger (line integer primary key, id text, n integer)", []),
        ("create table ledger (line integer not null primary key, id text, n integer)", []),
        ("create table ledger (line text primary key, id text, n integer)", []),  # a table with rowid takes NULL there
        ("create table ledger (line text not null primary key, id text, n integer)", ["to.columns"]),
        ("create table ledger (line integer primary key, id text, n integer) without rowid", ["to.columns"]),
        ("create table ledger (line integer primary key default 0, id text, n integer) without rowid", []),
        ("create table ledger (a integer not null, b integer not null, id text, n integer, primary key (a, b))", ["to.columns", "to.columns"]),
    ],
)
def test_a_key_in_a_file_is_given_by_itself_only_where_it_is_the_rowid(tmp_path: Path, ddl: str, faults: list[str]) -> None:
    assert sqlite_faults(tmp_path / "shop.db", ddl) == faults


def test_settings_that_the_kafka_client_refuses_together_are_faults() -> None:
    long = read(tomllib.loads(TEXT + '[timing]\nsession_timeout = "10min"\n'), Path("/nowhere/relay.toml"), {})[1]
    few = TEXT.replace("[kafka]\n", '[kafka]\n"fetch.max.bytes" = 65536\n')

    assert [(fault.key, fault.remedy) for fault in long] == [
        ('kafka."max.poll.interval.ms"', "raise it or lower timing.session_timeout")
    ]
    (fault,) = read(tomllib.loads(few), Path("/nowhere/relay.toml"), {})[1]
    assert (fault.key, fault.value) == ('kafka."fetch.max.bytes"', "'65536'")


def test_what_a_sentence_says_behind_its_last_semicolon_is_the_remedy() -> None:
    findings = Findings()
    findings.refused("one", ConfigError("it is gone; so is the other; make both"))
    findings.refused("two", ConfigError("it is gone"), "gone")
    assert [(fault.key, fault.value, fault.problem, fault.remedy) for fault in findings.faults] == [
        ("one", "", "it is gone; so is the other", "make both"),
        ("two", "gone", "it is gone", "see the sentence"),
    ]
