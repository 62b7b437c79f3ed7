"""How a capture ended, from whoever may say it: its resource, else its publisher's process, else a person.

A person is heard only where the resource is unknown here, or another database answers under its name; what was once
obeyed stays so, whatever is configured later, or two partitions of one capture could end differently. A process that has not
read the control topic yet, and cannot, knows of no such word, and believes the resource.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from relay.capture.inquiries import Inquiry, encode_inquiry
from relay.capture.outcomes import resolved_marker
from relay.capture.resolver import Resolution, State
from relay.message.envelope import Headers, ResourceName
from relay.message.errors import RelayError
from relay.message.record import LogPartition
from relay.monitor import resolution as decided
from relay.monitor.resolution import Resolutions, Told
from relay.run.book import ControlBook
from relay.run.resolving import Asks

log = structlog.get_logger("relay.asking")
ASK_AGAIN_S: Final = 30.0

Put = Callable[[LogPartition, bytes, bytes, Headers], None]
"""Given a partition, key, value and headers: append, and wait for nothing."""
_TOLD: Final = {Told.COMMIT: State.COMMITTED, Told.ABORT: State.ABORTED}


class AskingWithBook:
    """Asks the resources; where they cannot decide, looks whether a person did. For the resolver's thread."""

    def __init__(self, resolver: Asks, book: ControlBook) -> None:
        self._resolver = resolver
        self._book = book

    def resolve(self, captures: Sequence[tuple[bytes, ResourceName]]) -> dict[bytes, Resolution]:
        """Return what is known of each capture."""
        told = self._told()
        found: dict[bytes, Resolution] = {}
        for capture, _ in captures:
            final = told.capture(capture)
            if final is not None and told.is_obeyed(final):
                found[capture] = self._obey(final)
        left = [one for one in captures if one[0] not in found]
        if left:
            found.update(self._resolver.resolve(left))
        for capture, _ in left:
            word = told.capture(capture)
            if word is not None and found[capture].state is State.WRONG_RESOURCE:
                found[capture] = self._obey(word)
        return found

    def _told(self) -> Resolutions:
        try:
            return self._book.recent()
        except RelayError as away:
            # Retry: the resources can still be asked, and nobody's word is needed for that but one that was obeyed before.
            log.warning("resolutions not read", reason=str(away))
            return self._book.known_obeyed()

    def _obey(self, word: decided.Resolution) -> Resolution:
        state = _TOLD[word.told]
        self._book.obey(word, f"taken as {state.value}")
        return Resolution(state, detail=word.reference)


class Inquiring:
    """Asks publishers' processes by the topic of inquiries, now and then, as long as nobody else can tell."""

    def __init__(self, put: Callable[[bytes, bytes], None], asked_by: str) -> None:
        self._put = put
        self._asked_by = asked_by
        self._asked: dict[bytes, float] = {}
        self._forget_at = 0.0

    def ask(self, capture: bytes, resource: ResourceName, places: Iterable[LogPartition], now: float) -> None:
        """Ask about one capture unless that was done a short while ago."""
        if now - self._asked.get(capture, -ASK_AGAIN_S) < ASK_AGAIN_S:
            return
        if now >= self._forget_at:  # not at every question: thousands may be asked in one turn of the worker
            self._forget_at = now + ASK_AGAIN_S
            self._asked = {one: at for one, at in self._asked.items() if now - at < ASK_AGAIN_S}
        self._asked[capture] = now
        self._put(*encode_inquiry(Inquiry(capture, resource, list(places), self._asked_by)))


class AddingMarkers:
    """Adds the markers of captures that their decision rows have ended, for those who cannot ask (design section 4)."""

    def __init__(self, put: Put, source: str) -> None:
        self._put = put
        self._source = source.encode()

    def add(
        self, capture: bytes, resource: ResourceName, nonce: bytes | None, places: Iterable[LogPartition]
    ) -> None:
        """Append the marker to these partitions; committed if the nonce is given.

        One that does not arrive, as where the relay may not write to the log, is merely missing.
        """
        value, headers = resolved_marker(capture, nonce, self._source, resource)
        for place in places:
            self._put(place, capture, value, headers)
