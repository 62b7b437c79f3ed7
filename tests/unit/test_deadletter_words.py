"""What `relay deadletter redrive` says while it waits for workers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

import pytest

from relay.cli import deadletter
from relay.control.dead_letters import DeadLetters
from relay.control.redrive_orders import Ordered
from relay.message.record import LogPartition
from relay.monitor.redrive import Order, Wanted

ROW = {"digest": "a", "route": "main"}


class Interrupted:
    """Orders that are written, and a person who does not wait for the workers."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def plan(self, rows: list[dict[str, Any]], _who: str) -> Ordered:
        return Ordered(rows, Counter(), [])

    def order(self, _plan: Ordered, _wait_s: float, written: Callable[[], None] = lambda: None) -> Ordered:
        written()
        raise KeyboardInterrupt


def redrive(monkeypatch: pytest.MonkeyPatch, **given: Any) -> None:
    monkeypatch.setattr(deadletter, "load", lambda path: path)
    monkeypatch.setattr(deadletter, "dead_letters", lambda *_, **__: DeadLetters([ROW], complete=True))
    monkeypatch.setattr(deadletter, "Ordering", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        deadletter.redrive_command("relay.toml", every=True, **given)


def test_orders_are_told_before_the_wait_which_takes_none_of_them_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    redrive(monkeypatch, wait=30.0)

    assert capsys.readouterr().out == "1 ordered; waiting up to 30 s for their workers, who do it also without that\n"


def test_programs_read_one_document_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    redrive(monkeypatch, wait=30.0, as_json=True)

    assert capsys.readouterr().out == ""


def test_who_does_not_wait_is_not_told_to(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    redrive(monkeypatch, wait=0)

    assert capsys.readouterr().out == ""


def test_where_none_can_be_ordered_nobody_is_said_to_be_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Interrupted, "plan", lambda *_: Ordered([], Counter({"route 'main' is configured no more": 1}), []))

    redrive(monkeypatch, wait=30.0)

    assert capsys.readouterr().out == ""


def test_what_would_be_ordered_is_no_order_to_programs(capsys: pytest.CaptureFixture[str]) -> None:
    order = Order(b"o", "main", LogPartition("log", 0), b"t", [Wanted(1, b"a", 1)], "ann", 1)

    deadletter._print_plan(Ordered([ROW], Counter(), [order]), as_json=True)

    told = json.loads(capsys.readouterr().out)
    assert (told["messages"], told["orders"], told["waiting"]) == ([ROW], [], 0)
