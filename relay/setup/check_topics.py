"""What brokers and topics must be like for the guarantee to hold: facts in, faults and notes out, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from relay.config.faults import Fault
from relay.config.model import RelayConfig, RouteConfig, TopicDestination
from relay.kafka.topics import BrokerFacts, TopicFacts, numeric_setting

VERIFICATION: Final = "transaction.partition.verification.enable"
_SINCE_3_7: Final = "group.coordinator.rebalance.protocols"
"""A setting that brokers have since 3.7: with it, the version is past 3.6.1 without asking for more rights."""
_FOREVER: Final = -1
_UNKNOWN: Final = 2**63 - 1
"""Kafka's own word for no bound."""
_OLDEST: Final = "message.timestamp.before.max.ms"
_OLDEST_LEAST: Final = 60_000
"""A broker may stand still for seconds between making a record of its own and appending it."""
_LARGEST: Final = "max.message.bytes"
_OWN_LEAST: Final = 262_144
"""The relay's own records stay well below this: a page of monitor entries has about 120 kB."""
MIGRATE: Final = "run `relay migrate`"


@dataclass(slots=True)
class Findings:
    """What was found: faults fail the check, notes are printed, checked says what was looked at."""

    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)

    def fault(self, key: str, value: str, problem: str, remedy: str) -> None:
        """Add a fault."""
        self.faults.append(Fault(key, value, problem, remedy))

    def refused(self, key: str, error: Exception, value: str = "") -> None:
        """Add what an error's sentence says: what is wrong and, behind its last semicolon, what to do."""
        problem, _, remedy = str(error).rpartition("; ")
        self.fault(key, value, *((problem, remedy) if problem else (remedy, "see the sentence")))


def judge_brokers(config: RelayConfig, brokers: Sequence[BrokerFacts], findings: Findings) -> None:
    """Every broker must verify that a transaction still owns the partition it writes (design section 6)."""
    findings.checked.append(f"{len(brokers)} broker" + ("s" if len(brokers) != 1 else ""))
    said = config.relay.partition_verification
    hidden = [broker for broker in brokers if broker.settings is None]
    if said == "absent":
        findings.notes.append('relay.partition_verification = "absent": each transaction of a topic route has a client of its own')
    elif hidden and said == "assured":
        findings.notes.append(
            f"{VERIFICATION} cannot be seen without the right DescribeConfigs on the cluster; "
            'relay.partition_verification = "assured" says that it is true on every broker, 3.6.1 or newer'
        )
    elif hidden:
        findings.fault(
            VERIFICATION,
            "",
            f"cannot be seen on {hidden[0].address}: the right DescribeConfigs on the cluster is missing",
            'grant it for the check, or set [relay] partition_verification = "assured" if every broker has it, '
            '"absent" if not',
        )
    for broker in brokers:
        if broker.settings is not None:
            _judge_broker(broker.address, broker.settings, config, findings)


def _judge_broker(address: str, settings: Mapping[str, str], config: RelayConfig, findings: Findings) -> None:
    if config.relay.partition_verification != "absent":
        _judge_verification(address, settings, findings)
    longest = numeric_setting(settings, "transaction.max.timeout.ms", 900_000)
    if config.timing.transaction_timeout * 1000 > longest:
        problem = f"broker {address} refuses more than {longest / 1000:g} s"
        remedy = "lower it or raise transaction.max.timeout.ms"
        findings.fault(
            "timing.transaction_timeout", f"{config.timing.transaction_timeout:g}s", problem, remedy
        )
    least = numeric_setting(settings, "group.min.session.timeout.ms", 6000)
    most = numeric_setting(settings, "group.max.session.timeout.ms", 1_800_000)
    if not least <= config.timing.session_timeout * 1000 <= most:
        problem = f"broker {address} takes {least / 1000:g} to {most / 1000:g} s"
        value = f"{config.timing.session_timeout:g}s"
        findings.fault("timing.session_timeout", value, problem, "choose a value inside")


