"""From a TOML document to a configuration: each section is read by itself, so that all faults come out together."""

from __future__ import annotations

import difflib
import json
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import fastavro
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from relay.config.faults import HIDDEN, Fault, Wrong, secrets_of, shown, spellings
from relay.config.model import (
    KafkaSettings,
    QueueConfig,
    RegistryConfig,
    RelayConfig,
    RelaySection,
    ResourceConfig,
    RouteConfig,
    Timing,
)
from relay.config.queue_rules import queue_faults
from relay.config.queues import in_folder
from relay.config.registry import registry_faults
from relay.config.route_rules import RESERVED_ROUTES, route_faults
from relay.config.routes import Destined, destination_model, name_rule
from relay.config.substitution import Substitution, unending
from relay.config.timing import timing_faults
from relay.kafka.settings import BEARER_FILE, MACHINES_OWN, Refusal, contradictions, may_be_shown, refusals
from relay.message.limits import raise_limit

SECTIONS: Final = ("relay", "kafka", "resources", "queues", "routes", "registry", "timing")


M = TypeVar("M", bound=BaseModel)


def read(
    document: Mapping[str, Any], path: Path, env: Mapping[str, str]
) -> tuple[RelayConfig | None, list[Fault]]:
    """Return the configuration that a TOML document describes, or None with every fault of it."""
    reading = _Reading(document, path.absolute().parent, env)
    config = reading.config(path)
    return (None, reading.shown_faults()) if reading.faults else (config, [])


