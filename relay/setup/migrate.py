"""``relay migrate``: the only place where the relay's topics and tables come from; doing it twice changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import sql

from relay.config.model import RelayConfig, ResourceConfig
from relay.kafka.topics import VISIBLE_S, TopicFacts, TopicPlan, Topics, numeric_setting
from relay.message.errors import ConfigError
from relay.resources import open_resource
from relay.resources.addresses import address
from relay.resources.schema import ONE_AT_A_TIME, statements
from relay.setup.check_table import OWN_TABLES, away
from relay.setup.new_name import find_repeat
from relay.setup.queue_tables import create_queues, statements_of

_REPLICATION_MAX: Final = 3
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 86_400_000
CONTROL_SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "600000",
    "segment.bytes": str(16 * 1024**2),
    "min.cleanable.dirty.ratio": "0.1",
    "message.timestamp.type": "LogAppendTime",
}
"""Status records come every two seconds: short segments let compaction keep the topic small.

A worker whose clock is an hour ahead could write none under its own times, nor where a route first started.
"""
INQUIRIES_SETTINGS: Final = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(86_400_000),
    "segment.ms": "3600000",
    "segment.bytes": str(16 * 1024**2),
    "message.timestamp.type": "LogAppendTime",
}
"""A publisher that starts reads the questions of a day; who still waits then has asked again."""
_KEPT: Final = {"retention.bytes": "-1", "unclean.leader.election.enable": "false"}
"""Said of every topic of the relay's own: brokers may have other defaults, and evidence must last its time."""
DECISION_BYTES_MAX: Final = 16 * 1024**2
"""A decision names every task of a batch and the partitions each has written to."""
CAUSE_HEADERS_BYTES: Final = 65_536
"""Room in a dead letter for what its cause headers add to the original message."""
_MESSAGE_BYTES: Final = 1_048_588
"""The broker's default ``max.message.bytes``."""


