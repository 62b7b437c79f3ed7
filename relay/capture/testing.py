"""What tests of code that captures need: a Capture whose messages stay in memory, with a database of the test's own and no broker.

    def test_an_order_is_announced(tmp_path):
        with CaptureInMemory(f"sqlite:///{tmp_path}/shop.db") as capture:
            place_order(capture, 42)
        assert [(one.topic, one.key, one.data) for one in capture.published] == [("orders", b"42", {"id": 42})]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from relay.capture.capture import Capture
from relay.capture.message import JSON
from relay.capture.outcomes import Placed, is_marker
from relay.capture.publisher import Publisher
from relay.kafka.appender import DEFAULT_MESSAGE_BYTES, Appender, Receipt, Record
from relay.kafka.topics import TopicFacts
from relay.message import envelope
from relay.resources import open_resource
from relay.resources.port import Resource
from relay.world import schedule

LOCK_TIMEOUT_S: Final = 1.0


class Published(NamedTuple):
    """A message of a block that was committed, as the log would have it."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]

    @property
    def id(self) -> str:
        """Its ``ce_id``."""
        return self.headers[envelope.ID].decode()

    @property
    def type(self) -> str:
        """Its ``ce_type``."""
        return self.headers[envelope.TYPE].decode()

    @property
    def data(self) -> Any:
        """The value, read if it is JSON."""
        is_json = self.value is not None and self.headers[envelope.CONTENT_TYPE] == JSON
        return orjson.loads(self.value or b"") if is_json else self.value


class CaptureInMemory(Capture):
    """A Capture on a test's own database, in which it makes the relay's tables, and whose log is a list.

    ``database`` is an address as of ``[resources]``. ``topics`` are those that exist, with their partitions; without it any
    topic does, with one. Blocks, savepoints and their errors are those of every Capture; the log takes everything.
    """

    def __init__(
        self, database: str, *, source: str = "/test", resource: str = "test", topics: Mapping[str, int] | None = None
    ) -> None:
        self._log = _Log(topics)
        opened = open_resource(resource, database, LOCK_TIMEOUT_S)
        opened.create_tables()
        super().__init__(kafka={}, resource=opened, source=source)

    @property
    def published(self) -> list[Published]:
        """The messages of the committed blocks, block after block as they were committed."""
        return list(self._log.shown)

    def _publishing(self, resource: Resource, source: str, **given: Any) -> Publisher:
        return _PublisherInMemory(self._log, resource, source, **given)


class _PublisherInMemory(Publisher):
    """Appends to a list, and shows there what was committed."""

    def __init__(self, log: _Log, resource: Resource, source: str, **given: Any) -> None:
        self._log = log
        super().__init__(resource, source, **given)

    def mark(self, capture: bytes, nonce: bytes | None, placed: list[Placed]) -> None:
        """Show the messages of a committed block at once, of whose marker nobody else hears."""
        self._log.decide(capture, committed=nonce is not None)
        super().mark(capture, nonce, placed)

    def _appending(self, kafka: Mapping[str, str], relay: str | None) -> Appender:
        del kafka, relay
        return self._log


class _Log(Appender):
    """Takes records in the producer's place; messages show when their capture is decided. What it is asked of topics is as there."""

    def __init__(self, topics: Mapping[str, int] | None) -> None:  # nothing of a producer's
        self._relay = None
        self._facts = {}
        self._message_bytes = DEFAULT_MESSAGE_BYTES
        self._given = topics
        self._lock = schedule.lock()
        self._held: dict[str, list[Published]] = {}
        self.shown: list[Published] = []

    def append(self, records: Sequence[Record], receipt: Receipt, deadline: float) -> None:
        """Take the records."""
        del deadline
        for record in records:
            headers = dict(record.headers)
            if not is_marker(record.key, headers):
                capture = headers[envelope.CAPTURE].decode()
                with self._lock:
                    self._held.setdefault(capture, []).append(Published(record.topic, record.partition, record.key, record.value, headers))
            receipt.told(None, None)

    def decide(self, capture: bytes, *, committed: bool) -> None:
        """Show a capture's messages, or drop them."""
        with self._lock:
            found = self._held.pop(capture.hex(), [])
            self.shown += found if committed else []

    def describe(self, names: Sequence[str], wait_s: float = 0.0) -> dict[str, TopicFacts]:
        """Return the topics that exist."""
        del wait_s
        known = dict.fromkeys(names, 1) if self._given is None else self._given
        return {name: TopicFacts(name, bytes(16), known[name], 1) for name in names if name in known}

    def _fit(self) -> None:
        """There is no batch to be too large."""

    def close(self) -> None:
        """Nothing is open."""
