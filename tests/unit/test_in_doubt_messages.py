"""What a person is shown of the messages behind a thing in doubt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from relay.control.in_doubt_messages import messages
from relay.message import envelope
from relay.message.record import LogPartition
from relay.monitor.resolution import Kind, Subject

CAPTURE = bytes(range(16))
PLACE = LogPartition("orders", 1)


class _Log:
    """One message of the capture, at offset 86; counts how often it is read."""

    def __init__(self) -> None:
        self.reads = 0

    def watermarks(self, place: LogPartition) -> tuple[int, int]:
        return 0, 87

    def read(self, ranges: dict[LogPartition, tuple[int, int]]) -> list[list[Any]]:
        self.reads += 1
        headers = [(envelope.ID, b"a-0"), (envelope.SOURCE, b"/ghost"), (envelope.CAPTURE, CAPTURE.hex().encode())]
        return [[SimpleNamespace(headers=lambda: headers, key=lambda: b"k", offset=lambda: 86)]]


def test_a_message_for_which_several_routes_wait_is_read_and_shown_once() -> None:
    log = _Log()
    items: Any = [SimpleNamespace(places=((PLACE, 86),)) for _ in range(6)]
    reader: Any = SimpleNamespace(reader=log)

    found = messages(reader, items, Subject(Kind.CAPTURE, capture=CAPTURE))

    assert ([one["place"] for one in found], log.reads) == (["orders[1]@86"], 1)
