"""Monitor entries survive their encoding, and what is broken or misplaced is refused."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.message.record import LogMessage
from relay.message.schemas import UnknownRecord
from relay.monitor.entries import (
    PAGE_ROWS,
    Begin,
    InputRange,
    OutputStart,
    Page,
    Proof,
    Seal,
    SettleSeal,
    decode,
    encode,
    pages,
    select,
    transaction_of_page,
)

INSTANCE = bytes(range(16))
names = st.text(min_size=1, max_size=12)
instances = st.binary(min_size=16, max_size=16)
numbers = st.integers(0, 2**62)


@st.composite
def some_pages(draw: st.DrawFn) -> Page:
    rows = draw(st.integers(0, 6))

    def cells(width: int) -> bytes:
        return draw(st.binary(min_size=width * rows, max_size=width * rows))

    return Page(
        draw(names), draw(instances), draw(numbers), draw(st.sampled_from(Proof)), draw(st.none() | names),
        draw(names), draw(st.integers(0, 1000)), cells(16), cells(8),
        draw(st.lists(st.integers(-1, 2**55), min_size=rows, max_size=rows)), cells(1),
        draw(st.just(b"")) if draw(st.booleans()) else cells(1),
        draw(st.lists(st.integers(0, 2**55), min_size=rows, max_size=rows)) if draw(st.booleans()) else [],
    )  # fmt: skip


inputs = st.builds(InputRange, names, st.integers(0, 99), numbers, numbers)
outputs = st.builds(OutputStart, names, st.integers(0, 99), numbers)
begins = st.builds(
    Begin, names, names, instances, numbers, st.integers(-1, 99), st.lists(inputs, max_size=3),
    st.lists(outputs, max_size=3),
)  # fmt: skip
entries = st.one_of(
    some_pages(),
    begins,
    st.builds(Seal, names, instances, numbers),
    st.builds(SettleSeal, names, instances, numbers),
)


@given(entries, st.integers(0, 65535))
def test_decoding_gives_back_what_was_encoded(entry, number) -> None:
    assert decode(*encode(entry, number)) == entry


def test_keys_keep_apart_what_compaction_must_not_merge() -> None:
    page = Page("w", INSTANCE, 7, Proof.SEALED, None, "orders", 0, b"", b"", [], b"")
    keys = [
        encode(page)[0],
        encode(page, 1)[0],
        encode(dataclasses.replace(page, n=8))[0],
        encode(Begin("w", "t", INSTANCE, 7, -1, [], []))[0],
        encode(Seal("w", INSTANCE, 7))[0],
        encode(SettleSeal("w", INSTANCE, 7))[0],
        encode(SettleSeal("other", INSTANCE, 7))[0],
        encode(Seal("w", INSTANCE[::-1], 7))[0],
    ]

    assert len(set(keys)) == len(keys)
    assert keys[0] == b"e" + INSTANCE + (7).to_bytes(8, "big") + b"\0\0"
    assert keys[3:6] == [b"bw" + INSTANCE, b"sw" + INSTANCE, b"tw" + INSTANCE]


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b"x"), (b"", b"x"), (b"a" + INSTANCE, b"x"), (b"x-other", b"x"), (b"e" + INSTANCE, None)],
)
def test_other_keys_and_tombstones_are_passed_over(key, value) -> None:
    assert decode(key, value) is None
    assert transaction_of_page(key) is None


def test_values_under_a_strange_key_are_refused() -> None:
    seal_key, seal = encode(Seal("w", INSTANCE, 7))
    page = Page("w", INSTANCE, 7, Proof.SEALED, None, "orders", 0, b"", b"", [], b"")
    page_key, page_value = encode(page)

    for key, value in [
        (b"s" + b"x" + INSTANCE, seal),
        (b"t" + b"x" + INSTANCE, seal),
        (b"b" + seal_key[1:], seal),
        (page_key[:-3] + b"\x09\0\0", page_value),
        (page_key + b"\0", page_value),
    ]:
        with pytest.raises(UnknownRecord):
            decode(key, value)


@pytest.mark.parametrize(
    "column",
    [{"digests": b"short"}, {"contents": b""}, {"outcomes": b""}, {"replays": b"\1"}, {"destinations": [1]}],
)
def test_columns_of_unequal_length_are_refused(column) -> None:
    whole = Page("w", INSTANCE, 7, Proof.SEALED, None, "orders", 0, bytes(32), bytes(16), [1, 2], bytes(2))
    with pytest.raises(UnknownRecord, match="columns"):
        decode(*encode(dataclasses.replace(whole, **column)))


@given(st.data())
def test_a_cut_value_never_passes_for_a_whole_one(data) -> None:
    entry = data.draw(entries)
    key, value = encode(entry)
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(UnknownRecord):
        decode(key, value[:cut])


def message(topic: str, partition: int, offset: int) -> LogMessage:
    name = (offset * 1000 + partition).to_bytes(8, "big")
    return LogMessage(topic, partition, offset, None, None, [], name * 2, name, b"", None, 0)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), max_size=30),
    st.booleans(),
)
def test_pages_hold_each_message_once_in_order_with_its_own_columns(places, details) -> None:
    messages = [message(topic, partition, offset) for offset, (topic, partition) in enumerate(places)]
    built = list(
        pages(
            messages, worker="w", instance=INSTANCE, n=1,
            outcomes=bytes(i % 3 for i in range(len(messages))) if details else None,
            replays=bytes(i % 5 for i in range(len(messages))) if details else b"",
            destinations=[i * 7 for i in range(len(messages))] if details else (),
        )
    )  # fmt: skip
    rows = {}
    for page in built:
        assert page.offsets == sorted(page.offsets)
        for i, offset in enumerate(page.offsets):
            assert offset not in rows
            rows[offset] = (page.topic, page.partition, page.digests[16 * i : 16 * i + 16], page.outcomes[i])
            if details:
                assert (page.replays[i], page.destinations[i]) == (offset % 5, offset * 7)

    assert rows == {
        m.offset: (m.topic, m.partition, m.digest, m.offset % 3 if details else 0) for m in messages
    }


def test_pages_are_cut_at_their_size() -> None:
    messages = [message("orders", 0, offset) for offset in range(2 * PAGE_ROWS + 1)]

    assert [page.rows for page in pages(messages, worker="w", instance=INSTANCE, n=1)] == [
        PAGE_ROWS,
        PAGE_ROWS,
        1,
    ]


def test_a_page_fits_the_default_message_size() -> None:
    messages = [message("orders", 0, 2**54 + offset) for offset in range(PAGE_ROWS)]
    (page,) = pages(messages, worker="w" * 200, instance=INSTANCE, n=1, destinations=[2**54] * PAGE_ROWS)

    assert len(encode(page)[1]) < 250_000


def test_selected_rows_keep_their_columns_together() -> None:
    page = Page(
        "w", INSTANCE, 7, Proof.VOID, "r", "orders", 0, bytes(16) + b"d" * 16, bytes(8) + b"c" * 8, [4, 5],
        b"\0\1", b"\2\3", [6, 7],
    )  # fmt: skip

    assert select(page, [1]) == Page(
        "w", INSTANCE, 7, Proof.VOID, "r", "orders", 0, b"d" * 16, b"c" * 8, [5], b"\1", b"\3", [7]
    )
