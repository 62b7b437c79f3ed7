"""What the monitor topic holds: pages of entries between the begin and the seal of a sealed transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from relay.message.identity import CONTENT_BYTES, DIGEST_BYTES
from relay.message.record import LogMessage, LogPartition
from relay.message.schemas import OtherVersion, UnknownRecord, codec, is_framed
from relay.monitor.ranges import RangeEntry, decode_value, encode_key, encode_value

PAGE_ROWS: Final = 4096
"""Rows of one page at most: about 120 kB, far below a broker's default ``max.message.bytes`` of 1 MB."""

UNKNOWN_OFFSET: Final = -1

DELIVERED: Final = 0
DEAD: Final = 1
SKIPPED: Final = 2
NOT_DELIVERED: Final = 255
"""Outcomes of a row; on a VOID page the last one says that the row falls back to nothing."""

INSTANCE_BYTES: Final = 16
_PAGE_KEY_BYTES: Final = 1 + INSTANCE_BYTES + 8 + 2


class Proof(StrEnum):
    """How a page counts: once its transaction is sealed, by itself, or as the taking back of entries."""

    SEALED = "SEALED"
    PROVEN = "PROVEN"
    VOID = "VOID"


class InputRange(NamedTuple):
    """Log offsets from ``first`` up to but not including ``next`` that a transaction delivers."""

    topic: str
    partition: int
    first: int
    next: int


class OutputStart(NamedTuple):
    """An output partition that a transaction may write; none of its records lies below ``offset``."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Page:
    """Entries of up to PAGE_ROWS messages of one log partition, in columns; row i of each belongs together.

    ``digests`` has 16 bytes a row, ``contents`` 8 (zeros: unknown), ``offsets`` the log offset (-1: unknown),
    ``outcomes`` one byte; ``replays`` (one byte) and ``destinations`` are empty or have a value for each row.
    """

    worker: str
    instance: bytes
    n: int
    proof: Proof
    recovery: str | None
    topic: str
    partition: int
    digests: bytes
    contents: bytes
    offsets: list[int]
    outcomes: bytes
    replays: bytes = b""
    destinations: Sequence[int] = ()

    @property
    def rows(self) -> int:
        """Number of entries."""
        return len(self.offsets)

    @property
    def is_told(self) -> bool:
        """Has a person said that these were delivered? Then nothing shows them."""
        return self.recovery is not None and self.recovery != self.worker


@dataclass(frozen=True, slots=True)
class Begin:
    """Opens sealed transaction ``n`` of an instance; ``previous`` is its last begun n here, -1 for none.

    Up to ``closed`` (-1: not said) all outputs of the instance were seen closed. Of what it committed after that ``since``
    is the offset of the first begin here (-1: this one), and ``unseen`` says where its outputs may lie. ``output_id`` (empty:
    not said) is the id of the topic that the route delivers to, of which there may be a namesake by now.
    """

    worker: str
    transactional_id: str
    instance: bytes
    n: int
    previous: int
    inputs: list[InputRange]
    outputs: list[OutputStart]
    closed: int = -1
    since: int = -1
    unseen: list[OutputStart] = field(default_factory=list)
    output_id: bytes = b""


@dataclass(frozen=True, slots=True)
class Seal:
    """Closes sealed transaction ``n``: written by its own instance as its last record."""

    worker: str
    instance: bytes
    n: int


@dataclass(frozen=True, slots=True)
class SettleSeal:
    """Says how (instance, n) ended where its own seal is missing; ``worker`` is who found out."""

    worker: str
    instance: bytes
    n: int


Entry = Page | Begin | Seal | SettleSeal | RangeEntry

_SEAL_KINDS: Final[dict[bytes, type[Seal | SettleSeal]]] = {b"s": Seal, b"t": SettleSeal}


def encode(entry: Entry, page_number: int = 0) -> tuple[bytes, bytes]:
    """Return key and value of a monitor record; ``page_number`` counts a transaction's pages per partition."""
    if isinstance(entry, Page):
        return _page_key(entry.instance, entry.n, page_number), codec("monitor_page").encode(
            _page_record(entry)
        )
    if isinstance(entry, RangeEntry):
        return encode_key(entry.key), encode_value(entry)
    if isinstance(entry, Begin):
        return _key(b"b", entry), codec("monitor_begin").encode(_begin_record(entry))
    kind = b"s" if isinstance(entry, Seal) else b"t"
    record = {"worker": entry.worker, "instance": entry.instance, "n": entry.n}
    return _key(kind, entry), codec("monitor_seal").encode(record)


def decode(key: bytes | None, value: bytes | None) -> Entry | None:
    """Read a monitor record; None for tombstones and for what is no record of the relay's.

    Raises UnknownRecord if the value is broken or does not belong under its key, and OtherVersion, which nobody who decides
    may pass over, if a version wrote it that has another schema or another kind of entry.
    """
    kind = (key or b"")[:1]
    if key is None or value is None:
        return None
    if kind not in (b"e", b"b", b"s", b"t", b"r"):
        if is_framed(value):
            raise OtherVersion(f"a record of kind {kind!r}: another version of the relay wrote it")
        return None
    if kind == b"e":
        return _read_page(key, value)
    if kind == b"r":
        return _read_range(key, value)
    entry: Begin | Seal | SettleSeal
    if kind == b"b":
        entry = _read_begin(codec("monitor_begin").decode(value))
    else:
        entry = _SEAL_KINDS[kind](**codec("monitor_seal").decode(value))
    if key != _key(kind, entry):
        raise UnknownRecord(f"a monitor record of {entry.worker} lies under the key of another one")
    return entry


