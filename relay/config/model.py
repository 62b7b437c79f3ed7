"""The configuration: read once, checked whole, every fault reported together, frozen afterwards.

Paths in it (state, ``sqlite:///``, schemas, ``${file:}``) are relative to the folder of the file itself, so that
a service and a worker with different working directories mean the same file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from relay.config.faults import Wrong
from relay.config.queues import QueueConfig
from relay.config.registry import RegistryConfig
from relay.config.routes import (
    BatchLimits,
    InFlight,
    Name,
    QueueDestination,
    RouteConfig,
    TableDestination,
    TopicDestination,
)
from relay.config.timing import Timing
from relay.kafka.settings import redacted

__all__ = [
    "BatchLimits",
    "InFlight",
    "KafkaSettings",
    "QueueConfig",
    "QueueDestination",
    "RegistryConfig",
    "RelayConfig",
    "RelaySection",
    "ResourceConfig",
    "RouteConfig",
    "TableDestination",
    "Timing",
    "TopicDestination",
]

_INSTANCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_KINDS: Final = {"postgresql": "postgresql", "postgres": "postgresql", "sqlite": "sqlite"}


def _instance_rule(value: str) -> str:
    if not _INSTANCE.fullmatch(value):
        raise Wrong(
            "not an instance's name", "use 1 to 128 letters, digits, '.', '_' or '-'; it must stay the same"
        )
    return value


def _url_rule(value: SecretStr) -> SecretStr:
    scheme, found, rest = value.get_secret_value().partition("://")
    if not found or scheme not in _KINDS or not rest.strip("/"):
        raise Wrong("not a database's address", "write postgresql://user@host/database or sqlite:///path.db")
    if scheme == "sqlite" and not rest.startswith("/"):
        raise Wrong(
            "an SQLite address names no host", "write three slashes before the path: sqlite:///path.db"
        )
    # The driver would take what follows an unescaped slash for the database's name, and errors show that.
    unescaped = set(rest.partition("?")[0].rpartition("@")[0]) & set("/@")
    if scheme != "sqlite" and (unescaped or not _is_conninfo(value.get_secret_value())):
        remedy = (
            "write postgresql://user:password@host:port/database?option=value, with %40 for '@' and %2F for '/' "
            "inside a part"
        )
        raise Wrong("PostgreSQL cannot read the address", remedy)
    return value


def _is_conninfo(url: str) -> bool:
    # The driver takes a while to load, and only a PostgreSQL address needs it.
    from psycopg import ProgrammingError  # noqa: PLC0415
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

    try:
        conninfo_to_dict(url)
    except ProgrammingError:
        return False
    return True


Url = Annotated[SecretStr, AfterValidator(_url_rule)]


class KafkaSettings(dict[str, str]):
    """The client settings as given; printing them hides what is secret."""

    def __repr__(self) -> str:
        return repr(redacted(self))

    __str__ = __repr__


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def _state_rule(value: Any) -> Any:
    if value == "":  # as of a variable that is not set: the configuration's own folder would be filled
        raise Wrong("it names nothing", 'name a directory, such as "./state"')
    return value


class RelaySection(_Section):
    """The section ``[relay]``. ``instance`` with the worker's number makes the transactional ids, so it is stable.

    ``replication`` is for topics that ``relay migrate`` creates; None means three, or fewer brokers.
    ``partition_verification = "assured"`` says what a relay without the cluster right cannot ask: that every broker
    is 3.6.1 or newer with ``transaction.partition.verification.enable=true``; ``"absent"`` that it is not so, and each
    transaction gets a client of its own.
    """

    name: Name
    instance: Annotated[str, AfterValidator(_instance_rule)]
    state: Annotated[Path, BeforeValidator(_state_rule)] = Path("state")
    allow_plaintext: bool = False
    replication: int | None = Field(default=None, ge=1, le=9)
    partition_verification: Literal["ask", "assured", "absent"] = "ask"


class ResourceConfig(_Section):
    """A database that takes part in capture or delivery; ``migrate_url`` is the role that may create tables."""

    url: Url
    migrate_url: Url | None = None

    @property
    def kind(self) -> Literal["postgresql", "sqlite"]:
        """Which dialect the resource speaks."""
        scheme = self.url.get_secret_value().partition("://")[0]
        return "sqlite" if _KINDS[scheme] == "sqlite" else "postgresql"

    @property
    def worker_role(self) -> str | None:
        """The role that needs rights, if another one creates the tables."""
        if self.kind != "postgresql" or self.migrate_url is None:
            return None
        # The driver takes a while to load, and only a PostgreSQL address needs it.
        from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

        worker = conninfo_to_dict(self.url.get_secret_value()).get("user")
        owner = conninfo_to_dict(self.migrate_url.get_secret_value()).get("user")
        return str(worker) if worker and worker != owner else None


class RelayConfig(_Section):
    """A whole, valid configuration. The names of everything the relay owns are made here."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=True)

    relay: RelaySection
    kafka: KafkaSettings
    resources: dict[str, ResourceConfig] = Field(default_factory=dict)
    routes: dict[str, RouteConfig] = Field(default_factory=dict)
    queues: dict[str, QueueConfig] = Field(default_factory=dict)
    timing: Timing = Field(default_factory=Timing)
    registry: RegistryConfig | None = None
    path: Path
    notes: tuple[str, ...] = ()

    @property
    def log_topics(self) -> set[str]:
        """What the routes read."""
        return {topic for route in self.routes.values() for topic in route.from_}

    @property
    def own_topics(self) -> set[str]:
        """What `relay migrate` makes for the relay itself."""
        shared = {self.control_topic, self.deadletter_topic, self.inquiries_topic, self.decisions_topic}
        return shared | {self.monitor_topic(route) for route in self.routes}

    @property
    def deadletter_topic(self) -> str:
        """Where messages go that cannot be decoded, mapped or applied."""
        return f"{self.relay.name}.deadletter"

    @property
    def control_topic(self) -> str:
        """Where start positions, redrives and uuids are recorded."""
        return f"{self.relay.name}.control"

    @property
    def decisions_topic(self) -> str:
        """Decisions of captures that have no database."""
        return f"{self.relay.name}.decisions"

    @property
    def inquiries_topic(self) -> str:
        """Questions of relays that may not ask the publisher's database."""
        return f"{self.relay.name}.inquiries"

    def monitor_topic(self, route: str) -> str:
        """The compacted topic that holds the evidence of what the route delivered."""
        return f"{self.relay.name}.{route}.monitor"

    def group_id(self, route: str) -> str:
        """The consumer group of a route's workers."""
        return f"{self.relay.name}.{route}"

    def transactional_id(self, route: str, worker: int) -> str:
        """Stable over restarts, so that ``init_transactions`` fences the predecessor."""
        return f"{self.relay.name}.{route}.{self.relay.instance}.{worker}"