def _judge_verification(address: str, settings: Mapping[str, str], findings: Findings) -> None:
    verification = settings.get(VERIFICATION)
    otherwise = 'or set [relay] partition_verification = "absent", which is slower'
    if verification is None:
        findings.fault(f"broker {address}", "", "is older than 3.6", f"upgrade it to 3.6.1 or newer, {otherwise}")
    elif verification != "true":
        problem = "a late end of one transaction could end the next one unnoticed"
        findings.fault(
            f"broker {address} {VERIFICATION}", verification, problem, f"set it to true on every broker, {otherwise}"
        )
    elif _SINCE_3_7 not in settings:
        findings.notes.append(
            f"broker {address} is of 3.6: 3.6.0 is not enough, make sure that it is 3.6.1 or newer"
        )


def judge_topics(config: RelayConfig, facts: Mapping[str, TopicFacts], findings: Findings) -> None:
    """Judge every topic that the configuration names or implies; ``facts`` lacks those that do not exist."""
    for route in config.routes.values():
        _judge_route(config, route, facts, findings)
    control = facts.get(config.control_topic)
    if control is None:
        findings.fault(f"topic {config.control_topic}", "", "does not exist", MIGRATE)
    elif control.settings.get("cleanup.policy", "") != "compact":
        _policy_fault(control, "it must be compact alone, or the recorded starts are lost", findings)
    inquiries = facts.get(config.inquiries_topic)
    if inquiries is None:
        findings.fault(f"topic {config.inquiries_topic}", "", "does not exist", MIGRATE)
    elif "delete" not in inquiries.settings.get("cleanup.policy", "delete"):
        _policy_fault(inquiries, "it must delete: a question older than its decision row must not be asked", findings)
    _judge_decisions(config, facts, findings)
    for name in sorted(config.own_topics & facts.keys() - {config.deadletter_topic}):
        _judge_room(facts[name], findings)
    dead = facts.get(config.deadletter_topic)
    if dead is None:
        findings.fault(f"topic {config.deadletter_topic}", "", "does not exist", MIGRATE)
    else:
        _judge_dead_letters(config, dead, facts, findings)
    findings.checked.append(f"{len(named_topics(config))} topics")


def _judge_decisions(config: RelayConfig, facts: Mapping[str, TopicFacts], findings: Findings) -> None:
    """A message of a unit without a database waits for ever once its decision is gone."""
    decisions = facts.get(config.decisions_topic)
    if decisions is None:
        findings.fault(f"topic {config.decisions_topic}", "", "does not exist", MIGRATE)
        return
    if decisions.settings.get("cleanup.policy", "delete") != "delete":
        _policy_fault(decisions, "it must be delete: a run's abort must stay beside another run's commit", findings)
    retention = numeric_setting(decisions.settings, "retention.ms", _FOREVER)
    for topic in sorted(config.log_topics & facts.keys()):
        kept = numeric_setting(facts[topic].settings, "retention.ms", _FOREVER)
        if retention != _FOREVER and (kept == _FOREVER or kept > retention):
            problem = f"{topic} keeps messages longer than their decisions are kept ({_days(retention)})"
            findings.fault(f"topic {decisions.name} retention.ms", str(retention), problem, MIGRATE)


def _judge_room(own: TopicFacts, findings: Findings) -> None:
    """A worker stops whose word does not fit; nobody hears of one whose status does not."""
    largest = numeric_setting(own.settings, _LARGEST, _UNKNOWN)
    if largest < _OWN_LEAST:
        problem = "what the relay writes there may not fit, and its workers stop"
        remedy = f"raise it: kafka-configs --alter --topic {own.name} --add-config {_LARGEST}=1048588"
        findings.fault(f"topic {own.name} {_LARGEST}", str(largest), problem, remedy)


def named_topics(config: RelayConfig) -> list[str]:
    """Return every topic that the routes read, write or need."""
    names = config.own_topics
    for route in config.routes.values():
        names.update(route.from_)
        if isinstance(route.to, TopicDestination):
            names.add(route.to.topic)
    return sorted(names)


