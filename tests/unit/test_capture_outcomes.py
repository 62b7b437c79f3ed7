"""Markers: what proves itself, what is a hint, what is a lie, and what is no marker at all."""

from __future__ import annotations

import secrets

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.capture.outcomes import decode_marker, encode_marker, marker_headers
from relay.message.envelope import ResourceName
from relay.message.identity import capture_id
from relay.message.schemas import codec

NONCE = bytes(range(16))
CAPTURE = capture_id(NONCE)
HEADERS = marker_headers(CAPTURE, b"/checkout", ResourceName("shop", "u"))


def test_a_committed_marker_proves_itself() -> None:
    marker = decode_marker(CAPTURE, encode_marker(CAPTURE, NONCE, "inc", [1, 2]), HEADERS)

    assert marker is not None
    assert (marker.capture, marker.committed, marker.nonce, marker.closes) == (CAPTURE, True, NONCE, (1, 2))
    assert marker.proved
    assert not marker.forged


def test_a_committed_marker_with_another_nonce_is_forged() -> None:
    marker = decode_marker(CAPTURE, encode_marker(CAPTURE, secrets.token_bytes(16), None, []), HEADERS)

    assert marker is not None
    assert marker.forged
    assert not marker.proved


def test_a_marker_whose_value_names_another_capture_is_none() -> None:
    assert decode_marker(CAPTURE, encode_marker(capture_id(b"o" * 16), None, None, []), HEADERS) is None


def test_a_stranger_makes_a_marker_close_no_more_than_a_few_runs() -> None:
    marker = decode_marker(CAPTURE, encode_marker(CAPTURE, None, "inc", [part for n in range(1000) for part in (3 * n + 1, 1)]), HEADERS)

    assert marker is not None
    assert [(run.first, run.last) for run in marker.runs] == [(3 * n + 1, 3 * n + 1) for n in range(64)]


def test_an_aborted_marker_proves_nothing_and_is_no_forgery() -> None:
    marker = decode_marker(CAPTURE, encode_marker(CAPTURE, None, None, []), HEADERS)

    assert marker is not None
    assert not marker.committed
    assert not marker.proved
    assert not marker.forged


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (None, encode_marker(CAPTURE, NONCE, None, []), HEADERS),
        (b"42", encode_marker(CAPTURE, NONCE, None, []), HEADERS),
        (CAPTURE, None, HEADERS),
        (CAPTURE, b"{}", HEADERS),
        (CAPTURE, encode_marker(CAPTURE, NONCE, None, [])[:-1], HEADERS),
        (CAPTURE, encode_marker(CAPTURE, NONCE, None, []), []),
        (CAPTURE, encode_marker(CAPTURE, NONCE, None, []), None),
        (bytes(16), encode_marker(CAPTURE, NONCE, None, []), HEADERS),
        (CAPTURE, encode_marker(CAPTURE, NONCE, None, []), [header for header in HEADERS if header[0] != "ce_relaycapture"]),
        (CAPTURE, encode_marker(CAPTURE, NONCE, None, []), [*HEADERS, ("ce_type", b"order.placed")]),
    ],
)
def test_other_records_are_no_markers(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]] | None
) -> None:
    assert decode_marker(key, value, headers) is None


@given(
    st.none() | st.binary(max_size=200),
    st.none() | st.text(max_size=100),
    st.lists(st.integers(min_value=0, max_value=2**63 - 1), max_size=200),
)
@example(bytes(64), "i" * 64, [edge for bits in range(6, 63, 7) for edge in (2**bits - 1, 2**bits)])  # where a number takes a byte more
@example(bytes(63), "i" * 63, [1] * 64)
def test_a_marker_is_the_record_that_the_library_writes(
    nonce: bytes | None, incarnation: str | None, closes: list[int]
) -> None:
    outcome = "ABORTED" if nonce is None else "COMMITTED"
    record = {"capture": CAPTURE, "outcome": outcome, "nonce": nonce, "incarnation": incarnation, "closes": closes}

    assert encode_marker(CAPTURE, nonce, incarnation, closes) == codec("outcome").encode(record)
