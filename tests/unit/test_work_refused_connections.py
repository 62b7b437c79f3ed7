"""A connection to a handler's database that is refused for what a person must mend."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from relay.message.errors import ConfigError, RelayError, Stopped
from relay.queue.message import Audience, Group, NewMessage
from relay.queue.port import Holder
from relay.queue.settings import QueueSettings
from relay.work.desks import Desks
from relay.work.dispatch import Outcome, Work
from relay.work.further import Connections, Further, FurtherDatabase
from relay.work.message import Message
from relay.work.place import Place
from relay.work.running import Runner
from relay.work.subscriber import Handler
from relay.world import schedule
from tests.contracts.queue_book import QueueBook


@pytest.mark.parametrize("wrong", [ConfigError("a pooler is between"), Stopped("another queue than recorded")])
@pytest.mark.parametrize("is_further", [False, True])
def test_a_connection_that_a_person_must_mend_first_is_waited_for_by_whoever_writes(is_further: bool, wrong: RelayError) -> None:
    """As it is by whoever only publishes: the message has done nothing wrong."""

    def refused() -> Any:
        raise wrong

    def handle(_: Message, *databases: Any) -> None:
        databases[is_further].execute("insert")

    book = QueueBook(QueueSettings("q", Audience((Group("s", ("s",)),))))
    book.enter(Holder(b"a worker--------", "s", 0, None))
    book.put([NewMessage("p", "1", b"")], 1)
    place = Place("q", "s", "resource:shop", {"q": book}, {"q": schedule.lock()})
    further = Further([FurtherDatabase("shop", "a", Connections("ledger", refused, 1))])
    runner = Runner(Handler("q", handle, "shop", 0, "queue", ("ledger",)), place, Desks(refused, 1), lambda _: further)

    with capture_logs() as lines:
        (ended,) = runner(Work(tuple(book.take("s", b"a worker--------", 1, 1))))

    assert ended.outcome is Outcome.AWAY
    assert str(wrong) in str(lines)
