"""One queue as configured: on which medium it lies, who gets its messages, and within which bounds.

Source: document 003, paragraphs [22], [25], [35] to [38], [53], [55] and [90].
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from relay.config.faults import Wrong
from relay.config.quantities import Bytes, Seconds
from relay.config.routes import Name, name_rule
from relay.message.queue_headers import Mode
from relay.queue.message import Audience, Group
from relay.queue.modes import in_mode
from relay.queue.settings import Balancing, QueueSettings, Retention

_EMBEDDED: Final = ("sqlite:///", "files:///", "log+sqlite:///")
"""Stores of one host: their path is relative to the configuration's folder."""
_LOG: Final = "log+"
_STORE: Final = re.compile(r"(?:log\+)?[A-Za-z0-9][A-Za-z0-9_-]{0,79}")
PUBLISHER_CHARACTERS_MAX: Final = 1024



def store_rule(value: str) -> str:
    """Refuse what is no store of a queue."""
    if any(value.startswith(prefix) and len(value) > len(prefix) for prefix in _EMBEDDED) or _STORE.fullmatch(value):
        return value
    if "postgres" in value.partition(":")[0]:
        raise Wrong(
            "a server's address stands under [resources]",
            'name the resource, as in store = "shop", or "log+shop" where the values stay in the log',
        )
    raise Wrong(
        "not a store",
        'write "sqlite:///path.db", "files:///folder" or a resource\'s name; with "log+" before a database the values stay in the log',
    )


def _subscribers_rule(value: dict[str, SubscriberEntry]) -> dict[str, SubscriberEntry]:
    if not value:
        raise Wrong("no subscriber is named", "write subscribers = { name = {} }")
    names: list[str] = []
    for name, entry in value.items():
        for one in dict.fromkeys([name, *(entry.pool or ())]):
            name_rule(one)
        names += entry.pool or [name]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Wrong(f"{twice[0]!r} stands twice", "give each subscriber one place, alone or in one pool")
    pools = {name for name, entry in value.items() if entry.pool and entry.pool != [name]}
    if pools & set(names):
        raise Wrong(f"{min(pools & set(names))!r} is a pool and a subscriber", "give the pool a name of its own")
    return value


def _pool_rule(value: list[str] | None) -> list[str] | None:
    if value == []:
        raise Wrong("the pool has no members", 'write pool = ["ann", "bob"], or {} for one subscriber')
    return value


def _ttl_rule(value: float | None) -> float | None:
    if value is not None and round(value * 1000) < 1:
        raise Wrong("every message would expire as it is put", "leave it out for no bound")
    return value


def _publishers_rule(value: list[str] | None) -> list[str] | None:
    if value == []:
        raise Wrong("nobody could put a message", "name the ce_source of those who may, or leave it out for everybody")
    return value


def _age_alone(value: Any) -> Any:
    return {"age": value} if isinstance(value, str | int | float) and not isinstance(value, bool) else value


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class SubscriberEntry(_Section):
    """One subscriber, or with ``pool`` several of which the first free one takes a message."""

    pool: Annotated[list[str] | None, AfterValidator(_pool_rule)] = None


class RetainSection(_Section):
    """How long JOURNALLED messages stay readable; what passes any of the bounds leaves the queue."""

    age_s: Seconds | None = Field(default=None, alias="age")
    count: int | None = Field(default=None, ge=0)
    bytes: Bytes | None = None


class BalancingSection(_Section):
    """Above ``on_above`` waiting messages new ones go to all subscribers as one pool, until fewer than ``off_below`` wait."""

    on_above: int = Field(ge=1)
    off_below: int = Field(ge=0)


class QueueConfig(_Section):
    """The section ``[queues.NAME]``.

    ``retry_after_s`` doubles with each failure up to ``retry_max_s``; ``lease_s`` is how long a worker may be silent
    before others decide about what it holds; ``archive`` is the period of the files that take what ``retain`` lets go,
    "none" lets it go for good.
    """

    name: Name
    store: Annotated[str, AfterValidator(store_rule)]
    subscribers: Annotated[dict[str, SubscriberEntry], AfterValidator(_subscribers_rule)]
    order: Literal["publisher", "key", "none"] = "publisher"
    mode: Mode = "combined"
    in_order: bool = False
    ttl_s: Annotated[Seconds | None, AfterValidator(_ttl_rule)] = Field(default=None, alias="ttl")
    publishers: Annotated[list[str] | None, AfterValidator(_publishers_rule)] = None
    message_bytes: Bytes = Field(default=1 << 20, ge=1, le=64 * 1024**2)
    waiting_max: int = Field(default=10_000_000, ge=1)
    tries: int = Field(default=5, ge=1, le=1000)
    retry_after_s: Seconds = Field(default=1.0, alias="retry_after", gt=0)
    retry_max_s: Seconds = Field(default=300.0, alias="retry_max", gt=0)
    lease_s: Seconds = Field(default=60.0, alias="lease", gt=0)
    retain: Annotated[RetainSection, BeforeValidator(_age_alone)] = Field(default_factory=RetainSection)
    archive: Literal["hour", "day", "week", "biweek", "none"] = "none"
    balancing: BalancingSection | None = None

    @property
    def resource(self) -> str | None:
        """The resource whose database holds the queue; None for a store of its own."""
        return None if self.is_embedded else self.store.removeprefix(_LOG)

    @property
    def is_embedded(self) -> bool:
        """Whether the store binds the queue to one host by its address (a resource may do so as well)."""
        return self.store.startswith(_EMBEDDED)

    @property
    def keeps_values_in_log(self) -> bool:
        """Whether the store holds the states only."""
        return self.store.startswith(_LOG)

    def url(self, resources: dict[str, str]) -> str:
        """Return the store's address; ``resources`` are the addresses by resource. It may hold a secret."""
        if self.resource is None:
            return self.store
        prefix = _LOG if self.keeps_values_in_log else ""
        return prefix + resources[self.resource]

    def settings(self) -> QueueSettings:
        """Return the queue as its store and its workers need it; times are milliseconds there."""
        groups = tuple(Group(name, tuple(entry.pool or [name])) for name, entry in self.subscribers.items())
        written = Audience(groups, self.in_order)
        retain = self.retain
        return QueueSettings(
            name=self.name,
            pause_max_ms=round(self.retry_max_s * 1000),
            audience=in_mode(written, self.mode),
            mode=self.mode,
            written=written,
            order=self.order,
            ttl_ms=None if self.ttl_s is None else round(self.ttl_s * 1000),
            publishers=None if self.publishers is None else frozenset(self.publishers),
            message_bytes=self.message_bytes,
            waiting_max=self.waiting_max,
            tries=self.tries,
            retain=Retention(
                None if retain.age_s is None else round(retain.age_s * 1000), retain.count, retain.bytes
            ),
            balancing=Balancing(self.balancing.on_above, self.balancing.off_below) if self.balancing else None,
        )


def in_folder(store: str, folder: Path) -> str:
    """Return a store with the path of an embedded one made absolute, and the same for every way of writing it.

    What lies in one file is put into one transaction: that a queue and a resource are one is known by their address.
    """
    for prefix in _EMBEDDED:
        if store.startswith(prefix) and len(store) > len(prefix):
            return f"{prefix}{os.path.realpath(folder / store.removeprefix(prefix))}"
    return store
