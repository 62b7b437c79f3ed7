"""Kafka as the auditor reads it: records become facts of the ledger, effects, dead letters and evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from zlib import crc32

import orjson

from relay.audit.evidence import Evidence
from relay.audit.ledger import Fact, Ledger, Outcome
from relay.audit.letters import Letters, named
from relay.audit.memory import Memory
from relay.audit.stored_ids import AsStored
from relay.capture.outcomes import is_marker
from relay.config.model import RouteConfig, TableDestination
from relay.kafka.scan import Scan, Scanned, broker_time
from relay.message import identity
from relay.message.envelope import (
    CAPTURE,
    DEAD_CODE,
    DEAD_REPLAY,
    DEAD_ROUTE,
    ID,
    OUT_DIGEST,
    OUT_INSTANCE,
    RESOURCE,
    RESOURCE_BYTES_MAX,
    SOURCE,
    capture_of,
)
from relay.message.errors import ConfigError
from relay.message.record import LogPartition, headers_if_any, lane_name, of_other_version
from relay.message.schemas import OtherVersion, UnknownRecord, codec
from relay.monitor import entries
from relay.monitor.redrive import Order, Orders
from relay.monitor.resolution import Resolutions

Batches = Iterable[list[Scanned]]
Match = Callable[[Mapping[str, bytes], bytes], bytes | None]
"""(headers, topic) -> what a destination knows the message by, None if nothing."""



class Identity:
    """The route's identity rules, as every reader here applies them."""

    def __init__(self, route: RouteConfig, topic_ids: Mapping[str, bytes]) -> None:
        if any(rule.startswith("avro:") for rule in route.identity):
            raise ConfigError(
                f"routes.{route.name}.identity = {route.identity}: this version cannot verify avro: identities"
            )
        self._rules = identity.rules(route.identity)
        self._topic_ids = topic_ids

    def of_log(
        self, headers: Mapping[str, bytes], name: str, partition: int, offset: int, value: bytes | None
    ) -> bytes:
        """Return the digest of a log record: by the first rule that finds something, else by position."""
        return self._ruled(headers, name.encode(), value) or identity.position_digest(
            self._topic_ids[name], partition, offset
        )

    def of_output(self, headers: Mapping[str, bytes], value: bytes | None, place: bytes) -> bytes:
        """Return the digest of an output record: by its own headers; only a position must be taken from the relay's.

        A record without any identity is its own: ``place`` names it.
        """
        if headers.get(SOURCE) or len(self._topic_ids) == 1:
            found = self._ruled(headers, next(iter(self._topic_ids)).encode(), value)
            if found is not None:
                return found
        try:
            return bytes.fromhex(headers[OUT_DIGEST].decode())
        except (KeyError, ValueError, AttributeError):
            return identity.digest(b"?", place)

    def _ruled(self, headers: Mapping[str, bytes], topic: bytes, value: bytes | None) -> bytes | None:
        for rule in self._rules:
            found = rule(headers, topic, value)
            if found is not None:
                return found
        return None


def content_of(key: bytes | None, value: bytes | None) -> int:
    """Return a checksum of key and value: of where one ends, and of whether there is any, as well."""
    start = 0 if key is None else 1 + len(key)
    return crc32(value or b"", crc32(key or b"", start) ^ (value is None))


def fill(
    ledger: Ledger, batches: Batches, route: RouteConfig, identify: Identity, match: Match | None
) -> None:
    """Put the log's records into the ledger."""
    shares = isinstance(route.to, TableDestination) and shares_rows(route.to)
    names = [(p.topic, p.partition, p.topic.encode()) for p in ledger.partitions]
    by_source, by_key = route.order == "publisher", route.order == "key"
    of_log, add = identify.of_log, ledger.add
    for records in batches:
        for place, offset, message in records:
            headers = _headers(message)
            name, partition, topic = names[place]
            key, value = message.key(), message.value()
            if CAPTURE in headers and is_marker(key, headers):
                _mark(ledger, key, value)
                continue
            lane = (headers.get(SOURCE) or topic) if by_source else (key or b"") if by_key else b""
            fact = Fact(
                place,
                offset,
                of_log(headers, name, partition, offset, value),
                lane_name(lane),
                content_of(key, value),
                match(headers, topic) if match else None,
                id_match(headers.get(ID)) if shares else None,
            )
            capture = capture_of(headers[CAPTURE]) if CAPTURE in headers else None
            if capture is None:
                add(fact)
            else:
                resource = headers.get(RESOURCE) or b""
                ledger.hold(fact, capture, resource if len(resource) <= RESOURCE_BYTES_MAX else b"")


