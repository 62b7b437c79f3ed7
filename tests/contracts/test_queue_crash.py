"""A process killed between and inside its writes: what was confirmed is there, and what was not is there whole or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.queue_killed import Confirmed, audit, give_back, run
from tests.contracts.queue_media import MEDIA, Medium, medium_of
from tests.contracts.queue_worker import settings_of

STORES = [name for name in MEDIA if name != "book"]


@pytest.fixture(params=STORES)
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Medium]:
    medium = medium_of(request.param, tmp_path, request)
    yield medium
    medium.close()


def test_killed_between_writes_and_inside_them_nothing_confirmed_is_lost(medium: Medium) -> None:
    queue, confirmed = f"q{secrets.token_hex(6)}", Confirmed()

    for lines in (13, 8):
        run(medium, queue, confirmed, lines=lines)
        store = medium.open(settings_of(queue))
        audit(store, confirmed)
        give_back(store, confirmed)
        store.close()
