"""Sifting: of every message the first counts, in its batch or before it, and a repeat with other content is a conflict."""

from __future__ import annotations

import pytest

from relay.delivery.batch import Counts
from relay.delivery.sifting import sift
from relay.message.record import LogMessage
from relay.monitor.entries import Page, Proof
from tests.memory_index import memory_index


def message(offset: int, name: str, content: bytes = b"same....", partition: int = 0) -> LogMessage:
    return LogMessage("orders", partition, offset, None, b"v", [], name.encode().ljust(16, b"."), content, b"/p", None, 0)


def sifted(batch: list[LogMessage], *known: LogMessage) -> tuple[list[int], int, int]:
    """Return the offsets that are new beside those that are known, and how many repeats and conflicts were counted."""
    indexes = {partition: memory_index(partition) for partition in (0, 1)}
    for one in known:
        indexes[one.partition].add_page(
            Page("w", b"i" * 16, 1, Proof.SEALED, None, "orders", one.partition, one.digest, one.content, [one.offset], b"\0")
        )
    counts = Counts()
    fresh = sift(batch, indexes, counts)
    return [one.offset for one in fresh], counts.duplicates, counts.conflicts


def test_what_is_new_goes_on_in_its_order() -> None:
    assert sifted([message(5, "a"), message(6, "b")], message(1, "c")) == ([5, 6], 0, 0)


@pytest.mark.parametrize(("content", "conflicts"), [(b"same....", 0), (b"other...", 1)])
def test_of_repeats_in_one_batch_the_first_counts(content: bytes, conflicts: int) -> None:
    batch = [message(5, "a"), message(6, "b"), message(7, "a", content), message(8, "c")]

    assert sifted(batch) == ([5, 6, 8], 1, conflicts)


@pytest.mark.parametrize(("content", "conflicts"), [(b"same....", 0), (b"other...", 1)])
def test_what_has_its_effect_already_is_left_out(content: bytes, conflicts: int) -> None:
    batch = [message(5, "b"), message(6, "a", content), message(7, "c")]

    assert sifted(batch, message(1, "a")) == ([5, 7], 1, conflicts)


def test_where_the_content_of_what_was_delivered_is_unknown_nothing_is_called_a_conflict() -> None:
    assert sifted([message(6, "a")], message(1, "a", bytes(8))) == ([], 1, 0)


def test_each_partition_knows_its_own() -> None:
    assert sifted([message(5, "a", partition=1), message(6, "a")], message(1, "a", partition=1)) == ([6], 1, 0)
