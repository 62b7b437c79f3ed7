"""Workers that do not come to rest are no reason to complain while publishers go on; what they never pass is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

import pytest

from relay.chaos import run
from relay.chaos.run import Order
from relay.config.routes import RouteConfig, TopicDestination
from relay.control.status import DeadLetters, RouteFacts, view
from relay.message.errors import Unreachable
from relay.message.record import LogPartition

STOOD = {LogPartition("orders", 0): 10, LogPartition("orders", 1): 5}


class Workers:
    """A crew that never has nothing to do."""

    is_empty = False

    def add(self, *_: object) -> None:
        pass

    end = tend = add

    def running(self) -> list[str]:
        return ["main.0"]


class Reader:
    """What is stored of the route's positions, or an error."""

    stored: Any = None

    def __init__(self, _: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self) -> list[Any]:
        if isinstance(self.stored, Exception):
            raise self.stored
        route = RouteConfig(name="main", from_=["orders"], to=TopicDestination(topic="out"))
        ends = {place: end + 100 for place, end in STOOD.items()}  # publishers go on
        return [view(RouteFacts(route, [], ends, self.stored, DeadLetters(0, {})), 1_000)]


@pytest.mark.parametrize(
    ("start", "stored", "complaints"),
    [
        ("earliest", {LogPartition("orders", 0): 10, LogPartition("orders", 1): 60}, []),
        (
            "latest",
            {LogPartition("orders", 0): 7, LogPartition("orders", 1): 60},
            ["main: orders[0] ended at 10 when all was healed, and 0 s later the position is 7"],
        ),
        ("latest", {LogPartition("orders", 0): 10}, []),
        (
            "earliest",
            {LogPartition("orders", 0): 10},
            ["main: orders[1] ended at 5 when all was healed, and 0 s later the position is not known"],
        ),
        ("earliest", Unreachable("no broker answers"), ["whether the workers have passed what stood in the logs cannot be told: no broker answers"]),
    ],
)
def test_what_stood_in_the_logs_must_be_passed_also_where_publishers_go_on(
    start: str, stored: Any, complaints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "REST_S", 0.0)
    monkeypatch.setattr(run, "StatusReader", Reader, raising=False)
    monkeypatch.setattr(Reader, "stored", stored)
    one: Any = run._Run.__new__(run._Run)
    one.config, one._workers, one._complaints = SimpleNamespace(routes={"main": SimpleNamespace(start=start)}, log_topics={"orders"}), Workers(), []
    one._order, one._worker, one.ends = Order(1.0, 1), lambda *_: None, lambda _: dict(STOOD)

    one.rest(may_lag=True)

    assert one._complaints == complaints
