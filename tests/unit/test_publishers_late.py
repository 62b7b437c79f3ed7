"""What a worker has put of a publisher before it heard that this one was resumed is revealed, whatever comes in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from relay.delivery.batch import Batch, Counts
from relay.delivery.queue.effects import HeldPublishers, QueueEffect
from relay.delivery.queue.mapping import Putting
from relay.delivery.queue.route import QueueDelivery
from relay.delivery.table import route as table_route
from relay.delivery.table.route import Shipment
from relay.message.record import LogMessage
from relay.queue.desired import Desired, Kind, Subject, Wanted, Wish
from relay.queue.message import NewMessage
from relay.queue.modes import Balance
from relay.queue.port import QueueStore
from relay.queue.states import PublisherState
from relay.queue.withholding import reveal_kept
from relay.transfer.cursor import DELIVERED, Verdict
from tests.contracts.queue_book import QueueBook
from tests.contracts.queue_media import NOW, child, message, settings
from tests.unit.memory_kafka import LETTERS

SOURCE = "/checkout"


def effect(store: QueueStore, publishers: HeldPublishers) -> QueueEffect:
    return QueueEffect(None, lambda _: store, store.settings, Balance(None), publishers)


def states(store: QueueStore) -> list[PublisherState]:
    return [view.state for view in store.views([1, 2, 3])]


def test_nothing_need_come_for_it() -> None:
    store, publishers = QueueBook(settings()), HeldPublishers()
    store.put([NewMessage(SOURCE, "kept", b"v")], NOW, reveal=False)
    publishers.now(frozenset(), frozenset({SOURCE}))

    effect(store, publishers).apply(None, [])

    assert states(store) == [PublisherState.REVEALED]


def test_it_comes_before_what_is_put_then() -> None:
    store, publishers = QueueBook(settings()), HeldPublishers()
    store.put([NewMessage(SOURCE, "kept", b"v")], NOW, reveal=False)
    publishers.now(frozenset(), frozenset({SOURCE}))

    effect(store, publishers).apply(None, [Putting(NewMessage(SOURCE, "next", b"v"), None)])

    assert states(store) == [PublisherState.REVEALED] * 2


def test_what_is_delayed_and_what_an_attempt_has_made_wait_on() -> None:
    store = QueueBook(settings())
    kept = [message("kept", publisher=SOURCE), message("later", publisher=SOURCE, delay_ms=1), child("made", publisher=SOURCE)]
    store.put(kept, NOW, reveal=False)

    assert reveal_kept(store, SOURCE, NOW) == 1

    assert states(store) == [PublisherState.REVEALED, PublisherState.PUT, PublisherState.PUT]


class Sending:
    def __init__(self) -> None:
        self.ready: list[list[Verdict]] = []

    def send(self, positions: object, prepared: object) -> None:
        pass

    def answers(self) -> list[list[Verdict]]:
        taken, self.ready = self.ready, []
        return taken


def delivery(
    desired: Desired, publishers: HeldPublishers, monkeypatch: pytest.MonkeyPatch, room: int = 1000
) -> tuple[QueueDelivery, Sending]:
    sending = Sending()
    made = QueueDelivery(
        None, None, sending, lambda: None, queue="credit", store="here", desired=lambda: desired, latest=lambda: desired, publishers=publishers,
        waiting_max=room, route="r", worker_id="w", monitor_topic="m", letters=LETTERS, keep_inbox_s=None,
    )  # fmt: skip
    monkeypatch.setattr(table_route.TableDelivery, "_accept", lambda *_: None)
    return made, sending


def sent(messages: Sequence[Any] = ()) -> Shipment:
    return Shipment(Batch(0, [], {}, {}, {}, b""), list[LogMessage](messages), None, Counts())


def test_only_a_transaction_that_was_begun_since_has_revealed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two batches under way the first may have committed before this was heard of, and the second may be taken back yet."""
    desired, publishers = Desired(), HeldPublishers()
    made, sending = delivery(desired, publishers, monkeypatch)
    made._ship(sent(["first"]))
    made._ship(sent(["second"]))
    desired.add(*Wish(Subject(Kind.PUBLISHER, "credit", SOURCE), Wanted.RUN, "eve", "", 1).encode())
    made.settled()
    made._ship(sent(["third"]))

    for verdict in (Verdict(DELIVERED, 1), Verdict(DELIVERED, 2)):
        sending.ready = [[verdict]]
        made.settled()
        assert set(publishers.resumed) == {SOURCE}
    sending.ready = [[Verdict(DELIVERED, 3)]]
    made.settled()

    assert publishers.resumed == {}


def test_a_batch_of_which_nothing_was_put_has_revealed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it revealed went with the row that was refused."""
    desired, publishers = Desired(), HeldPublishers()
    made, sending = delivery(desired, publishers, monkeypatch)
    desired.add(*Wish(Subject(Kind.PUBLISHER, "credit", SOURCE), Wanted.RUN, "eve", "", 1).encode())
    made.settled()
    made._ship(sent(["refused"]))
    sending.ready = [[Verdict(table_route.DEAD, 1)]]
    made.settled()
    assert set(publishers.resumed) == {SOURCE}

    made._ship(sent())
    sending.ready = [[]]
    made.settled()

    assert publishers.resumed == {}


def test_who_takes_partitions_over_reveals_what_their_owner_before_put_behind_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner before it died, or lost them, without having heard of what this worker has long obeyed."""
    desired, publishers = Desired(), HeldPublishers()
    made, sending = delivery(desired, publishers, monkeypatch)
    monkeypatch.setattr(table_route.TableDelivery, "recover", lambda *_: {})
    desired.add(*Wish(Subject(Kind.PUBLISHER, "credit", SOURCE), Wanted.RUN, "eve", "", 1).encode())
    made.settled()
    made._ship(sent())
    sending.ready = [[]]
    made.settled()
    store = QueueBook(settings())
    store.put([NewMessage(SOURCE, "kept", b"v")], NOW, reveal=False)

    made.recover([], [], None, None, {})
    made.settled()
    effect(store, publishers).apply(None, [Putting(NewMessage(SOURCE, "next", b"v"), None)])

    assert states(store) == [PublisherState.REVEALED] * 2
