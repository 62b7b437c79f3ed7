"""What ``relay check`` looks at: the file alone, or also the brokers, topics and databases it names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from relay.config.faults import Fault
from relay.config.loading import examine
from relay.config.model import RelayConfig, RouteConfig, TableDestination, TopicDestination
from relay.kafka.topics import VISIBLE_S, TopicFacts, Topics
from relay.message.errors import ConfigError, RelayError, Unreachable
from relay.resources.postgresql import PostgresqlResource
from relay.setup.check_control import check_control
from relay.setup.check_durability import INTERNAL, judge_durability
from relay.setup.check_registry import check_registry
from relay.setup.check_table import judge_own_tables, judge_table, judge_writable, look_at, postgres_notes
from relay.setup.check_topics import Findings, judge_brokers, judge_topics, named_topics


@dataclass(slots=True)
class CheckReport:
    """The answer of a check; ``exit_code`` is 0 ok, 1 a check failed, 2 the configuration is wrong, 3 unreachable."""

    path: Path
    config: RelayConfig | None
    config_faults: list[Fault]
    findings: Findings = field(default_factory=Findings)

    @property
    def exit_code(self) -> int:
        """What the command returns."""
        if self.config_faults:
            return ConfigError.exit_code
        if self.findings.unreachable:
            return Unreachable.exit_code
        return 1 if self.findings.faults else 0

    def document(self) -> dict[str, Any]:
        """Return the report for programs."""
        faults = self.config_faults + self.findings.faults
        routes = self.config.routes.values() if self.config else ()
        return {
            "ok": self.exit_code == 0,
            "config": str(self.path),
            "routes": [
                {"name": route.name, "guarantee": route.guarantee, "note": route.identity_note}
                for route in routes
            ],
            "checked": self.findings.checked,
            "faults": [
                {"key": fault.key, "value": fault.value, "problem": fault.problem, "remedy": fault.remedy}
                for fault in faults
            ],
            "unreachable": self.findings.unreachable,
            "notes": self.findings.notes,
        }


def check(path: Path, *, connect: bool) -> CheckReport:
    """Check a configuration file and, if ``connect``, what it names; ConfigError if the file is no TOML."""
    config, faults = examine(path)
    report = CheckReport(path, config, faults)
    report.findings.checked.append("configuration")
    if config is not None:
        report.findings.notes.extend(notes(config))
        if connect:
            judge_state(config, report.findings)
            facts = check_kafka(config, report.findings)
            check_resources(config, report.findings)
            check_registry(config, report.findings)
            if not report.findings.unreachable:
                check_control(config, facts, report.findings)
    return report


def notes(config: RelayConfig) -> list[str]:
    """Return what a configuration means without being wrong; it is printed with every check."""
    found = list(config.notes)
    for route in config.routes.values():
        if route.identity_note:
            found.append(f"route {route.name}: {route.identity_note}")
        if isinstance(route.to, TableDestination) and route.to.mode == "sql":
            found.append(
                f"route {route.name}: the effects of its own SQL are not checkable by `relay verify`"
            )
    found += _delivered_twice(config)
    known = ", ".join(sorted(config.resources))
    found.append(
        f"captures of a resource other than {known}: whoever may write the log is trusted for aborts"
        if known
        else "no resource is configured: whoever may write the log is trusted for aborts of captures"
    )
    if not config.routes and not config.queues:
        found.append("no route is configured: there is nothing to relay")
    return found


def _delivered_twice(config: RelayConfig) -> Iterator[str]:
    """Yield which routes lead the same topics into the same place: exactly once is said of each route by itself."""
    for one, other in combinations(config.routes.values(), 2):
        both = [topic for topic in one.from_ if topic in other.from_]
        place = _filled(one)
        if both and place and place == _filled(other):
            yield (
                f"routes {one.name} and {other.name} both lead {', '.join(both)} into {place}: each of them delivers every message "
                "there once, so it comes twice; if that is not meant, take one of them out"
            )


def _filled(route: RouteConfig) -> str:
    """Name the place to which each delivery adds something; rows that are replaced, and own statements, may be meant to meet."""
    to = route.to
    adds = isinstance(to, TopicDestination) or (isinstance(to, TableDestination) and to.mode == "insert")
    return to.place if adds else ""


def judge_state(config: RelayConfig, findings: Findings) -> None:
    """Note a place for checkpoints that cannot be written: it works, and nothing else says what that costs."""
    place = config.relay.state
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    # With a slash behind it a file is refused as well.
    if config.routes and not os.access(f"{place}/", os.W_OK | os.X_OK):
        findings.notes.append(
            f"relay.state = {config.relay.state}: this user cannot write there, so workers that run as it read the whole "
            "monitor at every start; correct the path or its permissions"
        )


def check_kafka(config: RelayConfig, findings: Findings) -> dict[str, TopicFacts]:
    """Ask the cluster, and return what it tells of topics; what does not answer is a finding, not an error."""
    try:
        with Topics(config.kafka, config.timing) as topics:
            brokers = topics.brokers()
            facts = topics.describe(named_topics(config), wait_s=VISIBLE_S)
            with suppress(ConfigError):  # they are others' business, and what is seen of them is a note at most
                facts |= topics.describe(INTERNAL)
    except Unreachable as error:
        findings.unreachable.append(str(error))
        return {}
    except ConfigError as error:
        findings.refused("kafka", error)
        return {}
    judge_brokers(config, brokers, findings)
    judge_topics(config, facts, findings)
    judge_durability(config, facts, len(brokers), findings)
    return facts


def check_resources(config: RelayConfig, findings: Findings) -> None:
    """Ask every database for its own tables, rights and identity, and for the destination tables."""
    for name, resource in config.resources.items():
        try:
            judge_own_tables(name, resource, findings)
            if resource.kind == "postgresql":
                # As workers connect, who refuse a pooler that shares its sessions.
                PostgresqlResource(name, resource.url.get_secret_value(), 1.0).connect().close()
                judge_writable(name, resource, findings)
                findings.notes.extend(postgres_notes(name, resource))
            for route in config.routes.values():
                to = route.to
                if isinstance(to, TableDestination) and to.resource == name and to.table:
                    judge_table(to, look_at(name, resource, to.table), f"routes.{route.name}.to", findings)
        except Unreachable as error:
            findings.unreachable.append(str(error))
        except RelayError as error:
            findings.refused(f"resources.{name}", error)
        else:
            findings.checked.append(f"resource {name}")
