"""What the auditor holds of each message; DESIGN.md has what a process of millions takes, allocator and growth included."""

from __future__ import annotations

import tracemalloc

import pytest

from relay.audit.checker import Checker, CommitOrder, State
from relay.audit.evidence import Evidence
from relay.audit.ledger import Fact, Ledger
from relay.audit.readers import Identity, fill
from relay.config.routes import RouteConfig, TopicDestination
from relay.message.identity import digest
from relay.message.record import LogPartition
from relay.monitor.entries import DELIVERED, Page, Proof
from tests.unit.test_intake import Fake

LOG = LogPartition("orders", 0)
MESSAGES = 40_960
ROWS = 4096


def name(number: int) -> bytes:
    return digest(b"c", b"%d" % number)


def monitor() -> Evidence:
    evidence = Evidence()
    for first in range(0, MESSAGES, ROWS):
        offsets = list(range(first, first + ROWS))
        evidence.take(
            0,
            Page("w", bytes(16), first, Proof.PROVEN, None, *LOG, b"".join(map(name, offsets)), bytes(8 * ROWS), offsets,
                 bytes([DELIVERED]) * ROWS, destinations=offsets),
        )  # fmt: skip
    return evidence


@pytest.mark.parametrize(("is_table", "most"), [(False, 180), (True, 310)])
def test_the_memory_of_a_message_stays_what_is_said_of_it(*, is_table: bool, most: int) -> None:
    tracemalloc.start()
    try:
        evidence, ledger = monitor(), Ledger([LOG], matches=is_table)
        for number in range(MESSAGES):
            one = name(number)
            ledger.add(Fact(0, number, one, b"lane", 7, bytes(bytearray(one)) if is_table else None))
        checker = Checker(ledger, ordered=True)
        if is_table:
            checker.rows(map(name, range(MESSAGES)), "ledger")
            order = CommitOrder(ledger)
            for entry in evidence.proven_of(ledger.index):
                order.note(entry.digest, entry.destination, entry.group)
            checker.commits(order)
        else:
            checker.outputs([LOG], ((0, number, name(number), 7) for number in range(MESSAGES)))
        findings = checker.conclude(State({LOG: MESSAGES}, {LOG: 0}, set(), (), {}, ()))
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (findings.delivered, findings.reordered, findings.lost) == (MESSAGES, 0, 0)
    assert peak / MESSAGES < most


def test_the_entries_of_an_index_are_those_that_decide() -> None:
    evidence = monitor()
    evidence.take(0, Page("w", b"2" * 16, 1, Proof.PROVEN, None, *LOG, name(3), bytes(8), [3], bytes([1]), bytes([1])))
    index = {name(number): row for row, number in enumerate((5, 3, MESSAGES + 1))}

    found = sorted(evidence.proven_of(index))

    assert [one._replace(group=0) for one in found] == sorted(one._replace(group=0) for one in evidence.proven(index))
    assert {one.digest: one.outcome for one in found} == {name(5): DELIVERED, name(3): 1}


@pytest.mark.parametrize("order", ["publisher", "key"])
def test_names_of_lanes_and_resources_take_no_more_of_it_than_other_messages(order: str) -> None:
    route = RouteConfig.model_validate({"name": "r", "from": ["orders"], "order": order, "to": TopicDestination(topic="out")})
    ledger = Ledger([LOG])

    def batch(number: int) -> list[tuple[int, int, Fake]]:
        long = b"%08d" % number + bytes(100_000)
        headers = [("ce_id", b"%d" % number), ("ce_source", long)]
        if number % 2:
            headers += [("ce_relaycapture", b"%032x" % number), ("ce_relayresource", long + b"/u")]
        return [(0, number, Fake(number, headers, key=long))]

    tracemalloc.start()
    try:
        fill(ledger, (batch(number) for number in range(200)), route, Identity(route, {"orders": bytes(16)}), None)
        kept, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (len(ledger), len(ledger.open_captures())) == (100, 100)
    assert kept < 1_000_000
