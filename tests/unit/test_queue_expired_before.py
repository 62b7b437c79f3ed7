"""What comes past its time: whoever goes by another clock does not get it because of the moment in which it was put."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.delivery.queue.effects import _timed
from relay.delivery.queue.mapping import Putting
from relay.queue.message import NewMessage
from relay.queue.stores.sqlite import open_sqlite
from tests.contracts.queue_media import NOW, enter, message, settings, take


@pytest.mark.parametrize("longest_ms", [None, 1000])
@pytest.mark.parametrize(("expires_at", "ttl_ms"), [(NOW - 500, -500), (NOW + 500, 500), (-1, -NOW)])
def test_what_is_over_keeps_the_time_at_which_it_was(expires_at: int, ttl_ms: int, longest_ms: int | None) -> None:
    assert _timed(Putting(message("a"), expires_at), NOW, longest_ms, None).ttl_ms == ttl_ms


def test_a_handler_whose_clock_is_behind_does_not_get_it(tmp_path: Path) -> None:
    store = open_sqlite(settings(), tmp_path / "q.db")
    enter(store, "ann", b"ann")
    late: NewMessage = _timed(Putting(message("a"), NOW - 500), NOW, None, None)
    store.put([late], NOW)

    assert take(store, now=NOW - 100) == []
    assert store.expire(NOW - 100, 9) == 1
    store.close()
