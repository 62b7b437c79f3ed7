"""What counts as an output of a transaction: its own stamp, whatever strangers write beside it."""

from __future__ import annotations

import pytest

from relay.delivery.topic_recovery import gather_stamped
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
