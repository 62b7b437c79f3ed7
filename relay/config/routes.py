"""One route as configured: from which log topics, in which order, by which identity, to which destination."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from relay.config.faults import Wrong
from relay.config.quantities import Bytes, Seconds
from relay.message import identity
from relay.message.errors import ConfigError
from relay.message.record import TOPIC_REMEDY, is_topic_name

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")
_IDENTIFIER: Final = r"[A-Za-z_][A-Za-z0-9_]{0,62}"
_TABLE: Final = re.compile(rf"(?:{_IDENTIFIER}\.)?{_IDENTIFIER}")
_COLUMN: Final = re.compile(_IDENTIFIER)
_SOURCE: Final = re.compile(
    r"ce:[a-z][a-z0-9]{0,39}"
    r"|json:(?:/.*)?"
    r"|avro:(?:/.+|[A-Za-z_][A-Za-z0-9_]*)"
    r"|header:.+"
    r"|kafka:(?:topic|partition|offset|timestamp|key|value)"
)
_PARAMETER: Final = re.compile(r"%(?:%|\((\w+)\)s|(.?))", re.DOTALL)
_LITERAL: Final = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")
_TRANSACTION_WORDS: Final = re.compile(
    r"\s*(begin|start|commit|end|rollback|abort|savepoint|release|prepare|set|discard)\b", re.IGNORECASE
)

POSITION_NOTE: Final = (
    "identity is the position in the log alone: protected against redelivery, "
    "not against a producer that sends the same message twice"
)
GUARANTEES: Final = {
    "topic": "exactly once for read_committed readers",
    "table": "exactly once",
    "queue": "exactly once into the queue",
}


def name_rule(value: str) -> str:
    """Refuse a name that could not stand in topic names, group ids and transactional ids without doubt."""
    if not _NAME.fullmatch(value):
        raise Wrong(
            "not a name",
            "use 1 to 80 letters, digits, '-' or '_', beginning with a letter or digit (no dots)",
        )
    return value


def topic_rule(value: str) -> str:
    """Refuse what Kafka does not take as a topic's name."""
    if not is_topic_name(value):
        raise Wrong("not a topic's name", TOPIC_REMEDY)
    return value


def _table_rule(value: str) -> str:
    if not _TABLE.fullmatch(value):
        raise Wrong("not a table's name", 'write "table" or "schema.table" in letters, digits and "_"')
    if value.rpartition(".")[2].lower().startswith("relay_"):
        raise Wrong("names that begin with relay_ are the relay's own", "choose another table")
    return value


def _columns_rule(value: dict[str, str]) -> dict[str, str]:
    for column, source in value.items():
        if not _COLUMN.fullmatch(column):
            raise Wrong(f"{column!r} is not a column's name", 'use letters, digits and "_"')
        if not _SOURCE.fullmatch(source):
            raise Wrong(
                f"{column} = {source!r} is not a source",
                "use ce:ATTRIBUTE, json:/pointer, avro:field, header:NAME "
                "or kafka:topic|partition|offset|timestamp|key|value",
            )
    return value


def _from_rule(value: list[str]) -> list[str]:
    if not value:
        raise Wrong("no topic is named", "name at least one topic of the log")
    if len(set(value)) != len(value):
        raise Wrong("a topic is named twice", "name each topic once")
    return value


def _identity_rule(value: list[str]) -> list[str]:
    if not value:
        raise Wrong("no rule is given", 'leave it out for ["cloudevents", "position"]')
    if len(set(value)) != len(value):
        raise Wrong("a rule is given twice", "name each rule once")
    if "position" in value[:-1]:
        raise Wrong("position always holds, so that rules after it are never used", "put position last")
    try:
        identity.rules(value, avro=lambda _value, _headers: {})
    except ConfigError as error:
        problem, _, remedy = str(error).partition("; ")
        raise Wrong(problem, remedy) from None
    return value


Name = Annotated[str, AfterValidator(name_rule)]
TopicName = Annotated[str, AfterValidator(topic_rule)]
TableName = Annotated[str, AfterValidator(_table_rule)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, populate_by_name=True)


class TopicDestination(_Section):
    """Another topic of the same cluster; ``schema_`` is the Avro schema file for ``avro:`` identities."""

    topic: TopicName
    schema_: Path | None = Field(default=None, alias="schema")

    @property
    def kind(self) -> Literal["topic"]:
        """The word for statistics and reports."""
        return "topic"

    @property
    def place(self) -> str:
        """Where messages go, in words."""
        return f"topic {self.topic}"


class TableDestination(_Section):
    """A table of a resource. ``table`` may be empty only where ``mode`` is ``sql``."""

    table: TableName = Field(default="")
    resource: str
    mode: Literal["insert", "upsert", "sql"] = "insert"
    columns: Annotated[dict[str, str], AfterValidator(_columns_rule)]
    key: list[str] = Field(default_factory=list)
    sql: str | None = None
    schema_: Path | None = Field(default=None, alias="schema")

    @property
    def kind(self) -> Literal["table"]:
        """The word for statistics and reports."""
        return "table"

    @property
    def place(self) -> str:
        """Where messages go, in words."""
        return f"table {self.table or '(own SQL)'} in {self.resource}"


