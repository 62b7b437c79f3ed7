"""What a worker that is to end when it is idle says of messages that wait: for which capture, why, and that seldom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from relay.log.ended import Decision
from relay.log.holds import Waiting
from relay.message.envelope import CAPTURE, RESOURCE, ResourceName
from relay.run.appetite import Bounds
from relay.run.unread import Unread
from relay.run.worker import RouteWorker
from relay.world.seldom import SAID_EVERY_S
from tests.unit.test_intake import Fake
from tests.unit.test_progress import PLACE, Said

SHOP = ResourceName("shop", "u-1")


def capture(number: int) -> bytes:
    return bytes([number]) * 16


def held(offset: int, number: int, resource: ResourceName | None = SHOP, value: bytes = b"v") -> Fake:
    named = [(RESOURCE, resource.encode())] if resource is not None else []
    return Fake(offset, [(CAPTURE, capture(number).hex().encode()), *named], value)


class Run:
    """A worker that has read and delivered all it can, and is to end once it is idle for a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *records: Fake) -> None:
        self.said = Said(monkeypatch, Unread(lambda places, _: dict.fromkeys(places, 0), lambda *_: {}))
        group: Any = SimpleNamespace(name="g", generation=1, assigned=[PLACE])
        parts: Any = SimpleNamespace(wait=lambda _: True, is_busy=lambda _: False)
        self.worker = RouteWorker(
            group=group, intake=self.said.intake, destination=parts, views=parts, resolving=parts, reloading=parts,
            redriving=parts, progress=self.said.progress, starts=parts, check_twin=bool, topic_ids=dict,
            check_topics=bool, check_epochs=bool, bounds=Bounds(10, 1000, 0.1, 100),
        )  # fmt: skip
        self.worker._generation, self.worker._running = 1, {PLACE: 0}
        self.said.intake.start({PLACE: 0}, {"orders": b"i" * 16})
        self.said.intake.take(records, self.said.now)
        self.said.progress.took_over(self.said.now)
        self.said.progress.caught_up(PLACE, len(records))

    def after(self, seconds: float) -> tuple[bool, list[str]]:
        """Return whether it is idle some seconds later, and what it says then."""
        self.said.now += seconds
        with capture_logs() as logs:
            is_idle = self.worker._is_idle(1.0)
        return is_idle, [one["reason"] for one in logs if one["event"] == "not idle"]


def test_a_run_until_idle_says_which_capture_it_waits_for_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, held(0, 1), held(1, 1), held(2, 2))
    run.said.intake.postpone(capture(1), SHOP, Waiting.UNREACHABLE, run.said.now, "connection refused")

    is_idle, (reason,) = run.after(10)

    assert not is_idle
    assert reason == (
        f"3 messages wait for 2 captures that are undecided, for 10 s already; the first is {capture(1).hex()} of resource shop/u-1, from "
        "orders[0]@0 on: the resource does not answer: connection refused; see `relay indoubt list`"
    )


def test_it_is_said_at_first_and_then_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, held(0, 1, None))

    assert run.after(2) == (False, []), "most captures are decided within seconds"
    assert [len(run.after(1)[1]) for _ in range(8)].count(1) == 1
    assert [len(run.after(SAID_EVERY_S / 10)[1]) for _ in range(30)].count(1) == 3


def test_once_it_is_decided_the_run_ends_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, Fake(0))
    run.said.intake.take_ready(10)

    assert run.after(10) == (True, [])


def test_what_has_left_the_log_while_it_waited_is_said_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, held(0, 1, value=b"v" * 2000))  # more than is kept in memory
    run.said.intake.decide(capture(1), SHOP, Decision.COMMITTED)
    place = run.said.intake.partitions[PLACE]
    ((lane, _),) = place.reloads()
    place.lose(lane, 1)

    assert run.after(10)[1] == [
        "1 message waits; orders[0]: held messages at offsets 0 to 0 have left the log; see `relay indoubt list`"
    ]
