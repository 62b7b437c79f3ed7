"""The messages behind a thing in doubt, read from the log: whoever must decide sees what they decide about."""

from __future__ import annotations

from typing import Any, Final

from relay.capture.outcomes import is_marker
from relay.control.in_doubt_reading import InDoubtReader, Item
from relay.message import envelope
from relay.message.record import LogPartition, headers_if_any
from relay.monitor.resolution import Kind, Subject

SHOWN_MAX: Final = 100


def messages(reader: InDoubtReader, items: list[Item], subject: Subject) -> list[dict[str, Any]]:
    """Return up to 100 messages: place, id, source and capture. Payloads are not shown."""
    if subject.kind is Kind.LOST:
        return []
    if subject.kind is Kind.DELIVERY:
        spans = [(subject.place, subject.first, subject.next)]
    else:
        # Every route that waits has an item of its own for the same capture: a place is read, and shown, once.
        firsts: dict[LogPartition, int] = {}
        for place, first in ((place, first) for item in items for place, first in item.places):
            firsts[place] = min(first, firsts.get(place, first))
        spans = [(place, first, reader.reader.watermarks(place)[1]) for place, first in firsts.items()]
    found: list[dict[str, Any]] = []
    for place, first, following in spans:
        low, high = reader.reader.watermarks(place)
        for records in reader.reader.read({place: (max(low, first), min(high, following))}):
            for record in records:
                shown = _message(place, record)
                if shown["capture"] == subject.capture.hex() or subject.kind is Kind.DELIVERY:
                    found.append(shown)
                if len(found) >= SHOWN_MAX:
                    return found
    return found


def _message(place: LogPartition, record: Any) -> dict[str, Any]:
    headers = dict(headers_if_any(record))

    def said(name: str) -> str | None:
        raw = headers.get(name)
        return raw.decode("utf-8", "replace") if raw is not None else None

    return {
        "place": f"{place.topic}[{place.partition}]@{record.offset()}",
        "id": said(envelope.ID),
        "source": said(envelope.SOURCE),
        "capture": said(envelope.CAPTURE),
        "marker": is_marker(record.key(), headers),
    }
