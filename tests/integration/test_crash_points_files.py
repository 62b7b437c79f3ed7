"""Real processes killed at each step of a write to a queue in files: journal files and new logs included."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from relay.world.crash import EXIT_STATUS
from tests.contracts.queue_killed import Confirmed, audit, give_back, run
from tests.contracts.queue_media import medium_of
from tests.contracts.queue_worker import settings_of

POINTS = [
    "files.writing:23",
    "files.written:23",
    "files.synced:23",
    "files.journal:2",
    "files.begun:2",
    "files.followed:2",
]


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_step_of_a_write_to_files_it_is_whole_or_not_there(
    point: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    medium = medium_of("files", tmp_path, request)
    queue, confirmed = f"q{secrets.token_hex(6)}", Confirmed()

    assert run(medium, queue, confirmed, crash_at=point) == EXIT_STATUS
    store = medium.open(settings_of(queue))
    audit(store, confirmed)
    give_back(store, confirmed)
    store.close()
    run(medium, queue, confirmed, lines=3)
    store = medium.open(settings_of(queue))
    audit(store, confirmed)
    store.close()