@dataclass(slots=True)
class Migration:
    """What is to be done, or what was done."""

    create: list[TopicPlan] = field(default_factory=list)
    grow: dict[str, int] = field(default_factory=dict)
    alter: dict[str, dict[str, str]] = field(default_factory=dict)
    tables: dict[str, list[str]] = field(default_factory=dict)
    identities: dict[str, str] = field(default_factory=dict)
    queues: dict[str, list[str]] = field(default_factory=dict)
    queue_identities: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the migration for programs."""
        return {
            "create": [
                {
                    "topic": plan.name,
                    "partitions": plan.partitions,
                    "replication": plan.replication,
                    "settings": plan.settings,
                }
                for plan in self.create
            ],
            "grow": self.grow,
            "alter": self.alter,
            "tables": self.tables,
            "identities": self.identities,
            "queues": self.queues,
            "queue_identities": self.queue_identities,
        }


def wanted_topics(config: RelayConfig, facts: Mapping[str, TopicFacts], brokers: int) -> list[TopicPlan]:
    """Return every topic the relay needs, as it should be; ConfigError if a log topic does not exist."""
    missing = sorted(config.log_topics - facts.keys())
    if missing:
        raise ConfigError(
            f"topic = {missing[0]}: a route reads it and it does not exist; create it with cleanup.policy=delete "
            "first, since its partition count is the monitor's"
        )
    replication = config.relay.replication or min(_REPLICATION_MAX, max(1, brokers))
    if replication > brokers:
        raise ConfigError(
            f"relay.replication = {replication}: the cluster has {brokers} brokers; lower it or leave it out"
        )
    durable = {**_KEPT, "min.insync.replicas": str(max(1, replication - 1))}
    plans = []
    for route in config.routes.values():
        partitions = max(facts[topic].partitions for topic in route.from_)
        settings = {**_monitor_settings(config), **durable}
        plans.append(TopicPlan(config.monitor_topic(route.name), partitions, replication, settings))
    most = max((plan.partitions for plan in plans), default=1)
    dead = {**_deadletter_settings(config, facts), **durable}
    plans.append(TopicPlan(config.deadletter_topic, most, replication, dead))
    plans.append(TopicPlan(config.control_topic, 1, replication, {**CONTROL_SETTINGS, **durable}))
    plans.append(TopicPlan(config.inquiries_topic, 1, replication, {**INQUIRIES_SETTINGS, **durable}))
    plans.append(TopicPlan(config.decisions_topic, 1, replication, {**_decisions_settings(config, facts), **durable}))
    return plans


def plan_topics(
    config: RelayConfig, facts: Mapping[str, TopicFacts], brokers: int, migration: Migration
) -> None:
    """Compare what is wanted with what is there. No I/O."""
    for plan in wanted_topics(config, facts, brokers):
        found = facts.get(plan.name)
        if found is None:
            migration.create.append(plan)
            continue
        if found.partitions < plan.partitions:
            migration.grow[plan.name] = plan.partitions
        # An existing topic keeps its replication, so its durability setting is not ours to change either.
        changed = {
            name: value
            for name, value in plan.settings.items()
            if name != "min.insync.replicas" and found.settings.get(name) != value
        }
        if changed:
            migration.alter[plan.name] = changed


def _monitor_settings(config: RelayConfig) -> dict[str, str]:
    retention = round(config.timing.monitor_retention * 1000)
    return {
        "cleanup.policy": "compact,delete",
        "retention.ms": str(retention),
        # Retention goes by whole segments and the active one is never compacted, so segments stay short.
        "segment.ms": str(max(_HOUR_MS, min(_DAY_MS, retention // 14))),
        "segment.bytes": str(128 * 1024**2),
        # What a crash left behind can be read as it was written for an hour, whatever compaction does.
        "min.compaction.lag.ms": str(_HOUR_MS),
        "delete.retention.ms": str(retention),
        # Evidence must not age by the wrong clock of the worker that wrote it.
        "message.timestamp.type": "LogAppendTime",
    }


def _decisions_settings(config: RelayConfig, facts: Mapping[str, TopicFacts]) -> dict[str, str]:
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(decisions_retention_ms(config, [facts[topic] for topic in sorted(config.log_topics)])),
        "max.message.bytes": str(DECISION_BYTES_MAX),
        "message.timestamp.type": "LogAppendTime",
    }


def decisions_retention_ms(config: RelayConfig, logs: Iterable[TopicFacts]) -> int:
    """Return how long decisions must be kept, -1 for ever: as long as the log may hold a message that asks for one."""
    longest = round(config.timing.monitor_retention * 1000)
    for log in logs:
        kept = numeric_setting(log.settings, "retention.ms", longest)
        if kept < 0:
            return -1
        longest = max(longest, kept + numeric_setting(log.settings, "segment.ms", 0))
    return longest


def _deadletter_settings(config: RelayConfig, facts: Mapping[str, TopicFacts]) -> dict[str, str]:
    sizes = [numeric_setting(facts[topic].settings, "max.message.bytes", _MESSAGE_BYTES) for topic in config.log_topics]
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(round(config.timing.monitor_retention * 1000)),
        # As with the monitor; and the auditor tells by it what retention may have taken.
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(max(sizes, default=_MESSAGE_BYTES) + CAUSE_HEADERS_BYTES),
    }


def plan(config: RelayConfig) -> Migration:
    """Ask the cluster what is there and return what is missing; tables are listed as their statements."""
    migration = Migration()
    with Topics(config.kafka, config.timing) as topics:
        _plan_with(topics, config, migration)
    for name, resource in config.resources.items():
        migration.tables[name] = [*statements(resource.kind), *(_grants_text(resource))]
    for name, queue in config.queues.items():
        migration.queues[name] = statements_of(config, queue)
    return migration


def migrate(config: RelayConfig, *, new_identity: bool = False) -> Migration:
    """Create, grow and alter the relay's topics; create its tables; return what was done.

    ``new_identity`` gives each resource a new uuid: for a copy of a database used beside its original.
    """
    migration = Migration()
    with Topics(config.kafka, config.timing) as topics:
        _plan_with(topics, config, migration)
        topics.create(migration.create)
        for name, partitions in migration.grow.items():
            topics.grow(name, partitions)
        for name, settings in migration.alter.items():
            topics.alter(name, settings)
    for name, resource in config.resources.items():
        opened = open_resource(name, (resource.migrate_url or resource.url).get_secret_value())
        opened.create_tables()
        if new_identity:
            opened.renew_identity()
        migration.identities[name] = opened.identity().uuid
        _grant(name, resource)
    migration.queue_identities = create_queues(config)
    return migration


def _plan_with(topics: Topics, config: RelayConfig, migration: Migration) -> None:
    facts = topics.describe(config.log_topics, wait_s=VISIBLE_S) | topics.describe(config.own_topics)
    if repeat := find_repeat(config, topics, facts):
        raise ConfigError(str(repeat))
    plan_topics(config, facts, topics.broker_count(), migration)


def _grants(role: str) -> list[sql.Composed]:
    return [
        sql.SQL("grant {} on {} to {}").format(
            sql.SQL(", ".join(rights)), sql.Identifier(table), sql.Identifier(role)
        )
        for table, rights in OWN_TABLES.items()
    ]


def _grants_text(resource: ResourceConfig) -> list[str]:
    role = resource.worker_role
    return [grant.as_string(None) for grant in _grants(role)] if role else []


def _grant(name: str, resource: ResourceConfig) -> None:
    """Let the worker's role use the tables; it gets no right to change them."""
    role = resource.worker_role
    if role is None or resource.migrate_url is None:
        return
    url = resource.migrate_url.get_secret_value()
    try:
        with psycopg.connect(**address(url)) as connection:
            connection.execute(ONE_AT_A_TIME)
            for grant in _grants(role):
                connection.execute(grant)
    except psycopg.OperationalError as error:
        # Nothing is half granted: the block is one transaction, and migrating again does it again.
        raise away(name, url, error) from None
    except psycopg.Error as error:
        raise ConfigError(
            f"resources.{name}.url: {role} cannot be given its rights ({error.sqlstate}); grant them by hand"
        ) from None
