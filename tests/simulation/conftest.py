"""What every test of the simulator needs."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """No collection in the middle of a run, and logging as it was afterwards."""
    known = structlog.get_config()
    gc.disable()
    yield
    gc.enable()
    structlog.configure(**known)
