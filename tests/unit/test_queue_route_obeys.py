"""A route into a queue puts nothing while the queue is drained, ends where it has moved, and puts no more at once than finds room."""

from __future__ import annotations

import pytest

from relay.delivery.queue.effects import HeldPublishers, QueueEffect
from relay.delivery.queue.mapping import Putting
from relay.delivery.queue.route import QueueDelivery
from relay.delivery.table.row_search import RowFault
from relay.message.errors import Moved
from relay.queue.desired import Desired, Kind, Move, Step, Subject, Wanted, Wish
from relay.queue.message import NewMessage
from relay.queue.modes import Balance
from relay.transfer.cursor import DELIVERED, Verdict
from tests.contracts.queue_book import QueueBook
from tests.contracts.queue_media import settings
from tests.unit.test_publishers_late import SOURCE, Sending, delivery, sent


def said(subject: Subject, wanted: Wanted, at: int = 1) -> tuple[bytes, bytes]:
    return Wish(subject, wanted, "eve", "", at).encode()


@pytest.fixture
def desired() -> Desired:
    return Desired()


@pytest.fixture
def publishers() -> HeldPublishers:
    return HeldPublishers()


@pytest.fixture
def made(desired: Desired, publishers: HeldPublishers, monkeypatch: pytest.MonkeyPatch) -> tuple[QueueDelivery, Sending]:
    return delivery(desired, publishers, monkeypatch)


def test_a_batch_waits_while_the_queue_is_drained_and_while_two_are_under_way(made: tuple[QueueDelivery, Sending], desired: Desired) -> None:
    one, _ = made
    assert one.settled()

    desired.add(*said(Subject(Kind.QUEUE, "credit"), Wanted.DRAIN))
    assert not one.settled()
    desired.add(*said(Subject(Kind.QUEUE, "credit"), Wanted.RUN))
    assert one.settled()

    one._ship(sent(["first"]))
    assert one.settled()
    one._ship(sent(["second"]))
    assert not one.settled()


def test_a_route_ends_where_its_queue_has_moved_to_another_store(made: tuple[QueueDelivery, Sending], desired: Desired) -> None:
    one, _ = made
    desired.add(*Move("credit", "u", "here", "there", Step.RETIRING, "eve", 1).encode())
    assert not one.settled()

    desired.add(*Move("credit", "u", "here", "there", Step.MOVED, "eve", 1).encode())

    with pytest.raises(Moved, match="moved to another store"):
        one.settled()


def test_what_was_under_way_and_let_go_says_nothing_of_what_comes_next(
    made: tuple[QueueDelivery, Sending], desired: Desired, publishers: HeldPublishers, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, sending = made
    monkeypatch.setattr(sending, "abandon", lambda: None, raising=False)
    one._ship(sent(["let go"]))
    one.abandon()
    desired.add(*said(Subject(Kind.PUBLISHER, "credit", SOURCE), Wanted.RUN))
    one.settled()

    one._ship(sent(["next"]))
    sending.ready = [[Verdict(DELIVERED, 1)]]
    one.settled()

    assert publishers.resumed == {}


@pytest.mark.parametrize(("room", "at_once"), [(1000, 100), (9, 1), (1, 1)])
def test_a_batch_is_a_tenth_of_what_may_wait(
    room: int, at_once: int, desired: Desired, publishers: HeldPublishers, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = delivery(desired, publishers, monkeypatch, room)

    assert one.narrowed_to == at_once


def test_what_the_queue_refuses_is_a_fault_of_its_row() -> None:
    store = QueueBook(settings(message_bytes=3))
    effect = QueueEffect(None, lambda _: store, store.settings, Balance(None), HeldPublishers())

    with pytest.raises(RowFault, match="3"):
        effect.apply(None, [Putting(NewMessage(SOURCE, "a", b"more"), None)])