def _judge_route(
    config: RelayConfig, route: RouteConfig, facts: Mapping[str, TopicFacts], findings: Findings
) -> None:
    key = f"routes.{route.name}"
    for topic in route.from_:
        if topic not in facts:
            findings.fault(
                f"{key}.from", repr(topic), "the topic does not exist", "create it, or correct the name"
            )
    logs = [facts[topic] for topic in route.from_ if topic in facts]
    for log in logs:
        if log.settings.get("cleanup.policy", "delete") != "delete":
            why = "compaction could drop a committed message in favour of an aborted one; it must be delete"
            _policy_fault(log, why, findings)
    counts = {log.partitions for log in logs}
    if len(counts) > 1:
        shown = ", ".join(f"{log.name}: {log.partitions}" for log in logs)
        remedy = "give all of them the same number (kafka-topics --alter), then run `relay migrate`"
        findings.fault(f"{key}.from", shown, "the topics of one route need equal partition counts", remedy)
    _judge_monitor(config, route, logs, facts, findings)
    if isinstance(route.to, TopicDestination):
        _judge_output(config, route.to.topic, f"{key}.to.topic", logs, facts, findings)


def _judge_monitor(
    config: RelayConfig,
    route: RouteConfig,
    logs: Sequence[TopicFacts],
    facts: Mapping[str, TopicFacts],
    findings: Findings,
) -> None:
    name = config.monitor_topic(route.name)
    monitor = facts.get(name)
    if monitor is None:
        findings.fault(f"topic {name}", "", "does not exist", MIGRATE)
        return
    needed = max((log.partitions for log in logs), default=0)
    if monitor.partitions < needed:
        problem = f"the log has {needed} partitions, and each needs one here before it is read"
        findings.fault(f"topic {name} partitions", str(monitor.partitions), problem, MIGRATE)
    if set(monitor.settings.get("cleanup.policy", "").replace(" ", "").split(",")) != {"compact", "delete"}:
        _policy_fault(monitor, "it must be compact,delete", findings)
    judge_evidence(config, monitor, logs, findings)


def judge_evidence(config: RelayConfig, monitor: TopicFacts, logs: Sequence[TopicFacts], findings: Findings) -> None:
    """Judge whether a route's monitor keeps what tells repeats for as long as they may come."""
    retention = numeric_setting(monitor.settings, "retention.ms", _FOREVER)
    if retention != _FOREVER and retention < config.timing.dedup_horizon * 1000:
        problem = f"shorter than timing.dedup_horizon ({_days(config.timing.dedup_horizon * 1000)})"
        findings.fault(f"topic {monitor.name} retention.ms", str(retention), problem, MIGRATE)
    for log in logs:
        _judge_retention(monitor.name, retention, log, findings)


def _judge_retention(name: str, retention: int, log: TopicFacts, findings: Findings) -> None:
    kept = numeric_setting(log.settings, "retention.ms", _FOREVER)
    if retention == _FOREVER:
        return
    if kept == _FOREVER:
        findings.notes.append(
            f"{log.name} is kept for ever and {name} for {_days(retention)}: who reads the log again from its "
            "beginning delivers older messages again, except where a table's inbox still has them"
        )
        return
    needed = kept + numeric_setting(log.settings, "segment.ms", 604_800_000)
    if retention < needed:
        problem = (
            f"{log.name} may keep messages for {_days(needed)} (retention.ms + segment.ms), "
            f"and their evidence is kept for {_days(retention)}"
        )
        remedy = (
            f"set timing.monitor_retention to at least {_days(needed)} and {MIGRATE}, or shorten the log's"
        )
        findings.fault(f"topic {name} retention.ms", str(retention), problem, remedy)


