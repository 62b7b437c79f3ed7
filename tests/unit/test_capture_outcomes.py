"""Markers: what proves itself, what is a hint, what is a lie, and what is no marker at all."""

from __future__ import annotations

import secrets

import pytest

from relay.capture.outcomes import decode_marker, encode_marker, marker_headers
from relay.message.envelope import ResourceName
from relay.message.identity import capture_id

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
