"""What counts as an output of a transaction: its own stamp, whatever strangers write beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from relay.delivery.topic.stamped_outputs import gather_stamped, what_shows
from relay.delivery.topic.unshown import Outputs
from relay.message.record import LogPartition
from relay.monitor.entries import Begin, OutputStart
from tests.unit.test_intake import BrokenHeaders, Fake

INSTANCE, N, DIGEST = b"1" * 32, b"3", b"ab" * 16
STAMP: list[tuple[str, bytes | None]] = [("relay_instance", INSTANCE), ("relay_n", N), ("relay_digest", DIGEST)]


def test_the_stamp_of_the_transaction_names_the_message() -> None:
    found = {(INSTANCE, N): bytearray(b"before"), (INSTANCE, b"4"): bytearray()}
    gather_stamped(Fake(headers=STAMP), found)
    assert found == {(INSTANCE, N): b"before" + bytes.fromhex(DIGEST.decode()), (INSTANCE, b"4"): b""}


@pytest.mark.parametrize(
    "record",
    [
        BrokenHeaders(),
        Fake(headers=None),
        Fake(headers=[("relay_instance", None), *STAMP[1:]]),
        Fake(headers=[STAMP[0], ("relay_n", b"4"), STAMP[2]]),
        Fake(headers=STAMP[:2]),
        Fake(headers=[*STAMP[:2], ("relay_digest", None)]),
        Fake(headers=[*STAMP[:2], ("relay_digest", b"\xff\xff")]),
        Fake(headers=[*STAMP[:2], ("relay_digest", b"abcd")]),
    ],
    ids=["unreadable", "no headers", "null", "another n", "no digest", "null digest", "no hex", "short"],
)
def test_what_a_stranger_writes_is_not_taken_for_one_and_stops_nothing(record: Fake) -> None:
    found = {(INSTANCE, N): bytearray()}
    gather_stamped(record, found)
    assert found == {(INSTANCE, N): b""}


class CountingReader:
    """Partitions that start at offset 10; counts what is read."""

    def __init__(self, records: dict[LogPartition, list[Fake]]) -> None:
        self.records = records
        self.spans: list[dict[LogPartition, tuple[int, int]]] = []

    def watermarks(self, _partition: LogPartition) -> tuple[int, int]:
        return 10, 90

    def read(self, ranges: Mapping[LogPartition, tuple[int, int]]) -> Iterator[list[Fake]]:
        self.spans.append(dict(ranges))
        yield from (self.records[place] for place in ranges)


def test_the_outputs_of_many_torn_transactions_are_read_once() -> None:
    def output(number: int) -> Fake:
        stamp = [("relay_instance", bytes([number]) * 16), ("relay_n", N), ("relay_digest", b"%032x" % number)]
        return Fake(headers=[(stamp[0][0], stamp[0][1].hex().encode()), *stamp[1:]])

    def begin(number: int, offset: int) -> Begin:
        return Begin("w", f"t{number}", bytes([number]) * 16, int(N), 2, [], [OutputStart("out", 0, offset), OutputStart("dead", 0, 40)])

    begins = {(one.instance, one.n): one for one in (begin(1, 20), begin(2, 15), begin(3, 30), begin(4, 5))}
    out, dead = LogPartition("out", 0), LogPartition("dead", 0)
    reader = CountingReader({out: [output(2), output(1), output(2), output(5)], dead: [output(3)]})

    shown = what_shows(reader, reader, begins, Outputs([out, dead], {dead}, b""))

    assert reader.spans == [{out: (15, 90)}, {dead: (40, 90)}]
    one, two, three, four = (shown[key] for key in begins)
    assert one == ((1).to_bytes(16, "big"), b"")
    assert two == ((2).to_bytes(16, "big") * 2, b"")
    assert three == (b"", (3).to_bytes(16, "big"))
    assert isinstance(four, str)
    assert "starts at 10, above 5" in four


@pytest.mark.parametrize(("is_now", "is_told"), [(b"a" * 16, True), (b"b" * 16, False)], ids=["the same", "a namesake"])
def test_a_namesake_of_the_output_does_not_say_what_a_torn_transaction_left_in_the_former(is_now: bytes, *, is_told: bool) -> None:
    begin = Begin("w", "t", bytes(16), int(N), 2, [], [OutputStart("out", 0, 20)], output_id=b"a" * 16)
    out = LogPartition("out", 0)
    reader = CountingReader({out: []})
    (shown,) = what_shows(reader, reader, {(begin.instance, begin.n): begin}, Outputs([out], set(), is_now)).values()
    assert shown == (b"", b"") if is_told else isinstance(shown, str) and "is another one by now" in shown
