"""Deciding by a person: refused wherever evidence decides, or somebody has decided already; else written down.

Every refusal is a sentence that shows the evidence.
"""

from __future__ import annotations

import shlex
from typing import Final

from relay.capture.decisions import unit_of
from relay.capture.outcomes import Marker, decode_marker
from relay.control.in_doubt_reading import InDoubtReader, Item
from relay.kafka.reading import PartitionReader
from relay.message.envelope import ResourceName
from relay.message.errors import CheckFailed, ConfigError, Unreachable
from relay.message.record import LogPartition, headers_if_any
from relay.monitor.resolution import Kind, Resolution, Span, Subject, Told, uncovered
from relay.resources import open_resource
from relay.world import clock, randomness

REASON_CHARACTERS_MAX: Final = 1000


def resolve(reader: InDoubtReader, subject: Subject, told: Told, *, who: str, reason: str) -> Resolution:
    """Write the resolution and return it.

    Raises CheckFailed (refused: with the evidence, or with the name of the resolution that holds), ConfigError, Stopped.
    """
    if not reason.strip():
        raise ConfigError("--reason is empty; say why, for whoever reads the audit record later")
    items = reader.items()
    earlier = reader.decided.about(subject)
    if earlier is not None:
        raise CheckFailed(_already(subject, earlier, obeyed=reader.decided.is_obeyed(earlier)))
    seen = evidence(reader, items, subject, told)
    made = Resolution(randomness.uuid_bytes(), subject, told, who, reason[:REASON_CHARACTERS_MAX], clock.wall_ms(), seen)
    holds = reader.book.write(made)
    if holds.id != made.id:
        raise CheckFailed(_already(subject, holds, obeyed=False))
    return made


def evidence(reader: InDoubtReader, items: list[Item], subject: Subject, told: Told) -> str:
    """Return why no evidence can decide about the subject.

    Raises CheckFailed with the evidence if any can, and Stopped if another version has written what there is.
    """
    mine = [item for item in items if item.subject.overlaps(subject)]
    if subject.kind is Kind.CAPTURE:
        return _of_capture(reader, mine, subject)
    if subject.route not in reader.config.routes:
        raise ConfigError(f"{subject.text}: there is no route {subject.route!r} in {reader.config.path}")
    if subject.route in reader.unreadable:
        raise reader.unreadable[subject.route]
    if subject.kind is Kind.LOST:
        return _of_lost(reader, mine, subject, told)
    return _of_delivery(mine, subject)


def _already(subject: Subject, earlier: Resolution, *, obeyed: bool) -> str:
    state = "and was obeyed" if obeyed else "and holds"
    return (
        f"{subject.text} is decided already: {earlier.reference} of {earlier.subject.text} says "
        f"{earlier.told.name.lower()}, by {earlier.who} ({earlier.reason!r}), came first {state}"
    )


def _of_capture(reader: InDoubtReader, items: list[Item], subject: Subject) -> str:
    if not items:
        raise CheckFailed(
            f"{subject.text}: no worker shows a message that waits for it; it is decided, or no worker has read it yet"
        )
    item = max(items, key=lambda one: one.needs_person)
    said = _resource_says(reader, item.resource)
    found = _markers(reader.reader, item, subject.capture)
    proved = next((place for place, marker in found if marker.proved), None)
    if proved is not None:
        raise CheckFailed(f"{subject.text} is committed: the marker at {proved} proves it by the capture's nonce")
    name = ResourceName.decode(item.resource.encode()) if item.resource else None
    if name is not None and (unit := unit_of(name)) is not None:
        raise CheckFailed(
            f"{subject.text} is of run {name.uuid} of unit {unit}, which its query's next run ends; if that never comes, "
            f"`relay unit close CONFIG {shlex.quote(unit)} {shlex.quote(name.uuid)} --reason WHY` does"
        )
    if not item.needs_person:
        raise CheckFailed(f"{subject.text} can still be decided by evidence: {item.why}; wait, or ask again later")
    aborted = next((f"; an aborted marker that nobody can confirm lies at {place}" for place, one in found if not one.committed), "")
    return f"{said}; no committed marker in the log{aborted}"


def _resource_says(reader: InDoubtReader, named: str | None) -> str:
    """Return why the resource cannot decide; raises CheckFailed if it does, or will when it answers."""
    name = ResourceName.decode(named.encode()) if named else None
    if name is None:
        return "the messages name no resource"
    if name.name not in reader.config.resources:
        return f"resources.{name.name} ({name.uuid}) is not configured here"
    url = reader.config.resources[name.name].url.get_secret_value()
    try:
        decisions = open_resource(name.name, url).decisions()
        try:
            uuid = decisions.uuid()
        finally:
            decisions.close()
    except (Unreachable, ConfigError) as away:
        raise CheckFailed(
            f"resources.{name.name} decides, and does not answer now ({away}); bring it back, or, if it is gone for "
            "ever, take it out of the configuration first"
        ) from away
    if uuid == name.uuid:
        raise CheckFailed(
            f"resources.{name.name} is the database {uuid} that decides this capture, and it answers: the workers ask it"
        )
    return f"resources.{name.name} is another database: {uuid}, the messages name {name.uuid}"


def _markers(reader: PartitionReader, item: Item, capture: bytes) -> list[tuple[str, Marker]]:
    """Return the markers of a capture that lie behind its first message, wherever it is held."""
    found: list[tuple[str, Marker]] = []
    for place, first in item.places:
        low, high = reader.watermarks(place)
        for records in reader.read({place: (max(low, first), high)}):
            for record in records:
                if record.key() == capture:
                    marker = decode_marker(record.key(), record.value(), headers_if_any(record))
                    if marker is not None:
                        found.append((_at(place, record.offset()), marker))
    return found


def _of_lost(reader: InDoubtReader, items: list[Item], subject: Subject, told: Told) -> str:
    low = reader.reader.watermarks(subject.place)[0]
    name = f"{subject.place.topic}[{subject.place.partition}]"
    if subject.next > low:
        raise CheckFailed(f"{subject.text}: {name} begins at {low}, so offset {subject.next - 1} is still there to be read")
    if not items:
        raise CheckFailed(f"{subject.text}: the route is past these offsets, or a worker still has their payload")
    if told is Told.COMMIT:
        raise CheckFailed(f"{subject.text}: the payload is gone, so it cannot take effect; --abort passes it as lost")
    return f"{name} begins at {low}"


def _of_delivery(items: list[Item], subject: Subject) -> str:
    for item in items:
        if not item.needs_person:
            raise CheckFailed(f"{subject.text}: evidence decides {item.subject.text}: {item.why}")
    spans = [Span(item.subject.first, item.subject.next) for item in items]
    for span in uncovered(subject.first, subject.next, spans):
        raise CheckFailed(
            f"{subject.text}: offset {span.first} is not in doubt: it is proven by an entry that counts, lies below the "
            "route's position, or was never attempted"
        )
    return "; ".join(f"{item.subject.text}: {item.why} ({item.worker})" for item in items)


def _at(place: LogPartition, offset: int | None) -> str:
    return f"{place.topic}[{place.partition}]@{offset}"
