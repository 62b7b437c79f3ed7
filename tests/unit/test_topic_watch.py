"""A topic that was deleted and created again under a worker stops it, with a sentence that says which one and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from relay.kafka.topics import TopicFacts
from relay.message.errors import NAMESAKE_REMEDY, Stopped
from relay.run.topic_watch import TOPIC_IDS_PERIOD_S, TopicWatch
from relay.world import clock


class Cluster:
    def __init__(self, *names: str, **partitions: int) -> None:
        self.ids = dict.fromkeys((*names, *partitions), b"1" * 16)
        self.partitions = partitions

    def describe(self, names: Iterable[str], **_: Any) -> dict[str, TopicFacts]:
        return {name: TopicFacts(name, self.ids[name], self.partitions.get(name, 1), 1) for name in names if name in self.ids}


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("orders", NAMESAKE_REMEDY), ("ledger", "start again to go on with what follows")],
)
def test_a_topic_of_the_route_that_is_another_one_stops_it_before_the_next_batch(name: str, remedy: str) -> None:
    cluster: Any = Cluster("orders", "monitor", "ledger")
    watch = TopicWatch(cluster, ["orders"], "monitor", "ledger")
    watch.facts()
    watch.check()
    cluster.ids.pop(name)
    watch.check()  # gone for a moment: whoever reads or writes it says so
    if name == "ledger":
        watch.facts()

    cluster.ids[name] = b"2" * 16

    with pytest.raises(Stopped, match=f"{name!r}.*{remedy}"):
        watch.check()


def test_topics_that_the_broker_hears_of_late_are_waited_for() -> None:
    cluster: Any = Cluster("ledger")

    class Late(Cluster):
        def describe(self, names: Iterable[str], *, wait_s: float = 0.0, **_: Any) -> dict[str, TopicFacts]:
            names = list(names)
            return Cluster.describe(self if wait_s and set(names) == {"orders", "monitor"} else cluster, names)

    found = TopicWatch(Late("orders", "monitor", "ledger"), ["orders"], "monitor", "ledger").facts()  # type: ignore[arg-type]

    assert sorted(found) == ["ledger", "monitor", "orders"]


def test_a_monitor_that_was_made_anew_under_a_worker_needs_no_new_name() -> None:
    """Under a new name all that the log has would be delivered once more; the positions are as they were."""
    cluster: Any = Cluster("orders", "monitor", "ledger")
    watch = TopicWatch(cluster, ["orders"], "monitor", "ledger")
    watch.facts()

    cluster.ids["monitor"] = b"2" * 16

    with pytest.raises(Stopped, match=r"'monitor' was deleted and created again under the worker.*start again") as stopped:
        watch.facts()
    assert "new name" not in str(stopped.value)


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (["monitor"], "topics orders do not exist; create them, or correct `from` of the route"),
        (["orders"], "topic monitor does not exist; run `relay migrate`"),
        ([], "topics orders do not exist; create them, or correct `from` of the route"),
    ],
)
def test_migrate_is_named_only_where_it_makes_what_is_missing(there: list[str], said: str) -> None:
    cluster: Any = Cluster(*there)

    with pytest.raises(Stopped) as raised:
        TopicWatch(cluster, ["orders"], "monitor").facts()

    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("orders", "returns", "monitor", "said"),
    [(3, 2, 3, "different partition counts.*give all of them the same"), (3, 3, 2, "has 2 partitions for 3 of the log: run `relay migrate`")],
)
def test_partitions_that_come_to_some_topics_only_stop_the_route(
    orders: int, returns: int, monitor: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    cluster: Any = Cluster(orders=2, returns=2, monitor=2)
    watch = TopicWatch(cluster, ["orders", "returns"], "monitor")
    watch.facts()
    cluster.partitions.update(orders=orders, returns=returns, monitor=monitor)
    assert watch.ids(), "as they were a moment ago"

    now[0] += TOPIC_IDS_PERIOD_S + 1

    with pytest.raises(Stopped, match=said):
        watch.ids()


def test_without_an_output_topic_nothing_else_is_asked_for() -> None:
    cluster: Any = Cluster("orders", "monitor")
    watch = TopicWatch(cluster, ["orders"], "monitor")
    assert set(watch.facts()) == {"orders", "monitor"}
    watch.check()