class QueueDestination(_Section):
    """A queue of this configuration; what a message asks of it stands in the message's headers."""

    queue: Name

    @property
    def kind(self) -> Literal["queue"]:
        """The word for statistics and reports."""
        return "queue"

    @property
    def place(self) -> str:
        """Where messages go, in words."""
        return f"queue {self.queue}"

    @property
    def schema_(self) -> None:
        """A queue takes values as they are."""
        return


Destined = TopicDestination | TableDestination | QueueDestination


class BatchLimits(_Section):
    """What one delivery transaction holds at most; a batch is sent after ``linger_s`` at the latest."""

    messages: int = Field(default=20_000, ge=1, le=100_000)
    bytes: Bytes = Field(default=16 * 1024**2, ge=1024, le=1024**3)
    linger_s: Seconds = Field(default=0.005, alias="linger", ge=0, le=5)


class InFlight(_Section):
    """Bounds per worker; at a bound delivery pauses and nothing is dropped."""

    messages: int = Field(default=100_000, ge=1, le=10_000_000)
    """Messages taken in and not yet handed on, those of a decided capture that are read again included."""
    hold_bytes: Bytes = Field(default=64 * 1024**2, ge=0)
    """Payload of messages behind undecided captures; past it only offset ranges are kept."""
    incarnations: int = Field(default=10_000, ge=10, le=1_000_000)
    """Publisher incarnations whose numbers are followed, for each log partition."""
    gaps: int = Field(default=64, ge=1, le=1_000)
    """Runs of closed numbers kept for one incarnation; past it the shortest are forgotten."""


class RouteConfig(_Section):
    """One way from log topics to one destination: one consumer group, one cursor, one monitor."""

    name: Name
    from_: Annotated[list[TopicName], AfterValidator(_from_rule)] = Field(alias="from")
    order: Literal["publisher", "key", "partition", "none"] = "publisher"
    start: Literal["earliest", "latest"] = "earliest"
    identity: Annotated[list[str], AfterValidator(_identity_rule)] = Field(
        default_factory=lambda: ["cloudevents", "position"]
    )
    to: Destined
    dedup: Literal["partition", "route"] = "partition"
    on_dead: Literal["continue", "stop"] = "continue"
    batch: BatchLimits = Field(default_factory=BatchLimits)
    inflight: InFlight = Field(default_factory=InFlight)

    @property
    def guarantee(self) -> str:
        """The sentence that is printed wherever the route is shown (design section 6)."""
        return GUARANTEES[self.to.kind]

    @property
    def says_where_to_start(self) -> bool:
        """Does the configuration name ``start``, be it the default?"""
        return "start" in self.model_fields_set

    @property
    def identity_note(self) -> str | None:
        """What the route's identity does not protect against, if that must be said."""
        return POSITION_NOTE if self.identity == ["position"] else None


def sql_faults(sql: str, columns: dict[str, str]) -> list[tuple[str, str]]:
    """Return (problem, remedy) for each thing wrong with a route's own statement."""
    found: list[tuple[str, str]] = []
    bare = _LITERAL.sub("''", sql).strip()
    if ";" in bare.rstrip(";"):
        found.append(
            ("it holds more than one statement", "write one statement, or a function of the database")
        )
    if _TRANSACTION_WORDS.match(bare):
        found.append(("it would steer the delivery transaction", "write only the effect; the relay commits"))
    matches = list(_PARAMETER.finditer(sql))
    if any(match[2] is not None for match in matches):
        found.append(
            ("a '%' is neither %(name)s nor %%", "write parameters as %(column)s and a percent sign as %%")
        )
    names = {match[1] for match in matches if match[1]}
    unknown = sorted(names - columns.keys())
    if unknown:
        found.append((f"%({unknown[0]})s has no column", f"add {unknown[0]} to columns"))
    if not names:
        found.append(("it takes no parameter", "use %(column)s for the columns of the message"))
    return found


def destination_model(value: Any) -> type[Destined]:
    """Return which destination a ``to`` describes; Wrong if it is none of this version's."""
    if value is None:
        raise Wrong(
            "no destination is named",
            'write to = { topic = "..." }, { table = "...", resource = "..." } or { queue = "..." }',
        )
    if not isinstance(value, dict):
        raise Wrong(
            "not a destination",
            'write { topic = "..." }, { table = "...", resource = "..." } or { queue = "..." }',
        )
    if len({"topic", "table", "queue"} & value.keys()) > 1:
        raise Wrong("a route has one destination", "make two routes, one for each destination")
    if "queue" in value:
        return QueueDestination
    if "topic" in value:
        return TopicDestination
    if "table" in value or "sql" in value:
        return TableDestination
    raise Wrong(
        "no destination is named",
        'write { topic = "..." }, { table = "...", resource = "..." } or { queue = "..." }',
    )
