"""What a worker says of itself every two seconds, in a record of bounded size under its own key in the control topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

PERIOD_S: Final = 2.0
KEY_PREFIX: Final = b"status/"
WAITING_MAX: Final = 20
CAUSES_MAX: Final = 50
PARTITIONS_MAX: Final = 4096
TEXT_CHARACTERS_MAX: Final = 500
RECORD_BYTES_MAX: Final = 512 * 1024
"""Half of what a topic takes by default, since this record must never be the one that is refused."""


def _cut(value: Any) -> Any:
    return value[:TEXT_CHARACTERS_MAX] if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_cut)]


class _Value(BaseModel):
    # A newer worker may say more; what is not known here is left out.
    model_config = ConfigDict(frozen=True, extra="ignore")


class Waiting(_Value):
    """A hold: which capture is waited for, why it is undecided, and for how many milliseconds up to ``at``.

    ``resource`` is NAME/UUID as its messages name it, ``first_offset`` where the first of them lies, and
    ``needs_person`` is True if the resource cannot be asked at all.
    """

    capture: Text
    why: Text
    since_ms: int = 0
    resource: Text | None = None
    first_offset: int = 0
    needs_person: bool = False


class PartitionStatus(_Value):
    """One owned log partition. ``position`` is the next offset to deliver, ``end`` the high watermark seen.

    ``unread`` says why the reader is not given what lies before the end, where all that it was given is delivered.

    ``lost_first`` and ``lost_next`` bound the offsets whose held messages have left the log.
    ``last_progress_at`` is when the position last moved *or the lag was last zero* (wall milliseconds of the
    worker's host): a first message after a quiet hour is no stall. None if neither happened yet.
    """

    topic: Text
    partition: int
    position: int | None = None
    end: int | None = None
    lag: int = 0
    held: int = 0
    waiting: tuple[Waiting, ...] = ()
    lanes_blocked: int = 0
    in_doubt: int = 0
    unread: Text | None = None
    stuck: Text | None = None
    lost_first: int | None = None
    lost_next: int | None = None
    last_progress_at: int | None = None


class Counts(_Value):
    """What became of messages since the worker's process started."""

    delivered: int = 0
    duplicates: int = 0
    conflicts: int = 0
    dead: int = 0
    aborted: int = 0
    transactions: int = 0
    recoveries: int = 0
    settled: int = 0
    resent: int = 0
    told: int = 0
    lost: int = 0


class StatusRecord(_Value):
    """The whole record; ``started_at`` and ``at`` are wall milliseconds of the worker's host, for people.

    ``worker`` is the transactional id. ``causes`` counts dead letters by code. ``failing_since`` is when the first of the
    failures came after which it has not taken over again. ``restarts`` and what follows tell of its earlier processes, up to
    ``started_at`` (`relay.run.restarts.Past`). ``ahead_ms`` is no part of what is written: by how much the worker's clock
    is ahead of that of the broker that took the record, 0 where that is not known.

    Of handlers (`handlers_of`) there is one only where a process follows others that failed; it says no more, hence *stopped*.
    """

    relay: Text
    route: Text
    worker: Text
    pid: int = 0
    host: Text = ""
    started_at: int
    at: int
    state: Literal["recovering", "running", "draining", "stuck", "stopped"]
    guarantee: Text = ""
    partitions: tuple[PartitionStatus, ...] = ()
    counts: Counts = Field(default_factory=Counts)
    causes: dict[str, int] = Field(default_factory=dict)
    last_error: Text | None = None
    last_error_at: int | None = None
    failing_since: int | None = None
    restarts: int = 0
    restarts_lately: int = 0
    ended_by: Text | None = None
    truncated: bool = False
    ahead_ms: int = Field(default=0, exclude=True)

    @property
    def heard_at(self) -> int:
        """When it was said, by the broker's clock: workers' hosts may have any."""
        return self.at - self.ahead_ms


def handlers_of(queue: str, subscriber: str) -> str:
    """Return what stands in place of a route in what handlers say of themselves: no route has such a name."""
    return f"{queue}/{subscriber}"


def is_of_handlers(record: StatusRecord) -> bool:
    """Does it tell of a process of `relay work`?"""
    return "/" in record.route


def key(route: str, worker: str) -> bytes:
    """Return the key under which compaction keeps the worker's latest record."""
    return KEY_PREFIX + f"{route}/{worker}".encode()


def encode(record: StatusRecord | Mapping[str, Any]) -> bytes:
    """Return the JSON of a record, cut to its bounds: first what waits, then partitions beyond the bound."""
    whole = record.model_dump() if isinstance(record, StatusRecord) else dict(record)
    partitions = [dict(partition) for partition in whole.get("partitions", ())]
    for partition in partitions:
        partition["waiting"] = list(partition.get("waiting", ()))[:WAITING_MAX]
    causes = sorted(whole.get("causes", {}).items(), key=lambda cause: -cause[1])[:CAUSES_MAX]
    cut = {
        **whole,
        "causes": {_cut(code): count for code, count in causes},
        "partitions": partitions[:PARTITIONS_MAX],
        "last_error": _cut(whole.get("last_error")),
        "truncated": len(partitions) > PARTITIONS_MAX,
    }
    data = orjson.dumps(cut)
    if len(data) > RECORD_BYTES_MAX:
        cut["partitions"] = [{**partition, "waiting": []} for partition in cut["partitions"]]
        cut["truncated"] = True
        data = orjson.dumps(cut)
    while len(data) > RECORD_BYTES_MAX and cut["partitions"]:
        cut["partitions"] = cut["partitions"][: len(cut["partitions"]) // 2]
        data = orjson.dumps(cut)
    return data


def decode(value: bytes, taken_at: int = -1) -> StatusRecord | None:
    """Return the record, or None for what is none: the reader says so instead of failing over it.

    ``taken_at`` is when the broker appended it (wall milliseconds of the broker's host), -1 where it does not say.
    """
    try:
        record = StatusRecord.model_validate(orjson.loads(value))
    except (orjson.JSONDecodeError, ValidationError):
        return None
    return record.model_copy(update={"ahead_ms": record.at - taken_at if taken_at >= 0 else 0})