def names(batches: Batches, match: Match) -> Iterator[bytes]:
    """Yield what a destination knows the messages of a log by, as far as it knows them by anything."""
    for records in batches:
        for _place, _offset, message in records:
            name = match(_headers(message), (message.topic() or "").encode())
            if name is not None:
                yield name


def outputs(
    batches: Batches, partitions: Sequence[LogPartition], identify: Identity, foreign: set[bytes], memory: Memory
) -> Iterator[tuple[int, int, bytes, int]]:
    """Yield the effects of an output topic, and show ``memory`` how old they are.

    Records of another route's producer instances are left out.
    """
    strangers = {instance.hex().encode() for instance in foreign}
    for records in batches:
        for place, offset, message in records:
            headers = _headers(message)
            if strangers and headers.get(OUT_INSTANCE) in strangers:
                continue
            if memory.asks_records:
                memory.take(partitions[place], headers)
            key, value = message.key(), message.value()
            where = b"%s/%d/%d" % (partitions[place].topic.encode(), partitions[place].partition, offset)
            yield (
                place,
                offset,
                identify.of_output(headers, value, where),
                content_of(key, value),
            )


def dead_letters(batches: Batches, route: str, into: Letters) -> None:
    """Put a route's dead letters, and what takes them back, into ``into``."""
    wanted = route.encode()
    for records in batches:
        for _place, _offset, message in records:
            headers = _headers(message)
            if headers.get(DEAD_ROUTE) != wanted:
                continue
            number = headers.get(DEAD_REPLAY) or b""
            into.take(
                named(message.key() or b""),
                int(number) if number.isdigit() and len(number) <= 3 else 0,
                (headers.get(DEAD_CODE) or b"").decode("utf-8", "replace"),
            )


def monitor(batches: Batches, known: Evidence | None = None) -> tuple[Evidence, int]:
    """Return what a monitor topic proves, beyond what is known of it, and how many of its records cannot be read.

    Raises Stopped for one of another version.
    """
    evidence, broken = known.copy() if known is not None else Evidence(), 0
    other = None
    for records in batches:
        for place, _offset, message in records:
            entry = None
            try:
                entry = entries.decode(message.key(), message.value())
            except OtherVersion:
                # Raised behind the loop: here the client would be closed under the reading.
                other = other or of_other_version(message.topic(), message.partition(), message.offset())
            except UnknownRecord:
                broken += 1
            if entry is not None:
                evidence.take(place, entry, broker_time(message))
    if other is not None:
        raise other
    return evidence, broken


class FirstStart:
    """Where a route first started, as the control topic recorded it; the first record counts."""

    def __init__(self, batches: Batches = (), route: str = "", topic_ids: Mapping[str, bytes] | None = None) -> None:
        key, ids = f"start/{route}".encode(), topic_ids or {}
        found = (message.value() for records in batches for _place, _offset, message in records if message.key() == key)
        value = next(found, None)
        recorded = orjson.loads(value or b"{}").get("starts", {})
        self.is_recorded = value is not None
        self.offsets = {
            LogPartition(topic, int(partition)): offset
            for topic, topic_id in ids.items()
            for partition, offset in recorded.get(f"{topic}/{topic_id.hex()}", {}).items()
        }
        self.made_again = {key.split("/")[0] for key in recorded} & ids.keys() - {place.topic for place in self.offsets}
        """Topics that were others of their names then: the route has delivered nothing of those that there are."""


