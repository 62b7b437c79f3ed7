"""A message that waits no more for its next try stays ready for whoever takes, whatever other subscribers do to it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from relay.queue.stores.sql_schema import Phase
from relay.queue.stores.sqlite import open_sqlite
from tests.contracts.queue_media import NOW, enter, message, settings, take

AGAIN = NOW + 50


def phase_of(path: Path, subscriber: str) -> Phase:
    with sqlite3.connect(path) as connection:
        asked = "select d.phase from relay_queue_delivery d join relay_queue_subscriber s on s.id = d.sub where s.name = ?"
        (found,) = connection.execute(asked, (subscriber,)).fetchone()
    return Phase(found)


def test_what_was_woken_is_not_laid_to_sleep_by_another_subscriber(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    store = open_sqlite(settings("ann", "dan"), path)
    for name in ("ann", "dan"):
        enter(store, name, name.encode())
    store.put([message("a", lane=b"l")], NOW)
    (failed,) = take(store, "dan")
    store.free("dan", [failed.ticket], NOW, again_at=AGAIN, failed=True)
    assert phase_of(path, "dan") is Phase.RETRY
    assert store.take("dan", b"dan", 1, AGAIN, without=[b"l"]) == []
    assert phase_of(path, "dan") is Phase.READY
    (given,) = take(store, "ann", now=AGAIN)
    store.free("ann", [given.ticket], AGAIN)

    assert phase_of(path, "dan") is Phase.READY
    store.close()
