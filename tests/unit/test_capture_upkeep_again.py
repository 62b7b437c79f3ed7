"""Upkeep of decision rows in the long run: connections that break, topics that change or go, more to mark than at once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relay.capture import upkeep as upkeep_module
from relay.capture.marking import Ended
from relay.capture.upkeep import REFRESH_S
from relay.message.envelope import ResourceName
from relay.message.errors import Unreachable
from relay.resources.port import AgedRow, UnmarkedRow
from relay.world import clock, schedule
from tests.unit.test_capture_upkeep import Marking, database, decided, upkeep_of


@pytest.fixture(autouse=True)
def turned_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "start_thread", lambda *_: SimpleNamespace(join=lambda _: None, is_alive=lambda: False))


class Connection:
    """A connection to decision rows, of which there are none; ``fails``: to whatever it is asked, nobody answers."""

    def __init__(self, uuid: str = "u", *, fails: bool = False) -> None:
        self._uuid, self._fails = uuid, fails
        self.is_closed = False

    def uuid(self) -> str:
        return self._uuid

    def unmarked(self, *_: Any) -> list[UnmarkedRow]:
        if self._fails:
            raise Unreachable("the connection broke")
        return []

    def aged(self, *_: Any) -> list[AgedRow]:
        return list(self.unmarked())  # type: ignore[arg-type]

    def trim(self, _: Any) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(("uuid", "fails"), [("u", True), ("another database's", False)])
def test_a_connection_that_is_of_no_use_is_closed_and_another_one_made_while_topics_are_looked_at_again(
    uuid: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, waited, refreshed = [Connection(uuid, fails=fails), Connection()], list[float](), list[float]()
    made = iter(opened)
    upkeep = upkeep_of(lambda: next(made), Marking(), ResourceName("shop", "u"))
    monkeypatch.setattr(clock, "monotonic", lambda: sum(waited))
    monkeypatch.setattr(upkeep._appender, "refresh", lambda: refreshed.append(sum(waited)), raising=False)
    monkeypatch.setattr(upkeep._stop, "wait", lambda seconds: waited.append(seconds) or sum(waited) > 3 * REFRESH_S)

    upkeep._run()

    assert [one.is_closed for one in opened] == [True, False]
    assert refreshed == [REFRESH_S, 2 * REFRESH_S, 3 * REFRESH_S]
    upkeep.close(0)
    assert opened[1].is_closed


def test_a_decision_about_a_topic_that_is_gone_is_kept_for_a_day_and_not_for_ever(tmp_path: Path) -> None:
    shop = database(tmp_path, "shop")
    session = shop.session()
    old, young = decided(session, "gone"), decided(session, "gone")
    session._run("update relay_capture set marked = 1, created_at = created_at - 80000")
    session._run("update relay_capture set created_at = created_at - 80000 where capture = ?", (old,))
    session.close()

    upkeep_of(shop.decisions, Marking(), shop.identity()).trim()

    decisions = shop.decisions()
    assert list(decisions.read([old, young])) == [young]
    decisions.close()


def test_more_markers_than_a_page_are_not_brought_before_those_before_them_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep_module, "_PAGE", 2)
    shop, marking = database(tmp_path, "shop"), Marking()
    session = shop.session()
    for _ in range(5):
        decided(session, "orders")
    session.close()
    upkeep = upkeep_of(shop.decisions, marking, shop.identity())
    most: list[int] = []

    def submit(ended: Ended) -> None:
        marking.submitted.append(ended)
        marking.backlog += 1
        most.append(marking.backlog)

    def written(_: float) -> bool:
        marking.backlog = 0
        return False

    monkeypatch.setattr(marking, "submit", submit)
    monkeypatch.setattr(upkeep._stop, "wait", written)
    upkeep.mark_again()

    assert len(marking.submitted) == 5
    assert max(most) == 4, "two pages: the second only because the first has not more than one"
