"""Ordering a redrive: which letters somebody may obey an order for, how they become orders, and when a person is told what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.control import redrive_orders
from relay.control.redrive_orders import Ordered, Ordering
from relay.kafka.topics import TopicFacts
from relay.message.record import LogPartition
from relay.monitor.redrive import REPLAYS_MAX, ROWS_MAX, Ending, Orders, Wanted, encode_ending

IDS = {"orders": b"o" * 16, "bills": b"b" * 16}


def letter(offset: int, *, route: str = "main", topic: str = "orders", partition: int = 0, replay: int = 0, **more: Any) -> dict[str, Any]:
    facts = {"route": route, "topic": topic, "partition": partition, "replay_count": replay}
    return {"digest": f"{offset:032x}", "offset": offset, **facts, **more}


class Control:
    """The control topic: what is put there, and what owners add to it."""

    def __init__(self) -> None:
        self.put_records: list[tuple[bytes, bytes]] = []
        self.answers: list[list[tuple[bytes, bytes]]] = []

    def put(self, key: bytes, value: bytes, *, wait: bool) -> None:
        assert wait, "an order that nobody has acknowledged is none"
        self.put_records.append((key, value))

    def records(self) -> list[tuple[bytes, bytes]]:
        return self.answers.pop(0) if self.answers else []

    def close(self) -> None:
        pass


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Control:
    made, topics = Control(), MagicMock()
    topics.describe.side_effect = lambda names, *, settings: {
        name: TopicFacts(name, IDS[name], 2, 1) for name in names if name in IDS
    }
    monkeypatch.setattr(redrive_orders, "Topics", lambda *_: nullcontext(topics))
    monkeypatch.setattr(redrive_orders, "control_topic", lambda _: made)
    monkeypatch.setattr(redrive_orders, "control_records", lambda _: made)
    monkeypatch.setattr(redrive_orders, "LOOK_S", 0.0)
    return made


@pytest.fixture
def ordering(tmp_path: Path, control: Control) -> Iterator[Ordering]:
    path = tmp_path / "relay.toml"
    route = 'from = ["{}"]\nto = {{ topic = "out" }}\n'
    path.write_text(
        '[relay]\nname = "shop"\ninstance = "a"\n[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n'
        f'[routes.main]\n{route.format("orders")}[routes.more]\n{route.format("bills")}[routes.gone]\n{route.format("missing")}'
    )
    config: RelayConfig = load(path)
    with Ordering(config) as made:
        yield made


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (letter(1, route="former"), "is configured no more"),
        (letter(1, topic="bills"), "does not read topic 'bills' any more"),
        (letter(1, route="gone", topic="missing"), "does not read topic 'missing' any more"),
        (letter(1, partition=2), "has no partition 2"),
        (letter(1, replay=REPLAYS_MAX), "redriven 255 times already"),
        (letter(1, digest="00" * 15), "its key is no digest"),
        (letter(1, digest="no digest"), "its key is no digest"),
    ],
)
def test_a_letter_that_nobody_could_obey_an_order_for_is_left_with_its_reason(
    ordering: Ordering, row: dict[str, Any], reason: str
) -> None:
    plan = ordering.plan([row, letter(2, partition=1, replay=REPLAYS_MAX - 1)], "ann")

    ((said, count),) = plan.left.items()
    assert (reason in said, count) == (True, 1)
    assert [order.wanted for order in plan.orders] == [[Wanted(2, (2).to_bytes(16), REPLAYS_MAX)]]


def test_orders_are_for_one_partition_of_a_route_each_in_the_order_of_the_log_and_not_longer_than_owners_take(
    ordering: Ordering,
) -> None:
    many = [letter(offset) for offset in reversed(range(ROWS_MAX + 1))]
    others = [letter(7, partition=1, replay=3), letter(5, route="more", topic="bills"), letter(2, partition=1)]
    plan = ordering.plan([*others, *many], "ann")

    found = [(order.route, order.place, order.topic_id, [one.offset for one in order.wanted]) for order in plan.orders]
    orders = LogPartition("orders", 0)
    assert found == [
        ("main", orders, IDS["orders"], list(range(ROWS_MAX))),
        ("main", orders, IDS["orders"], [ROWS_MAX]),
        ("main", LogPartition("orders", 1), IDS["orders"], [2, 7]),
        ("more", LogPartition("bills", 0), IDS["bills"], [5]),
    ]
    assert [one.replay for one in plan.orders[2].wanted] == [1, 4], "one more than the letter's own"
    assert len({order.id for order in plan.orders}) == 4
    assert {order.who for order in plan.orders} == {"ann"}


def ending(ordered: Ordered, number: int, delivered: int, died: int = 0, **refused: int) -> tuple[bytes, bytes]:
    return encode_ending(Ending(ordered.orders[number].id, "w", 1, delivered, died, refused))


def test_orders_are_written_and_waited_for_until_each_has_its_ending(ordering: Ordering, control: Control) -> None:
    plan = ordering.plan([letter(1), letter(2), letter(3, partition=1)], "ann")
    control.answers = [[], [ending(plan, 0, 1, 1)], [], [ending(plan, 1, 0, forgotten=1)]]
    written: list[int] = []

    done = ordering.order(plan, 60.0, lambda: written.append(len(control.put_records)))

    assert written == [2], "said when all are written, before anything is waited for"
    read = Orders()
    for key, value in control.put_records:
        read.add(key, value)
    assert list(read.open.values()) == plan.orders
    assert (done.delivered, done.died, dict(done.refused), done.waiting) == (1, 1, {"forgotten": 1}, 0)
    assert not done.is_all_delivered


def test_what_is_not_done_in_time_still_waits(ordering: Ordering, control: Control) -> None:
    plan = ordering.plan([letter(1), letter(2), letter(3, partition=1)], "ann")
    control.answers = [[ending(plan, 1, 1)]]

    done = ordering.order(plan, 0.0)

    assert (done.delivered, done.waiting, done.is_all_delivered) == (1, 2, False)
    assert done.document()["waiting"] == 2


@pytest.mark.parametrize(("more", "delivered", "is_all"), [((), 1, True), ((), 0, False), ((letter(1, route="former"),), 1, False)])
def test_all_is_delivered_only_if_nothing_that_was_chosen_was_left(
    ordering: Ordering, control: Control, more: tuple[dict[str, Any], ...], delivered: int, is_all: bool
) -> None:
    plan = ordering.plan([letter(2), *more], "ann")
    control.answers = [[ending(plan, 0, delivered, 1 - delivered)]]

    assert ordering.order(plan, 0.0).is_all_delivered is is_all
