"""What a worker has to write is written, whatever keeps it from taking more."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.queue.port import StoreAway
from relay.queue.states import SubscriberState
from relay.work.backoff import Backoff
from relay.work.dispatch import Writes
from relay.work.states import Report, States
from tests.contracts.queue_media import HOLDER, Medium, enter, put, settings


def test_what_is_done_is_written_while_the_log_with_the_values_is_away(tmp_path: Path) -> None:
    medium = Medium("log", "log+sqlite:///queues.db", tmp_path)
    store = medium.open(settings("ann"))
    enter(store)
    first, second = put(store, "a", "b")
    report = Report()
    written = States(store, "ann", HOLDER, Backoff(), report)
    (taken,) = written.write_and_take(Writes(), 1, ())
    medium.log.away = True

    assert written.write_and_take(Writes(done=[taken.ticket]), 1, ()) == []

    assert not written.has_pending
    assert (taken.ticket.handle, report.done) == (first, 1)
    assert store.holds("ann", [taken.ticket]) == [SubscriberState.DONE]
    assert store.held(HOLDER) == []
    with pytest.raises(StoreAway):
        written.write_and_take(Writes(), 1, ())
    medium.log.away = False
    assert [one.ticket.handle for one in written.write_and_take(Writes(), 1, ())] == [second]
    medium.close()
