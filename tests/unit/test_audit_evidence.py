"""What a route's monitor proves to the auditor: entries under the end that their transaction came to, whatever is read first."""

from __future__ import annotations

from relay.audit.evidence import UNKNOWN_AGE, Evidence
from relay.message.identity import digest
from relay.message.record import LogPartition
from relay.monitor.entries import (
    DEAD,
    DELIVERED,
    NOT_DELIVERED,
    Begin,
    InputRange,
    Page,
    Proof,
    Seal,
    SettleSeal,
)

ONE, TWO = b"1" * 16, b"2" * 16


def d(name: str) -> bytes:
    return digest(b"c", name.encode())


def page(*names: str, instance: bytes = ONE, n: int = 1, proof: Proof = Proof.SEALED, outcome: int = DELIVERED,
         recovery: str | None = None, replay: int = 0) -> Page:  # fmt: skip
    rows = len(names)
    return Page("w", instance, n, proof, recovery, "orders", 0, b"".join(map(d, names)), bytes(8 * rows),
                list(range(rows)), bytes([outcome]) * rows, bytes([replay]) * rows if replay else b"")  # fmt: skip


def begin(n: int, instance: bytes = ONE, name: str = "shop.r.i.0") -> Begin:
    return Begin("w", name, instance, n, n - 1, [InputRange("orders", 0, 0, 3)], [])


def evidence(*entries: Page | Begin | Seal | SettleSeal) -> Evidence:
    made = Evidence()
    for entry in entries:
        made.take(0, entry)
    return made


def outcomes(*entries: Page | Begin | Seal | SettleSeal) -> dict[bytes, int]:
    return {entry.digest: entry.outcome for entry in evidence(*entries).proven()}


def test_entries_count_under_a_seal_or_below_the_last_begun_n() -> None:
    assert outcomes(begin(1), page("a")) == {}
    assert outcomes(begin(1), page("a"), Seal("w", ONE, 1)) == {d("a"): DELIVERED}
    assert outcomes(begin(1), page("a"), begin(2)) == {d("a"): DELIVERED}


def test_of_an_instances_ends_the_last_counts_in_whichever_partition_it_is_read() -> None:
    assert outcomes(begin(2), begin(1), page("a")) == {d("a"): DELIVERED}
    assert outcomes(Seal("w", ONE, 2), Seal("w", ONE, 1), page("a", n=2)) == {d("a"): DELIVERED}


def test_entries_under_a_settle_seal_count_only_as_proven() -> None:
    settle = SettleSeal("w2", ONE, 1)
    assert outcomes(begin(1), page("a"), settle) == {}
    assert outcomes(begin(1), page("a"), begin(2), settle) == {}
    assert outcomes(begin(1), page("a", proof=Proof.PROVEN), settle) == {d("a"): DELIVERED}


def test_a_void_entry_takes_an_earlier_one_back() -> None:
    void = page("a", instance=TWO, proof=Proof.VOID, outcome=NOT_DELIVERED)
    assert outcomes(begin(1), page("a"), Seal("w", ONE, 1), void) == {}


def test_the_latest_entry_that_counts_decides() -> None:
    unsealed = page("a", instance=TWO, n=9, outcome=DEAD)
    assert outcomes(page("a", proof=Proof.PROVEN), unsealed) == {d("a"): DELIVERED}


def test_the_entry_of_the_last_redrive_decides_whatever_comes_behind_it() -> None:
    last = page("a", "b", proof=Proof.PROVEN, outcome=DEAD, replay=2)
    for before in (page("a", proof=Proof.PROVEN), page("a", proof=Proof.PROVEN, replay=1)):
        assert outcomes(last, before) == {d("a"): DEAD, d("b"): DEAD}
        assert [one.replay for one in evidence(last, before).proven()] == [2, 2]


def test_what_a_recovery_enters_is_no_delivery_transaction() -> None:
    recovered = page("b", proof=Proof.PROVEN, recovery="w2", instance=TWO)
    groups = {one.digest: one.group for one in evidence(page("a", proof=Proof.PROVEN), recovered).proven()}

    assert groups == {d("a"): 0, d("b"): -1}


def test_a_begin_without_an_end_leaves_its_inputs_open_until_a_successor_begins() -> None:
    made = evidence(begin(1))
    assert made.open_ranges() == [InputRange("orders", 0, 0, 3)]
    made.take(0, begin(1, TWO, "another worker's"))
    made.take(0, Seal("w", TWO, 1))
    assert made.open_ranges() == [InputRange("orders", 0, 0, 3)], "one that succeeds nobody"
    made.take(0, begin(1, TWO))
    assert made.open_ranges() == []
    assert evidence(begin(1), SettleSeal("w2", ONE, 1)).open_ranges() == []


def test_what_is_added_to_a_copy_is_unknown_to_what_was_read_before() -> None:
    made = evidence(begin(1), page("a"))
    later = made.copy()
    for entry in (Seal("w", ONE, 1), begin(5), SettleSeal("w2", TWO, 1), page("b", proof=Proof.PROVEN)):
        later.take(0, entry)

    assert {one.digest for one in later.proven()} == {d("a"), d("b")}
    assert list(made.proven()) == []
    assert made.open_ranges() == [InputRange("orders", 0, 0, 3)]
    made.take(0, SettleSeal("w2", ONE, 1))
    assert {one.digest for one in later.proven()} == {d("a"), d("b")}


def test_the_first_transaction_since_a_time_is_the_lowest_of_those_that_a_broker_dated() -> None:
    made = Evidence()
    made.take(0, page("a", n=3), at=100)
    made.take(1, page("b", n=5), at=100)
    made.take(1, page("c", n=1), at=99)
    made.take(1, page("d", n=2, recovery="w2"), at=200)

    assert made.first_since(100) == {ONE: 3}, "a recovery enters at any time after it"
    assert (made.oldest(0), made.oldest(1), made.oldest(2)) == (100, 100, UNKNOWN_AGE)
    assert evidence(page("a")).oldest(0) == UNKNOWN_AGE, "no time was given"


def test_a_death_has_the_begin_of_its_own_transaction_in_its_own_partition() -> None:
    made = Evidence()
    made.take(0, begin(1))
    made.take(1, begin(1, TWO))
    for partition, one in ((0, page("a", outcome=DEAD)), (1, page("b", outcome=DEAD)), (1, page("c", outcome=DEAD, instance=TWO)),
                           (0, page("d", outcome=DEAD, recovery="w2"))):  # fmt: skip
        made.take(partition, one)
    for instance in (ONE, TWO):
        made.take(0, Seal("w", instance, 1))

    assert {one.digest: one.begun for one in made.proven()} == {d("a"): begin(1), d("b"): None, d("c"): begin(1, TWO), d("d"): None}


def test_places_of_the_log_are_those_of_the_pages() -> None:
    assert evidence(begin(1), page("a")).partitions == {LogPartition("orders", 0)}
    assert evidence(begin(1), page("a", instance=TWO)).instances == {ONE, TWO}


def test_what_was_redriven_is_known_by_the_entries_that_count() -> None:
    proven, open_one = page("a", proof=Proof.PROVEN, replay=1), page("b", instance=TWO, n=1, replay=1)

    assert evidence(proven, page("c", proof=Proof.PROVEN), begin(1, instance=TWO), open_one).redriven() == {d("a")}
    assert evidence(begin(1, instance=TWO), open_one, Seal("w", TWO, 1)).redriven() == {d("b")}