def frames() -> frozenset[bytes]:
    """Return what the values of entries begin with, those of earlier versions included."""
    names = ("monitor_page", "monitor_range", "monitor_begin", "monitor_seal")
    return frozenset().union(*(codec(name).frames for name in names))


def transaction_of_page(key: bytes | None) -> tuple[bytes, int] | None:
    """Return (instance, n) of a page by its key alone; None for every other record."""
    if key is None or len(key) != _PAGE_KEY_BYTES or key[:1] != b"e":
        return None
    return key[1 : 1 + INSTANCE_BYTES], int.from_bytes(key[1 + INSTANCE_BYTES : -2], "big")


def pages(
    messages: Sequence[LogMessage],
    *,
    worker: str,
    instance: bytes,
    n: int,
    proof: Proof = Proof.SEALED,
    recovery: str | None = None,
    outcomes: bytes | None = None,
    replays: bytes = b"",
    destinations: Sequence[int] = (),
) -> Iterator[Page]:
    """Build the pages of messages: one or more for each log partition, rows in the order given.

    ``outcomes`` (None: all delivered), ``replays`` and ``destinations`` (empty: unknown) go by message.
    """
    for (topic, partition), places in _by_partition(messages):
        for start in range(0, len(places), PAGE_ROWS):
            part = places[start : start + PAGE_ROWS]
            rows = [messages[i] for i in part]
            yield Page(
                worker, instance, n, proof, recovery, topic, partition,
                digests=b"".join([row.digest for row in rows]),
                contents=b"".join([row.content for row in rows]),
                offsets=[row.offset for row in rows],
                outcomes=bytes(len(rows)) if outcomes is None else bytes([outcomes[i] for i in part]),
                replays=bytes([replays[i] for i in part]) if replays else b"",
                destinations=[destinations[i] for i in part] if destinations else (),
            )  # fmt: skip


def select(page: Page, rows: Sequence[int]) -> Page:
    """Return a page of the given rows of a page."""
    return replace(
        page,
        digests=b"".join([page.digests[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES] for i in rows]),
        contents=b"".join([page.contents[i * CONTENT_BYTES : (i + 1) * CONTENT_BYTES] for i in rows]),
        offsets=[page.offsets[i] for i in rows],
        outcomes=bytes([page.outcomes[i] for i in rows]),
        replays=bytes([page.replays[i] for i in rows]) if page.replays else b"",
        destinations=[page.destinations[i] for i in rows] if page.destinations else (),
    )


def _by_partition(messages: Sequence[LogMessage]) -> Iterator[tuple[LogPartition, Sequence[int]]]:
    names = {(message.topic, message.partition) for message in messages}
    if len(names) == 1:
        yield LogPartition(*names.pop()), range(len(messages))
        return
    groups: dict[tuple[str, int], list[int]] = {name: [] for name in names}
    for i, message in enumerate(messages):
        groups[message.topic, message.partition].append(i)
    for name in sorted(groups):
        yield LogPartition(*name), groups[name]


def _page_key(instance: bytes, n: int, page_number: int) -> bytes:
    return b"e" + instance + n.to_bytes(8, "big") + page_number.to_bytes(2, "big")


def _key(kind: bytes, entry: Begin | Seal | SettleSeal) -> bytes:
    return kind + entry.worker.encode() + entry.instance


def _page_record(page: Page) -> dict[str, Any]:
    return {
        "worker": page.worker,
        "instance": page.instance,
        "n": page.n,
        "proof": page.proof.value,
        "recovery": page.recovery,
        "topic": page.topic,
        "partition": page.partition,
        "digests": page.digests,
        "contents": page.contents,
        "offsets": page.offsets,
        "outcomes": page.outcomes,
        "replays": page.replays,
        "destinations": page.destinations,
    }


def _begin_record(begin: Begin) -> dict[str, Any]:
    return {
        "worker": begin.worker,
        "transactional_id": begin.transactional_id,
        "instance": begin.instance,
        "n": begin.n,
        "previous": begin.previous,
        "inputs": [entry._asdict() for entry in begin.inputs],
        "outputs": [entry._asdict() for entry in begin.outputs],
        "closed": begin.closed,
        "since": begin.since,
        "unseen": [entry._asdict() for entry in begin.unseen],
        "output_id": begin.output_id,
    }


def _read_page(key: bytes, value: bytes) -> Page:
    record = codec("monitor_page").decode(value)
    record["proof"] = Proof(record["proof"])
    page = Page(**record)
    rows = page.rows
    if (
        len(page.digests) != rows * DIGEST_BYTES
        or len(page.contents) != rows * CONTENT_BYTES
        or len(page.outcomes) != rows
        or len(page.replays) not in (0, rows)
        or len(page.destinations) not in (0, rows)
    ):
        raise UnknownRecord(f"the columns of a page of {page.worker} differ in length")
    if len(key) != _PAGE_KEY_BYTES or key[:-2] != _page_key(page.instance, page.n, 0)[:-2]:
        raise UnknownRecord(f"a page of {page.worker} lies under the key of another transaction")
    return page


def _read_range(key: bytes, value: bytes) -> RangeEntry:
    entry = decode_value(value)
    if key != encode_key(entry.key):
        raise UnknownRecord("a publisher's range lies under the key of another one")
    return entry


def _read_begin(record: dict[str, Any]) -> Begin:
    record["inputs"] = [InputRange(**entry) for entry in record["inputs"]]
    record["outputs"] = [OutputStart(**entry) for entry in record["outputs"]]
    record["unseen"] = [OutputStart(**entry) for entry in record["unseen"]]
    return Begin(**record)