class _Reading:
    """One pass over a document. ``given`` keeps the references, so that faults show what the user wrote."""

    def __init__(self, document: Mapping[str, Any], folder: Path, env: Mapping[str, str]) -> None:
        self.given = dict(document)
        self.folder = folder
        self.substitution = Substitution(env, folder)
        self.document: dict[str, Any] = self.substitution.resolve(self.given)
        self.faults = self.substitution.faults
        self.notes = self.substitution.notes
        self.unresolved = {fault.key for fault in self.faults}

    def shown_faults(self) -> list[Fault]:
        """Return the faults as they may be shown: a rule may have quoted a secret, or what a reference stands for."""
        secrets = dict(sorted(secrets_of([self.given, self.document]), key=lambda one: len(one[0]), reverse=True))

        def masked(text: str) -> str:
            for secret, harmless in secrets.items():
                for spelling in spellings(secret):
                    text = text.replace(spelling, harmless)
            return self.substitution.masked(text)

        return [
            Fault(masked(fault.key), masked(fault.value), masked(fault.problem), masked(fault.remedy))
            for fault in self.faults
        ]

    def config(self, path: Path) -> RelayConfig | None:
        for section in self.given:
            if section not in SECTIONS:
                self.faults.append(Fault(section, "", "not a section", f"use {', '.join(SECTIONS)}"))
        relay = self._relay()
        kafka = self._kafka(allow_plaintext=relay is not None and relay.allow_plaintext)
        timing = self._timing()
        if timing and not any(fault.key.startswith("kafka") for fault in self.faults):
            for contradiction in contradictions(kafka, timing):
                self._refused(contradiction)
        registry = self._registry(allow_plaintext=relay is not None and relay.allow_plaintext)
        resources: dict[str, ResourceConfig] = {}
        for name, table in self._tables("resources"):
            resource = self._resource(name, table)
            if resource:
                resources[name] = resource
        queues = {name: self._queue(name, table) for name, table in self._tables("queues")}
        routes: dict[str, RouteConfig] = {}
        for name, table in self._tables("routes"):
            route = self._route(name, table)
            if route:
                routes[name] = route
        given_resources = set(self._section("resources"))
        for route in routes.values():
            owner = relay.name if relay else None
            self.faults.extend(
                route_faults(
                    route, owner, given_resources, timing or Timing(), queues, registry="registry" in self.given
                )
            )
        for queue in queues.values():
            self.faults.extend(queue_faults(queue, given_resources) if queue else ())
        if self.faults or relay is None or timing is None:
            return None
        return RelayConfig(
            relay=relay,
            kafka=kafka,
            resources=resources,
            routes=routes,
            queues={name: queue for name, queue in queues.items() if queue},
            timing=timing,
            registry=registry,
            path=path,
            notes=tuple(self.notes),
        )

    def _relay(self) -> RelaySection | None:
        if "relay" not in self.document:
            remedy = 'add [relay] with name = "..." and instance = "${HOSTNAME}"'
            self.faults.append(Fault("relay", "", "the section is missing", remedy))
            return None
        found = self._model(RelaySection, "relay", self._section("relay"))
        return found.model_copy(update={"state": self.folder / found.state}) if found else None

    def _kafka(self, *, allow_plaintext: bool) -> KafkaSettings:
        settings = KafkaSettings(flat(self._section("kafka")))
        refused = list(refusals(settings, allow_plaintext=allow_plaintext))
        known = {refusal.key for refusal in refused} | {key.removeprefix("kafka.") for key in self.unresolved}
        for key in [key for key in settings if (key.endswith(".location") or key == BEARER_FILE) and key not in known]:
            if settings[key] == MACHINES_OWN:
                continue
            if not settings[key]:  # as of a variable that is not set: the folder itself, and a client may look for certificates there
                refused.append(Refusal(key, "it names nothing", "name a file, or leave the setting out"))
                continue
            path = self.folder / settings[key]
            settings[key] = str(path)
            if (reason := _unreadable(path, may_be_folder=key in _FOLDERS)) is not None:
                remedy = "correct the path, which is relative to the configuration's folder, or the right to read it"
                refused.append(Refusal(key, f"the file cannot be read ({reason})", remedy))
        for refusal in refused:
            self._refused(refusal)
        return settings

    def _refused(self, refusal: Refusal) -> None:
        key = f'kafka."{refusal.key}"'
        if key.replace('"', "") not in self.unresolved:
            given = flat(self._section("kafka", self.given))
            value = shown(refusal.key, given.get(refusal.key)) if may_be_shown(refusal.key) else HIDDEN
            self.faults.append(Fault(key, value, refusal.problem, refusal.remedy))

    def _registry(self, *, allow_plaintext: bool) -> RegistryConfig | None:
        if "registry" not in self.given:
            return None
        found = self._model(RegistryConfig, "registry", self._section("registry"))
        if found is None:
            return None
        if found.ca is not None:
            found = found.model_copy(update={"ca": self.folder / found.ca})
        self.faults.extend(registry_faults(found, allow_plaintext=allow_plaintext))
        return found

    def _timing(self) -> Timing | None:
        section = self._section("timing")
        found = self._model(Timing, "timing", section)
        if found:
            self.faults.extend(timing_faults(found))
            return found
        # The other limits are still compared, but with no default that stands in for a wrong one.
        wrong = {fault.key for fault in self.faults if fault.key.startswith("timing.")}
        rest = Timing.model_validate({k: v for k, v in section.items() if f"timing.{k}" not in wrong})
        for fault in timing_faults(rest):
            if fault.key not in wrong and not any(key in fault.problem for key in wrong):
                self.faults.append(fault)
        return None

    def _resource(self, name: str, table: dict[str, Any]) -> ResourceConfig | None:
        self._check_name("resources", name)
        table = {key: self._absolute(value) for key, value in table.items()}
        found = self._model(ResourceConfig, f"resources.{name}", table)
        if found and found.migrate_url and found.kind != ResourceConfig(url=found.migrate_url).kind:
            key = f"resources.{name}.migrate_url"
            remedy = "give the same database with another role"
            self.faults.append(Fault(key, shown(key, ""), "another kind of database than url", remedy))
        return found

    def _absolute(self, value: Any) -> Any:
        """Make the path of an embedded store's address absolute."""
        return in_folder(value, self.folder) if isinstance(value, str) else value

    def _queue(self, name: str, table: dict[str, Any]) -> QueueConfig | None:
        key = f"queues.{name}"
        lawful = self._check_name("queues", name)
        if "name" in table:
            self.faults.append(Fault(f"{key}.name", "", "the name stands in the heading", "leave it out"))
        given = {**table, "name": name if lawful else "x"}
        if "store" in table:
            given["store"] = self._absolute(table["store"])
        found = self._model(QueueConfig, key, given)
        return found if lawful else None

    def _route(self, name: str, table: dict[str, Any]) -> RouteConfig | None:
        key = f"routes.{name}"
        lawful = self._check_name("routes", name)
        if name in RESERVED_ROUTES:
            remedy = "choose another name"
            self.faults.append(Fault(key, "", "the name is reserved for writers of decisions", remedy))
        if "name" in table:
            self.faults.append(Fault(f"{key}.name", "", "the name stands in the heading", "leave it out"))
        to = self._destination(f"{key}.to", table.get("to"))
        # A stand-in lets the rest of a route with a wrong destination or name be checked as well.
        stand_in = {"name": name if lawful else "x", "to": to or {"topic": "x"}}
        found = self._model(RouteConfig, key, {**table, **stand_in})
        return found if to is not None and lawful else None

    def _destination(self, key: str, given: Any) -> Destined | None:
        try:
            model = destination_model(given)
        except Wrong as wrong:
            self.faults.append(Fault(key, shown(key, given), wrong.problem, wrong.remedy))
            return None
        found = self._model(model, key, given)
        return found.model_copy(update=self._schema(key, found.schema_)) if found else None

    def _schema(self, key: str, path: Path | None) -> dict[str, Path]:
        """Return the schema's absolute path after parsing it once."""
        if path is None:
            return {}
        path = self.folder / path
        if (reason := _unreadable(path)) is not None:
            self.faults.append(Fault(f"{key}.schema", str(path), f"the file cannot be read ({reason})", "correct the path"))
            return {}
        try:
            fastavro.parse_schema(json.loads(path.read_text("utf-8")))
        except Exception as error:  # noqa: BLE001 - whatever a parser of a stranger's file raises means one thing
            raise_limit(error)
            self.faults.append(Fault(f"{key}.schema", str(path), "not an Avro schema", "correct the file"))
        return {"schema_": path}

    def _check_name(self, section: str, name: str) -> bool:
        try:
            name_rule(name)
        except Wrong as wrong:
            self.faults.append(Fault(f"{section}.{name}", "", wrong.problem, wrong.remedy))
            return False
        return True

    def _section(self, name: str, document: Mapping[str, Any] | None = None) -> dict[str, Any]:
        found = (self.document if document is None else document).get(name, {})
        if isinstance(found, dict):
            return found
        if document is None and not any(fault.key == name for fault in self.faults):
            self.faults.append(Fault(name, "", "not a section", f"write it as [{name}]"))
        return {}

    def _tables(self, section: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, table in self._section(section).items():
            if isinstance(table, dict):
                yield name, table
            else:
                self.faults.append(
                    Fault(f"{section}.{name}", "", "not a section", f"write it as [{section}.{name}]")
                )

    def _model(self, model: type[M], key: str, table: Mapping[str, Any]) -> M | None:
        try:
            return model.model_validate(table)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                self._collect(model, key, detail)
            return None

    def _collect(self, model: type[BaseModel], key: str, detail: ErrorDetails) -> None:
        parts = [part for part in detail["loc"] if part not in _UNION_TAGS]
        full = ".".join([key, *(str(part) for part in parts)])
        if full in self.unresolved or any(full == fault.key for fault in self.faults):
            return
        value = self._given_at(full)
        wrong = detail.get("ctx", {}).get("error")
        if isinstance(wrong, Wrong):
            problem, remedy = wrong.problem, wrong.remedy
        elif detail["type"] == "missing":
            problem, remedy = "it is missing", f"add {parts[-1]} = ..."
        elif detail["type"] == "extra_forbidden":
            value, problem = None, "not a setting"
            remedy = _suggestion(str(parts[-1]), _names_at(model, parts[:-1]))
        elif detail["type"] in ("dict_type", "model_type", "model_attributes_type"):
            problem, remedy = "not a table of settings", "write { name = value }"
        elif detail["type"] == "path_type":
            problem, remedy = "not a path", "write a path in quotes"
        else:
            problem, remedy = detail["msg"][:1].lower() + detail["msg"][1:], _REMEDIES.get(detail["type"], "correct the value")
        self.faults.append(Fault(full, shown(full, value), problem, remedy))

    def _given_at(self, key: str) -> Any:
        """Return what the user wrote at a key, references unresolved."""
        found: Any = self.given
        for part in key.split("."):
            if isinstance(found, list) and part.isdigit() and int(part) < len(found):
                found = found[int(part)]
            elif isinstance(found, dict) and part in found:
                found = found[part]
            else:
                return None
        return found


_FOLDERS: Final = ("ssl.ca.location",)
"""Which settings may name a folder of certificates; that is for the client to look into."""


def _unreadable(path: Path, *, may_be_folder: bool = False) -> str | None:
    """Return why a file cannot be read."""
    try:
        mode = path.stat().st_mode
        if (reason := unending(mode)) is not None:
            return reason
        if stat.S_ISDIR(mode) and may_be_folder:
            return None
        path.open("rb").close()
    except OSError as error:
        raise_limit(error)
        return error.strerror or "unknown"
    return None


_REMEDIES: Final = {
    "list_type": 'write a list, such as ["name"]',
    "string_type": "write a text in quotes",
    "int_type": "write a whole number without quotes or units",
    "int_parsing": "write a whole number without quotes or units",
    "int_from_float": "write a whole number without quotes or units",
    "bool_type": "write true or false",
    "bool_parsing": "write true or false",
}
"""By pydantic's name of what is wrong; where it has told the values that there are, they are the remedy."""
_UNION_TAGS: Final = ("TopicDestination", "TableDestination", "QueueDestination")


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return client settings as texts; unquoted dotted keys (nested tables) mean the dotted name."""
    settings: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            settings.update(flat(value, f"{prefix}{key}."))
        elif isinstance(value, bool):
            settings[prefix + key] = "true" if value else "false"
        elif isinstance(value, list):
            settings[prefix + key] = ",".join(str(item) for item in value)
        else:
            settings[prefix + key] = value if isinstance(value, str) else str(value)
    return settings


def _names_at(model: type[BaseModel], parts: list[int | str]) -> list[str]:
    """Return the settings that stand beside a wrong one."""
    for part in parts:
        field = next(
            (field for name, field in model.model_fields.items() if part in (name, field.alias)), None
        )
        annotation = field.annotation if field else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return [
        field.alias or name
        for name, field in model.model_fields.items()
        if name != "name" or model is RelaySection
    ]


def _suggestion(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"use one of {', '.join(known)}" if known else "leave it out"
