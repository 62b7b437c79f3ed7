"""The prefix that a stream may read: it ends before the first message of which nobody knows how its capture ended."""

from __future__ import annotations

from relay.capture.decisions import Attempt, UnitDecision, UnitDecisions, batch_unit
from relay.capture.outcomes import encode_marker, marker_headers
from relay.message.envelope import CAPTURE, ID, RESOURCE, Headers, ResourceName
from relay.message.identity import capture_id
from relay.spark.following import Prefix, ended_by

SHOP = ResourceName("shop", "uuid")
UNIT = batch_unit("q", 1)
NONCE, OTHER = b"n" * 16, b"o" * 16


def captured(nonce: bytes, resource: ResourceName = SHOP) -> Headers:
    return [(ID, b"1"), (CAPTURE, capture_id(nonce).hex().encode()), (RESOURCE, resource.encode())]


def marker(nonce: bytes, proof: bytes | None, resource: ResourceName = SHOP) -> tuple[bytes, bytes, Headers]:
    capture = capture_id(nonce)
    return capture, encode_marker(capture, proof, None, []), marker_headers(capture, b"/s", resource)


def test_it_ends_before_the_first_undecided_message_and_goes_on_with_its_marker() -> None:
    prefix = Prefix(0)
    prefix.take(0, None, b"plain", [])
    prefix.take(1, None, b"a", captured(NONCE))
    prefix.take(2, None, b"b", captured(OTHER))
    before = prefix.position()
    prefix.take(3, *marker(OTHER, None))
    between = prefix.position()
    prefix.take(4, *marker(NONCE, NONCE))

    assert (before, between, prefix.position()) == (1, 1, 5)


def test_a_forged_marker_moves_nothing() -> None:
    prefix = Prefix(0)
    prefix.take(0, None, b"a", captured(NONCE))
    prefix.take(1, *marker(NONCE, OTHER))

    assert prefix.position() == 0
    assert ended_by(*marker(NONCE, OTHER)) is None


def test_of_a_unit_only_the_decision_counts() -> None:
    resource = UNIT.resource("run")
    prefix = Prefix(0)
    prefix.take(0, None, b"a", captured(NONCE, resource))
    prefix.take(1, *marker(NONCE, None, resource))
    prefix.ask(UnitDecisions())
    before = prefix.position()
    decisions = UnitDecisions()
    decisions.add(UnitDecision(UNIT, "run", True, (Attempt(NONCE, 1, ()),)))
    prefix.ask(decisions)

    assert (before, prefix.position()) == (0, 2)
