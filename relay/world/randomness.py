"""The only module that draws random values; a simulation puts seeded ones in their place.

Take it as a module (``randomness.random_bytes(16)``), never its names.
"""

from __future__ import annotations

import random
import secrets
from uuid import uuid4


def uuid_bytes() -> bytes:
    """Return the 16 bytes of a new UUID (version 4): a name that nobody else has."""
    return uuid4().bytes


def random_bytes(count: int) -> bytes:
    """Return bytes that nobody can guess."""
    return secrets.token_bytes(count)


def jitter() -> float:
    """Return a number in [0, 1) that spreads waits; no secret."""
    return random.random()  # noqa: S311 - no secret
