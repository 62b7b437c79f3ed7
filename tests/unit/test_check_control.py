"""What the record of first starts has `relay check --connect` say of routes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import orjson

from relay.config.model import RelayConfig
from relay.config.reading import read
from relay.kafka.topics import TopicFacts
from relay.setup.check_control import judge_first_starts
from relay.setup.check_topics import Findings

TEXT = """
[relay]
name = "shop"
instance = "a"
[kafka]
"bootstrap.servers" = "127.0.0.1:9092"
[routes.r]
from = ["orders"]
to = { topic = "ledger" }
"""
FACTS = {"orders": TopicFacts("orders", b"1" * 16, 1, 1)}
KEY = "orders/" + "31" * 16


def start(route: str, place: str | None, log: str = KEY) -> tuple[bytes, bytes]:
    said = {"policy": "earliest", "starts": {log: {"0": 0}}} | ({} if place is None else {"place": place})
    return f"start/{route}".encode(), orjson.dumps(said)


def judged(*records: tuple[bytes, bytes], text: str = TEXT, facts: dict[str, TopicFacts] = FACTS) -> Findings:
    config: RelayConfig | None
    config, faults = read(tomllib.loads(text), Path("/nowhere/relay.toml"), {})
    assert config is not None, faults
    findings = Findings()
    judge_first_starts(config, records, facts, findings)
    return findings


def test_nothing_is_said_of_a_route_that_goes_where_it_went_or_has_nothing_recorded() -> None:
    for records in [(), (start("r", "topic ledger"),), (start("r", None),), (start("r", "topic ledger"), start("r", "topic other"))]:
        assert judged(*records) == Findings(), records


def test_a_route_that_leads_elsewhere_under_its_name_is_noted() -> None:
    findings = judged(start("r", "table ledger in shop"))
    assert not findings.faults
    (note,) = findings.notes
    assert note.startswith("route r led to table ledger in shop when it first started, and leads to topic ledger now: ")


def test_of_a_route_into_the_same_table_of_another_database_nothing_is_said_to_be_missing() -> None:
    text = TEXT.replace('to = { topic = "ledger" }', 'to = { table = "ledger", resource = "shop", columns = { id = "ce:id" } }')
    text += "\n[resources.shop]\nurl = \"sqlite:///shop.db\"\n"
    (note,) = judged(start("r", "table ledger in former"), text=text).notes
    assert note.startswith("route r led to table ledger in former when it first started, and leads to table ledger in shop now: ")
    assert "is filled anew" in note
    assert "lost" not in note

    (note,) = judged(start("r", "table other in shop"), text=text).notes
    assert "needs another name" in note


def test_a_renamed_route_is_a_fault_before_its_workers_refuse_it() -> None:
    (fault,) = judged(start("old", "topic ledger")).faults
    assert fault.key == "routes.r"
    assert fault.problem.endswith("all that the log has would be delivered there once more")
    assert fault.remedy.startswith("if it is that route, give it the name 'old' back; if not, set start = ")


def test_who_has_run_or_says_where_to_start_or_reads_another_topic_of_the_name_is_not_refused() -> None:
    old = start("old", "topic ledger")
    assert not judged(old, start("r", "topic ledger")).faults
    assert not judged(old, text=TEXT + 'start = "earliest"\n').faults
    assert not judged(old, facts={"orders": TopicFacts("orders", b"2" * 16, 1, 1)}).faults
    assert not judged(old, facts={}).faults, "a missing topic is a fault of its own"