def _judge_output(
    config: RelayConfig,
    topic: str,
    key: str,
    logs: Sequence[TopicFacts],
    facts: Mapping[str, TopicFacts],
    findings: Findings,
) -> None:
    output = facts.get(topic)
    if output is None:
        findings.fault(key, repr(topic), "the topic does not exist", "create it, or correct the name")
        return
    alarm = config.timing.in_doubt_alarm * 1000
    if "compact" in output.settings.get("cleanup.policy", "delete"):
        lag = numeric_setting(output.settings, "min.compaction.lag.ms", 0)
        if lag <= alarm:
            why = "a message that compaction removed looks like one that was never written"
            remedy = f"set cleanup.policy=delete, or min.compaction.lag.ms well above {alarm:g}"
            policy = output.settings.get("cleanup.policy", "")
            findings.fault(f"topic {topic} cleanup.policy", policy, why, remedy)
        else:
            findings.notes.append(
                f"{topic} is compacted after {_days(lag)}: what was in doubt at a crash stays so, for a person to decide, if no "
                "worker takes over within half of that time from when the messages were captured"
            )
    retention = numeric_setting(output.settings, "retention.ms", _FOREVER)
    if (
        retention != _FOREVER
        and retention <= alarm
        and "delete" in output.settings.get("cleanup.policy", "delete")
    ):
        problem = f"what is in doubt is looked up here for at least timing.in_doubt_alarm ({alarm:g} ms)"
        findings.fault(f"topic {topic} retention.ms", str(retention), problem, "raise it")
    oldest = numeric_setting(output.settings, _OLDEST, _UNKNOWN)
    if oldest < _OLDEST_LEAST and output.settings.get("message.timestamp.type", "CreateTime") == "CreateTime":
        problem = "brokers may refuse their own record of a transaction's end: its worker then waits until they are started again"
        findings.fault(f"topic {topic} {_OLDEST}", str(oldest), problem, "raise it, best to more than the log's retention.ms")
    for log in logs:
        _note_refusals(log, output, findings)
        _note_ages(log, output, findings)


def _note_refusals(log: TopicFacts, output: TopicFacts, findings: Findings) -> None:
    """What a log takes and an output does not is a dead letter."""
    largest = numeric_setting(output.settings, _LARGEST, _UNKNOWN)
    if largest < numeric_setting(log.settings, _LARGEST, 0):
        findings.notes.append(
            f"topic {output.name} takes messages of up to {largest} bytes ({_LARGEST}), fewer than {log.name}: what is larger "
            "becomes a dead letter; raise it"
        )


def _note_ages(log: TopicFacts, output: TopicFacts, findings: Findings) -> None:
    """An output's records keep their times, by which it refuses and deletes them: that matters where a route was behind."""
    if output.settings.get("message.timestamp.type", "CreateTime") != "CreateTime":
        return
    kept = numeric_setting(log.settings, "retention.ms", _FOREVER)
    waits = _UNKNOWN if kept == _FOREVER else kept
    stays = numeric_setting(output.settings, "retention.ms", _FOREVER)
    if stays != _FOREVER and stays < waits and "delete" in output.settings.get("cleanup.policy", "delete"):
        findings.notes.append(
            f"topic {output.name} keeps messages for {_days(stays)} after they were captured (retention.ms), and {log.name} for longer: "
            "what a route delivers later than that is deleted at once; raise it, or set message.timestamp.type=LogAppendTime"
        )
    oldest = numeric_setting(output.settings, _OLDEST, _UNKNOWN)
    if oldest < waits:
        findings.notes.append(
            f"topic {output.name} takes messages for {_days(oldest)} after they were captured ({_OLDEST}), and {log.name} keeps them "
            "longer: what a route delivers later than that becomes a dead letter; raise it"
        )


def _judge_dead_letters(
    config: RelayConfig, dead: TopicFacts, facts: Mapping[str, TopicFacts], findings: Findings
) -> None:
    if dead.settings.get("cleanup.policy", "delete") != "delete":
        _policy_fault(
            dead, "it must be delete: a later dead letter must not replace an earlier one", findings
        )
    room = numeric_setting(dead.settings, _LARGEST, 1_048_588)
    for topic in sorted(config.log_topics):
        largest = numeric_setting(facts[topic].settings, _LARGEST, 0) if topic in facts else 0
        if largest > room:
            problem = (
                f"{topic} takes messages of up to {largest} bytes, which would not fit in as dead letters"
            )
            findings.fault(f"topic {dead.name} {_LARGEST}", str(room), problem, MIGRATE)


def _policy_fault(topic: TopicFacts, problem: str, findings: Findings) -> None:
    value = topic.settings.get("cleanup.policy", "")
    remedy = f"change it: kafka-configs --alter --topic {topic.name} --add-config cleanup.policy=..."
    findings.fault(f"topic {topic.name} cleanup.policy", value, problem, remedy)


def _days(milliseconds: float) -> str:
    seconds = milliseconds / 1000
    if seconds >= 86400:
        return f"{seconds / 86400:g}d"
    return f"{seconds / 3600:g}h" if seconds >= 3600 else f"{seconds:g}s"
