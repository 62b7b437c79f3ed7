"""The medium that a queue of the contract suite lies on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.queue_media import MEDIA, Medium, medium_of


@pytest.fixture(params=MEDIA)
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Medium]:
    """One medium after the other; what was opened on it is closed."""
    medium = medium_of(request.param, tmp_path, request)
    yield medium
    medium.close()
