"""Where a partition ends is asked of other brokers before a position above that is believed to be lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from relay.kafka import reading
from relay.kafka.reading import LOOKS_ANEW, PartitionReader
from relay.message.record import LogPartition

PLACE = LogPartition("orders", 0)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the clients are told, one after the other; the last one asks the last broker."""
    ends: list[int] = []

    class Client:
        def __init__(self, _: Any) -> None:
            self._number = Client.made
            Client.made += 1

        made = 0

        def get_watermark_offsets(self, _: Any, timeout: float) -> tuple[int, int]:
            assert timeout > 0
            return 0, ends[min(self._number, len(ends) - 1)]

        def hear(self) -> None:
            """Nobody is refused."""

    monkeypatch.setattr(reading, "Consumer", Client)
    monkeypatch.setattr(reading, "pausing", SimpleNamespace(sleep=lambda _: None))
    return ends


def reader() -> PartitionReader:
    return PartitionReader({}, committed=False, clock=lambda: 0.0, deadline_s=1.0)


@pytest.mark.parametrize("old", range(1, LOOKS_ANEW + 1))
def test_one_broker_that_knows_of_the_position_is_enough(told: list[int], old: int) -> None:
    told += [50] * old + [100]

    assert reader().end_anew(PLACE, 100) == 100


def test_what_none_of_them_knows_is_lost(told: list[int]) -> None:
    told += [50] * (LOOKS_ANEW + 1) + [100]

    assert reader().end_anew(PLACE, 100) == 50
