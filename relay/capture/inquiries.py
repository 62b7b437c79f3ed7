"""Inquiries: a relay that cannot ask a publisher's database asks its process, which answers with the marker.

The answer is what any resolver would write, and may be given any number of times: the decision row decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from relay.capture.outcomes import resolved_marker
from relay.capture.resolver import settle
from relay.kafka.appender import Appender, Receipt, Record
from relay.message.envelope import ResourceName
from relay.message.errors import CaptureError, ConfigError
from relay.message.record import LogPartition
from relay.message.schemas import UnknownRecord, codec
from relay.resources.port import DecisionRow, Decisions, RowLocked
from relay.world import clock
from relay.world.crash import crash_point

TURN_S: Final = 5.0
"""How long a turn lasts at most, but for the question under way: each held row costs the wait for its lock."""
WAITING_MAX: Final = 10_000
"""Inquiries kept at once; those beyond are asked again by their relay."""
PLACES_MAX: Final = 10_000
"""Partitions kept for one capture: each worker that waits for it asks for its own."""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """How did this capture end? ``places`` are the log partitions whose readers wait for a marker."""

    capture: bytes
    resource: ResourceName
    places: list[LogPartition]
    asked_by: str


def encode_inquiry(inquiry: Inquiry) -> tuple[bytes, bytes]:
    """Return key and value of an inquiry."""
    record = {
        "capture": inquiry.capture,
        "resource": inquiry.resource.encode().decode(),
        "places": [place._asdict() for place in inquiry.places],
        "asked_by": inquiry.asked_by,
    }
    return inquiry.capture, codec("inquiry").encode(record)


def decode_inquiry(key: bytes | None, value: bytes | None) -> Inquiry | None:
    """Return the inquiry that a record is; None for anything else."""
    if key is None or value is None:
        return None
    try:
        record = codec("inquiry").decode(value)
    except UnknownRecord:
        return None
    resource = ResourceName.decode(record["resource"].encode())
    if record["capture"] != key or resource is None:
        return None
    return Inquiry(key, resource, [LogPartition(**place) for place in record["places"]], record["asked_by"])


class Inquiries(Protocol):
    """The topic, read from its beginning on."""

    def poll(self) -> list[tuple[bytes | None, bytes | None]]:
        """Return the records that came since last asked; does not wait. Raises Unreachable."""

    def close(self) -> None:
        """Stop reading."""


class Answering:
    """Answers the inquiries about one database. For one thread, which calls ``turn`` again and again."""

    def __init__(
        self,
        open_inquiries: Callable[[], Inquiries],
        appender: Appender,
        source: bytes,
        resource: ResourceName,
        append_timeout_s: float,
    ) -> None:
        self._open = open_inquiries
        self._inquiries: Inquiries | None = None
        self._appender = appender
        self._source = source
        self._resource = resource
        self._append_timeout_s = append_timeout_s
        self._waiting: dict[bytes, Inquiry] = {}

    def turn(self, decisions: Callable[[], Decisions]) -> None:
        """Take new inquiries and answer what can be answered; the rest waits for the next turn.

        Raises Unreachable, ConfigError; what was not answered then is asked again by whoever waits for it.
        """
        if self._inquiries is None:
            self._inquiries = self._open()
        for key, value in self._inquiries.poll():
            inquiry = decode_inquiry(key, value)
            # A copy of the database beside its original has another uuid: only the original answers.
            if inquiry is not None and inquiry.resource.uuid == self._resource.uuid and len(self._waiting) < WAITING_MAX:
                self._waiting[inquiry.capture] = _together(self._waiting.get(inquiry.capture), inquiry)
        if not self._waiting:
            return
        connection = decisions()
        known = connection.read(list(self._waiting))
        deadline = clock.monotonic() + TURN_S
        for inquiry in list(self._waiting.values()):
            if clock.monotonic() >= deadline:
                return
            row = known.get(inquiry.capture) or self._settle(connection, inquiry.capture)
            if row is None:
                # Behind the others: blocks that stay open must not use up every turn.
                self._waiting[inquiry.capture] = self._waiting.pop(inquiry.capture)
            else:
                # Also without an acknowledgement: its relay asks again, and what nobody can answer must not keep
                # the place of what somebody can.
                del self._waiting[inquiry.capture]
                self._answer(inquiry, row)

    def close(self) -> None:
        """Stop reading; what is not answered is asked again."""
        if self._inquiries is not None:
            self._inquiries.close()

    def _settle(self, decisions: Decisions, capture: bytes) -> DecisionRow | None:
        try:
            return settle(decisions, capture)
        except RowLocked:
            return None  # Retry at the next turn: the capture's own block is still open.

    def _answer(self, inquiry: Inquiry, row: DecisionRow) -> None:
        crash_point("inquiry.answering")
        nonce = row.nonce if row.committed else None
        records = self._markers(inquiry, nonce)
        receipt = Receipt(len(records))
        deadline = clock.monotonic() + self._append_timeout_s
        try:
            self._appender.append(records, receipt, deadline)
        except CaptureError:
            return  # Retry, when it is asked again: a marker may be written any number of times.
        if records:
            receipt.wait(deadline - clock.monotonic())

    def _markers(self, inquiry: Inquiry, nonce: bytes | None) -> Sequence[Record]:
        value, headers = resolved_marker(inquiry.capture, nonce, self._source, self._resource)
        return [
            Record(place.topic, place.partition, inquiry.capture, value, headers)
            for place in inquiry.places
            if self._exists(place)
        ]

    def _exists(self, place: LogPartition) -> bool:
        try:
            return 0 <= place.partition < self._appender.topic(place.topic).partitions
        except ConfigError:
            return False  # Stop asking for it: no log topic of that name takes markers.


def _together(known: Inquiry | None, asked: Inquiry) -> Inquiry:
    """Return an inquiry for what both name: workers find a capture overdue in the same moment, each in its own partitions."""
    places = list(dict.fromkeys([*(known.places if known is not None else ()), *asked.places]))
    return replace(asked, places=places) if len(places) <= PLACES_MAX else asked
