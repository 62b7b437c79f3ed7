"""The nonces of captures: what nobody can guess, since knowing one is the right to write a committed marker."""

from __future__ import annotations

from relay.message.identity import NONCE_BYTES
from relay.world import randomness


def draw(count: int) -> list[bytes]:
    """Return so many new ones, in one call to the system: each lets go of the interpreter's lock."""
    drawn = randomness.random_bytes(NONCE_BYTES * count)
    return [drawn[at : at + NONCE_BYTES] for at in range(0, len(drawn), NONCE_BYTES)]
