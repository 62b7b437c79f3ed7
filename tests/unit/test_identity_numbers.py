"""Identity by JSON: numbers that differ are different messages, however long they are written."""

from __future__ import annotations

import orjson
import pytest

from relay.message.identity import digest, rules


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('["acme", 12345678901234567890121]', '["acme", 12345678901234567890122]'),
        ('{"t": 1, "n": 123456789012345678901}', '{"t": 1, "n": 123456789012345678902}'),
        ("1.0000000000000000001", "1.0000000000000000002"),
        ("[1.0000000000000000001]", "[1.0]"),
        ("[-9223372036854775809]", "[-9223372036854775810]"),
        ("1e-400", "1e-401"),
        ("[1e-99999999999999999999]", "[1e-400]"),
        ("1e400", "1e401"),
        ("[-1e400]", "[1e400]"),
    ],
)
def test_numbers_that_share_a_double_are_not_one_identity(one: str, other: str) -> None:
    (rule,) = rules(["json:/id"])
    found = {rule({}, b"orders", b'{"id": %s}' % written.encode()) for written in (one, other)}
    assert len(found - {None}) == 2


@pytest.mark.parametrize(
    "value", ["1.5", "[1, -0, 1.50, 1e5, true, null]", '{"b": [0.1, 18446744073709551615], "a": "x"}', "1e22", "[1e22, -0.0]"]
)
def test_what_stands_beside_an_identity_does_not_change_it(value: str) -> None:
    """A long number makes the value be read another time; what a double holds is the same identity then."""
    (rule,) = rules(["json:/id"])
    beside = ['"n": 123456789012345678901234', '"n": [1.0000000000000000001]', '"n": 1e400', '"n": 1e-400', '"n": 1']
    found = {rule({}, b"orders", b'{%s, "id": %s}' % (other.encode(), value.encode())) for other in beside}
    part = orjson.dumps(orjson.loads(value), option=orjson.OPT_SORT_KEYS)
    assert found == {digest(b"j", b"/id", b"orders", part)}


@pytest.mark.parametrize(
    "value",
    [b'{"id": 5, "n": 1e400', b'{"id": NaN, "n": 1e400}', b'{"id": 5, "n": "\xff", "o": 1e400}', b'\xef\xbb\xbf{"id": 5, "n": 1e400}'],
)
def test_what_is_no_json_is_no_identity_beside_a_number_beyond_all_doubles(value: bytes) -> None:
    (rule,) = rules(["json:/id"])
    assert rule({}, b"orders", value) is None
