"""The digest's format is frozen: such values lie in monitors and inboxes, and must never change."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import pytest

from relay.message import identity
from relay.message.identity import capture_id, content_digest, position_digest, rules

HEADERS: Mapping[str, bytes] = {"ce_id": b"order-1", "ce_source": b"/checkout", "x": b"\xff"}
VALUE = b'{"a":{"b":{"y":1,"x":2}}}'


@pytest.mark.parametrize(
    ("rule", "headers", "frozen"),
    [
        ("cloudevents", HEADERS, "672893c24326e62838add00353e5a729"),
        ("cloudevents", {"ce_id": b"order-1"}, "e6eba145b272efe2cebf340bbd5f4ec3"),
        ("header:x", HEADERS, "4919785271d12025a2a1d6492924d516"),
        ("json:/a/b", HEADERS, "f994109589246da005e8672a4116b217"),
        ("avro:f", HEADERS, "04237b734a4533d8c18a495c32cbe4ef"),
    ],
)
def test_the_digest_of_each_rule_is_frozen(rule: str, headers: Mapping[str, bytes], frozen: str) -> None:
    (identify,) = rules([rule], avro=lambda _value, _headers: {"f": 42})

    found = identify(headers, b"orders", VALUE)

    assert found is not None
    assert found.hex() == frozen


def test_the_digest_of_a_position_is_frozen() -> None:
    assert position_digest(bytes(range(16)), 3, 4096).hex() == "bef26681adb24b28a8d62c0489419b80"


def test_the_format_is_what_is_documented() -> None:
    """A kind byte, then each part as its length in four bytes and itself: written here without the relay's code."""

    def by_hand(kind: bytes, *parts: bytes) -> str:
        text = kind
        for part in parts:
            text += bytes([0, 0, 0, len(part)]) + part
        return blake2b(text, digest_size=16).hexdigest()

    assert by_hand(b"c", b"/checkout", b"order-1") == "672893c24326e62838add00353e5a729"
    assert by_hand(b"h", b"x", b"/checkout", b"\xff") == "4919785271d12025a2a1d6492924d516"
    assert by_hand(b"j", b"/a/b", b"/checkout", b'{"x":2,"y":1}') == "f994109589246da005e8672a4116b217"
    assert by_hand(b"a", b"f", b"/checkout", b"42") == "04237b734a4533d8c18a495c32cbe4ef"
    place = (bytes(range(16)), bytes([0, 0, 0, 3]), bytes([0, 0, 0, 0, 0, 0, 0x10, 0]))
    assert by_hand(b"p", *place) == "bef26681adb24b28a8d62c0489419b80"


@pytest.mark.parametrize(
    ("key", "value", "frozen"),
    [
        (b"k", b"v", "7eb6749a00000002"),
        (None, b"v", "6b643b8400000001"),
        (b"", b"v", "6b643b8400000001"),
        (None, None, "0000000000000000"),
    ],
)
def test_the_digest_of_content_is_frozen(key: bytes | None, value: bytes | None, frozen: str) -> None:
    assert content_digest(key, value).hex() == frozen


def test_the_capture_id_of_a_nonce_is_frozen() -> None:
    assert capture_id(bytes(16)).hex() == "463be1d58a72e9618ea59884367c4358"


def test_whole_numbers_beyond_64_bits_are_not_one_identity() -> None:
    (rule,) = rules(["json:/id"])
    values = [b'{"id": 20261121215500000000001}', b'{"id": 20261121215500000000002}', b'{"id": 2.0261121215500000e22}']
    assert len({rule({}, b"orders", value) for value in values}) == 3


@pytest.mark.parametrize("levels", [300, 1000])
def test_what_is_nested_too_deep_to_be_an_identity_is_none(levels: int) -> None:
    (rule,) = rules(["json:/id"])
    assert rule({}, b"orders", b'{"id": ' + b"[" * levels + b"]" * levels + b"}") is None


def test_sources_as_large_as_records_are_not_kept() -> None:
    before = identity._after_source.cache_info().currsize
    for n in range(20):
        source = b"%d" % n * 100_000
        headers = {"ce_id": b"a", "ce_source": source}
        assert identity.cloudevents(headers, b"orders", None) == identity.digest(b"c", source, b"a")
    assert identity._after_source.cache_info().currsize == before
