"""Brokers' defaults for whole clusters would take evidence, or what was acknowledged: what is made and judged of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relay.kafka.topics import TopicFacts
from relay.setup.check_durability import judge_durability
from relay.setup.check_topics import Findings
from relay.setup.migrate import Migration, plan_topics
from tests.unit.test_config_check import config_of, healthy, topic

CONFIG = config_of()
CLUSTER_DEFAULTS = {"retention.bytes": str(1024**3), "unclean.leader.election.enable": "true"}
UNCLEAN = "unclean.leader.election.enable"


def judged(facts: dict[str, TopicFacts], brokers: int = 1) -> Findings:
    findings = Findings()
    judge_durability(CONFIG, facts, brokers, findings)
    return findings


def with_defaults(facts: dict[str, TopicFacts]) -> dict[str, TopicFacts]:
    """The topics as brokers show them that have such defaults."""
    return {name: replace(fact, settings=CLUSTER_DEFAULTS | fact.settings) for name, fact in facts.items()}


def test_what_migrate_makes_holds_whatever_brokers_have_for_a_default() -> None:
    facts = with_defaults(healthy(CONFIG))

    assert {fault.key for fault in judged(facts).faults} == {f"topic {name} {UNCLEAN}" for name in ("orders", "returns", "ledger")}


def test_topics_of_the_relay_with_the_brokers_defaults_are_faults_and_migrated() -> None:
    facts = healthy(CONFIG)
    for name in CONFIG.own_topics:
        kept = {key: value for key, value in facts[name].settings.items() if key not in CLUSTER_DEFAULTS}
        facts[name] = replace(facts[name], settings=CLUSTER_DEFAULTS | kept)

    found = {(fault.key, fault.remedy) for fault in judged(facts).faults}
    migration = Migration()
    plan_topics(CONFIG, facts, 1, migration)

    by_size = CONFIG.own_topics - {CONFIG.control_topic}
    wanted = {f"topic {name} retention.bytes" for name in by_size} | {f"topic {name} {UNCLEAN}" for name in CONFIG.own_topics}
    assert found == {(key, "run `relay migrate`") for key in wanted}
    assert migration.alter == {name: {"retention.bytes": "-1", UNCLEAN: "false"} for name in CONFIG.own_topics}


def test_a_log_that_is_kept_by_size_is_noted() -> None:
    facts = healthy(CONFIG) | {"orders": topic("orders", retention_bytes="1000000")}

    (note,) = judged(facts).notes

    assert note.startswith("topic orders keeps 1000000 bytes of each partition")


@pytest.mark.parametrize(("replicas", "brokers", "noted"), [(1, 3, ["topic ledger has one replica"]), (3, 3, []), (1, 1, [])])
def test_an_output_on_one_broker_of_several_is_noted(replicas: int, brokers: int, noted: list[str]) -> None:
    found = judged({"ledger": replace(topic("ledger", min_insync_replicas="2"), replication=replicas)}, brokers).notes

    assert [note[: len("topic ledger has one replica")] for note in found] == noted


@pytest.mark.parametrize(("in_sync", "noted"), [("1", 1), ("2", 0)])
def test_acknowledging_what_one_of_several_replicas_has_is_noted(in_sync: str, noted: int) -> None:
    facts = {"orders": replace(topic("orders", min_insync_replicas=in_sync), replication=3)}

    assert len(judged(facts, 3).notes) == noted


@pytest.mark.parametrize(("brokers", "noted"), [(3, 1), (1, 0)])
def test_kafkas_own_topics_on_one_broker_of_several_are_noted(brokers: int, noted: int) -> None:
    facts = {"__transaction_state": topic("__transaction_state", cleanup_policy="compact")}

    assert len(judged(facts, brokers).notes) == noted
