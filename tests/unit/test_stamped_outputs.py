"""What counts as an output of a transaction: its own stamp, whatever strangers write beside it."""

from __future__ import annotations

import pytest

from relay.delivery.topic_recovery import stamped_digest
from tests.unit.test_intake import BrokenHeaders, Fake

INSTANCE, N, DIGEST = b"1" * 32, b"3", b"ab" * 16
STAMP: list[tuple[str, bytes | None]] = [("relay_instance", INSTANCE), ("relay_n", N), ("relay_digest", DIGEST)]


def test_the_stamp_of_the_transaction_names_the_message() -> None:
    assert stamped_digest(Fake(headers=STAMP), INSTANCE, N) == bytes.fromhex(DIGEST.decode())


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
    assert stamped_digest(record, INSTANCE, N) is None
