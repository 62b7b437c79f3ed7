"""Whoever takes partitions over has heard of every pause that their owner before obeyed, so nothing overtakes what that one kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from relay.delivery.queue.effects import HeldPublishers
from relay.delivery.queue.route import QueueDelivery
from relay.message.errors import Fenced
from relay.queue.desired import Kind, Subject, Wanted, Wish
from relay.queue.port import Filter
from relay.queue.states import PublisherState
from relay.run.following import DesiredFollower
from relay.transfer.cursor import TableCursor
from tests.recorded_queue import cursor_into_queue
from tests.unit.memory_kafka import LETTERS, MemoryKafka
from tests.unit.numbered_messages import LOG, batch, captured, start, view
from tests.unit.test_numbered_table_delivery import MemoryAppends, MemorySending

PAUSED = Wish(Subject(Kind.PUBLISHER, "credit", "/shop"), Wanted.PAUSE, "eve", "", 1).encode()


class Late:
    """A control topic of which nothing is heard yet, unless all is asked for."""

    def __init__(self, asked: Callable[[], None]) -> None:
        self._asked = asked

    def records(self) -> list[tuple[bytes, bytes | None]]:
        return []

    def to_end(self) -> list[tuple[bytes, bytes | None]]:
        self._asked()
        return [PAUSED]

    def close(self) -> None:
        pass


def worker(kafka: MemoryKafka, cursor: TableCursor, publishers: HeldPublishers, follower: DesiredFollower) -> QueueDelivery:
    made = QueueDelivery(
        kafka, cursor, MemorySending(cursor), lambda: MemoryAppends(kafka), queue="credit", store="shop",  # type: ignore[arg-type]
        desired=follower.now, latest=follower.latest, publishers=publishers, waiting_max=1000, route="main",
        worker_id="w", monitor_topic="monitor", letters=LETTERS, keep_inbox_s=None,
    )  # fmt: skip
    made.recover([LOG], [view()], kafka, start, {"log": b"i" * 16})
    return made


def put(one: QueueDelivery, number: int) -> None:
    one.settled()
    one.submit(batch([captured(number)], number, first=number - 1))
    one.settled()


def test_what_the_owner_before_kept_is_not_overtaken(tmp_path: Path) -> None:
    kafka, url = MemoryKafka(), f"sqlite:///{tmp_path}/shop.db"
    before, now = HeldPublishers(), HeldPublishers()
    asked: list[str] = []
    with cursor_into_queue(tmp_path, url, before) as (former, store), cursor_into_queue(tmp_path, url, now) as (latter, _):
        owner = worker(kafka, former, before, DesiredFollower(Late(lambda: None)))
        put(owner, 1)

        def too_late() -> None:
            asked.append("all")
            with pytest.raises(Fenced):  # or it would go on putting, by what it hears behind this
                put(owner, 2)

        put(worker(kafka, latter, now, DesiredFollower(Late(too_late))), 2)

        assert asked == ["all"]
        assert [view.state for view in store.find(Filter())] == [PublisherState.PUT] * 2
