"""Effects that nobody can look at any more count by what was recorded of them, and the verdict says how many those are."""

from __future__ import annotations

import pytest

from relay.audit.checker import Checker, Findings, State
from relay.audit.ledger import Fact, Ledger
from relay.audit.verify import RouteReport
from relay.message.record import LogPartition

LOG = LogPartition("orders", 0)
A, B, C = (bytes([letter]) * 16 for letter in b"abc")


@pytest.mark.parametrize(
    ("there", "took"),
    [
        ([], "are recorded to have taken effect, which was not looked at,"),
        ([A], "took effect (2 of them are recorded to, which was not looked at)"),
        ([A, B, C], "took effect"),
    ],
)
def test_of_a_queue_that_lets_messages_go_what_it_still_has_was_looked_at(there: list[bytes], took: str) -> None:
    ledger = Ledger([LOG])
    for offset, digest in enumerate((A, B, C)):
        ledger.add(Fact(0, offset, digest, b"lane", 7, None))
    checker = Checker(ledger, ordered=True)
    checker.rows(there, "queue q")
    checker.recorded([A, B, C], "inbox")

    found = checker.conclude(State({LOG: 3}, {LOG: 0}, set(), set(), {}, ()))

    report = RouteReport("r", "queue q", "g", found, [], 0.0, allow_lag=False, ordered=True)
    assert report.sentence == f"r: 3 of 3 captured messages {took} exactly once, in order."


def test_where_nothing_is_wrong_but_what_is_on_its_way_the_verdict_says_how_to_let_it_pass() -> None:
    def said(**counts: int) -> str:
        return RouteReport("r", "topic t", "g", Findings(**counts), [], 0.0, allow_lag=False, ordered=True).sentence

    assert said(captured=3, delivered=2, unseen=1) == "r: 1 unseen; `--allow-lag` lets pass what is still on its way."
    assert said(captured=3, delivered=1, unseen=1, lost=1) == "r: 1 lost, 1 unseen."
