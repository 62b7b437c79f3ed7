"""Outcomes that a queue's store has decided go when they are told to, and no others."""

from __future__ import annotations

import pytest

from tests.contracts.queue_media import NOW, Medium, opened


class TestForget:
    def test_only_committed_ones_go_and_only_those_that_are_named(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        for attempt, committed in (("t1", True), ("t2", True), ("t3", False)):
            store.settle(attempt, committed=committed, now=NOW)

        store.forget(["t1", "t3", "t4"])

        assert store.outcomes() == [("t2", True), ("t3", False)]
        assert store.outcome("t1") is None

    def test_a_unit_that_is_taken_back_forgets_nothing(self, medium: Medium) -> None:
        store = opened(medium, "ann")
        store.settle("t1", committed=True, now=NOW)

        def forget_and_fail() -> None:
            with store.transaction():
                store.forget(["t1"])
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            forget_and_fail()

        assert store.outcome("t1") is True