def resolutions(batches: Batches) -> Resolutions:
    """Return what persons decided, and whether an owner obeyed, as the control topic has it."""
    found = Resolutions()
    for records in batches:
        for _place, _offset, message in records:
            found.add(message.key() or b"", message.value())
    return found


def orders(batches: Batches) -> list[Order]:
    """Return the orders to redrive that have not ended, as the control topic has them."""
    found = Orders()
    for records in batches:
        for _place, _offset, message in records:
            found.add(message.key() or b"", message.value())
    return list(found.open.values())


def describe(scan: Scan, topic: str, partition: int, offset: int) -> tuple[str, str]:
    """Return (id, source) of the record at an offset, empty where it has none or is gone."""
    message = scan.one(LogPartition(topic, partition), offset)
    headers = _headers(message) if message is not None else {}
    return tuple((headers.get(name) or b"").decode("utf-8", "replace") for name in (ID, SOURCE))  # type: ignore[return-value]


def id_column(to: TableDestination) -> str | None:
    """Return the column by which the rows of a table are known: None if by nothing that the log has too.

    An upsert keeps one row of many messages, unless its key is the id.
    """
    mapped = {source: column for column, source in to.columns.items()}
    if "ce:id" not in mapped or to.mode == "sql":
        return None
    if to.mode == "upsert" and not {to.columns[column] for column in to.key} <= {"ce:id", "ce:source"}:
        return None
    if to.mode == "upsert" and mapped["ce:id"] not in to.key:
        return None
    return mapped["ce:id"]


def is_sourced(to: TableDestination) -> bool:
    """Do the rows say which source each is of, so that they have the monitor's names?"""
    return "ce:source" in to.columns.values()


def table_match(to: TableDestination, as_stored: AsStored | None) -> Match:
    """Return how the rows of a table are known: with a column from ``ce:source`` by (source, id), else by the id alone."""
    sourced = is_sourced(to)

    def match(headers: Mapping[str, bytes], topic: bytes) -> bytes | None:
        identifier = headers.get(ID)  # a header's value may also be null
        if as_stored is not None and identifier:
            headers = {**headers, ID: as_stored(identifier.decode("utf-8", "replace")).encode()}
        return identity.cloudevents(headers, topic, None) if sourced else id_match(headers.get(ID))

    return match


def shares_rows(to: TableDestination) -> bool:
    """Whether messages of one id and different sources have one row: an upsert by the id alone keeps the last of them."""
    return to.mode == "upsert" and {to.columns[column] for column in to.key} == {"ce:id"}


def id_match(identifier: bytes | None) -> bytes | None:
    """Return what a message is known by where only its id is."""
    return identity.digest(b"i", identifier) if identifier else None


def row_match(
    ledger: Ledger,
    topics: Sequence[str],
    identifier: str,
    source: str | None,
    *,
    sourced: bool,
    met: Callable[[bytes], bool] = lambda _match: False,
) -> bytes:
    """Return what a row is known by; a row without a source came from a message without one.

    Of several topics it is the first whose message is not ``met``: messages without a source may share their ids.
    """
    if not sourced:
        return id_match(identifier.encode()) or b""
    candidates = [source] if source else topics
    matches = [
        identity.cloudevents({ID: identifier.encode(), SOURCE: candidate.encode()}, b"", None) or b""
        for candidate in candidates
    ]
    known = [match for match in matches if match in ledger.matches]
    return next((match for match in known if not met(match)), (known or matches)[0])


def _headers(message: Any) -> dict[str, bytes]:
    return dict(headers_if_any(message))


def _mark(ledger: Ledger, key: bytes | None, value: bytes | None) -> None:
    """Take a marker: a committed one only if its nonce is the capture's, since anyone may write to the log."""
    try:
        record = codec("outcome").decode(value or b"")
    except UnknownRecord:
        return
    capture = record["capture"]
    if capture != key:
        return
    if record["outcome"] == "ABORTED":
        ledger.marker(capture, Outcome.ABORTED)
    elif record["nonce"] and identity.capture_id(record["nonce"]) == capture:
        ledger.marker(capture, Outcome.COMMITTED)
