"""The reading rules of the monitor, case by case and against a slow row-wise model of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.monitor.entries import (
    Begin,
    Entry,
    InputRange,
    Page,
    Proof,
    Seal,
    SettleSeal,
    encode,
    transaction_of_page,
)
from relay.monitor.evidence import Evidence
from relay.monitor.ranges import RangeEntry
from tests.memory_index import memory_index

ONE, TWO = b"1" * 16, b"2" * 16


def digest(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def begin(
    instance: bytes, n: int, previous: int | None = None, tid: str = "t", topic: str = "orders"
) -> Begin:
    return Begin("w", tid, instance, n, n - 1 if previous is None else previous, [], [])


def page(
    instance: bytes,
    n: int,
    names: str,
    proof: Proof = Proof.SEALED,
    outcomes: bytes | None = None,
    offset: int = 0,
) -> Page:
    rows = len(names)
    return Page(
        "w", instance, n, proof, None if proof is Proof.SEALED else "r", "orders", 0,
        b"".join(map(digest, names)), bytes(8 * rows), [offset + i for i in range(rows)],
        bytes(rows) if outcomes is None else outcomes,
    )  # fmt: skip


def fold(*entries: Entry) -> tuple[Evidence, set[str]]:
    """Return the evidence and the names of the messages whose delivery it proves."""
    index = memory_index(0)
    evidence = Evidence(index.add_page, index.void)
    for offset, entry in enumerate(entries):
        evidence.add(offset, entry)
    return evidence, {name for name in "abcdef" if index.find([digest(name)])[0]}


@pytest.mark.parametrize(
    ("entry", "has_delivered"),
    [
        (begin(ONE, 1), False),
        (Seal("w", ONE, 1), False),
        (SettleSeal("w", ONE, 1), False),
        (begin(ONE, 2), True),
        (Seal("w", ONE, 2), True),
        (replace(begin(ONE, 1), inputs=[InputRange("orders", 0, 5, 6)]), True),
        (page(ONE, 1, "a"), True),
        (RangeEntry("w", ONE, 1, "orders", b"/s", b"i", [1, 2], [], [], [], 9), True),
    ],
    ids=["claim", "seal of a claim", "settled claim", "second", "seal of a second", "with inputs", "page", "range"],
)
def test_all_but_first_claims_tells_that_a_position_has_stood_beside_it(entry: Entry, *, has_delivered: bool) -> None:
    evidence, _ = fold(entry)

    assert evidence.has_delivered is has_delivered


def test_an_entry_counts_only_when_its_transaction_is_sealed() -> None:
    before, after = [begin(ONE, 1), page(ONE, 1, "ab")], [Seal("w", ONE, 1)]

    evidence, names = fold(*before)
    assert (names, evidence.unsealed()) == (set(), [before[0]])
    assert evidence.pending(ONE, 1) == [before[1]]
    evidence, names = fold(*before, *after)
    assert (names, evidence.unsealed(), evidence.pending(ONE, 1)) == ({"a", "b"}, [], [])


def test_a_seal_of_another_instance_or_an_older_transaction_seals_nothing() -> None:
    assert fold(begin(ONE, 2), page(ONE, 2, "a"), Seal("w", TWO, 2), Seal("w", ONE, 1))[1] == set()


def test_a_later_begin_proves_the_transactions_before_it() -> None:
    evidence, names = fold(begin(ONE, 1), page(ONE, 1, "a"), begin(ONE, 2), page(ONE, 2, "b"))

    assert names == {"a"}
    assert [one.n for one in evidence.unsealed()] == [2]


def test_a_later_page_proves_earlier_ones_where_compaction_took_the_begins() -> None:
    evidence, names = fold(page(ONE, 1, "a"), page(ONE, 5, "b"), page(ONE, 5, "c"), page(ONE, 9, "d"))

    assert names == {"a", "b", "c"}
    assert evidence.unsealed() == []


def test_under_a_settle_seal_only_flagged_entries_count() -> None:
    open_one = [begin(ONE, 1), page(ONE, 1, "abc")]
    settled = [
        begin(TWO, 1, -1),
        page(TWO, 1, "a", Proof.PROVEN),
        page(TWO, 1, "bc", Proof.VOID, b"\xff\xff"),
        SettleSeal("w", ONE, 1),
        Seal("w", TWO, 1),
    ]
    evidence, names = fold(*open_one, *settled)

    assert names == {"a"}
    assert (evidence.unsealed(), evidence.pending(ONE, 1)) == ([], [])


def test_folding_what_was_folded_again_changes_nothing() -> None:
    entries = [begin(ONE, 1), page(ONE, 1, "a"), begin(ONE, 2), page(ONE, 2, "b"), Seal("w", ONE, 2)]
    evidence, names = fold(*entries, *entries[:-1])

    assert names == {"a", "b"}
    assert (evidence.unsealed(), evidence.pending(ONE, 1), evidence.pending(ONE, 2), evidence.alarms) == ([], [], [], [])


def test_a_settled_page_stays_settled_when_the_range_is_folded_again() -> None:
    entries = [begin(ONE, 1), page(ONE, 1, "a"), SettleSeal("w", ONE, 1)]
    evidence, names = fold(*entries, *entries[:2])

    assert (names, evidence.unsealed(), evidence.pending(ONE, 1)) == (set(), [], [])


def test_a_settle_seal_stands_above_an_ordinary_one() -> None:
    entries = [begin(ONE, 1), SettleSeal("w", ONE, 1), Seal("w", ONE, 1), page(ONE, 1, "a")]

    assert fold(*entries)[1] == set()


def test_a_settle_seal_leaves_the_older_transactions_proven() -> None:
    _, names = fold(
        begin(ONE, 1), page(ONE, 1, "a"), Seal("w", ONE, 1), page(ONE, 2, "b"), SettleSeal("w", ONE, 2)
    )

    assert names == {"a"}


def test_a_void_entry_takes_back_to_an_older_outcome() -> None:
    sealed = [begin(ONE, 1), page(ONE, 1, "ab"), Seal("w", ONE, 1)]
    _, names = fold(*sealed, page(TWO, 1, "ab", Proof.VOID, b"\xff\x01"))

    assert names == {"b"}


def test_ids_to_fence_are_the_open_ones_and_the_last_claimant() -> None:
    evidence, _ = fold(
        begin(ONE, 1, -1, "dead"),
        begin(TWO, 1, -1, "ended"),
        Seal("w", TWO, 1),
        begin(b"3" * 16, 1, -1, "last"),
        Seal("w", b"3" * 16, 1),
    )

    assert evidence.transactional_ids_open() == {"dead", "last"}


def test_a_newer_instance_of_the_same_id_ends_the_begin_before_it() -> None:
    evidence, _ = fold(
        begin(ONE, 1, -1, "t"), begin(TWO, 1, -1, "t"), Seal("w", TWO, 1), begin(b"3" * 16, 1, -1, "x")
    )

    assert evidence.transactional_ids_open() == {"x"}
    assert [one.instance for one in evidence.unsealed()] == [ONE, b"3" * 16]


def test_a_begin_that_names_a_predecessor_nobody_saw_alarms() -> None:
    assert fold(begin(ONE, 1, -1), Seal("w", ONE, 1), begin(ONE, 3, 1))[0].alarms == []
    assert fold(begin(ONE, 7, 6), Seal("w", ONE, 7), begin(ONE, 8, 7), begin(ONE, 8, 7))[0].alarms == []
    # Compaction took the begins 1 and 2 away, not the page.
    assert fold(page(ONE, 1, "a"), begin(ONE, 3, 2))[0].alarms == []
    (alarm,) = fold(begin(ONE, 1, -1), Seal("w", ONE, 1), begin(ONE, 3, 2))[0].alarms
    assert "names 2" in alarm
    assert "1 is the last" in alarm


@dataclass
class Model:
    """The rules read literally, over all entries at once: (offset, entry) in order."""

    entries: list[Entry] = field(default_factory=list)

    def counts(self, one: Page) -> bool:
        key = (one.instance, one.n)
        if any(isinstance(e, SettleSeal) and (e.instance, e.n) == key for e in self.entries):
            return False
        return any(
            (isinstance(e, Seal) and e.n >= one.n) or (isinstance(e, Begin) and e.n > one.n)
            for e in self.entries
            if e.instance == one.instance
        )

    def proven(self) -> set[bytes]:
        latest: dict[bytes, bool] = {}
        for e in self.entries:
            if not isinstance(e, Page) or (e.proof is Proof.SEALED and not self.counts(e)):
                continue
            for i in range(e.rows):
                latest[e.digests[16 * i : 16 * i + 16]] = e.proof is not Proof.VOID or e.outcomes[i] != 255
        return {name for name, is_delivered in latest.items() if is_delivered}


@st.composite
def histories(draw: st.DrawFn) -> list[Entry]:
    """What workers that keep the protocol leave in one partition, read_committed, each crashing as it likes.

    Only a transaction's begin, pages and seal up to a drawn point are visible (a stray commit's prefix), or nothing;
    the next owner settles what it finds open by outputs it draws, then delivers the rest.
    """
    entries: list[Entry] = []
    todo = list("abcdefghijklmnop")
    number = 0
    for life in range(draw(st.integers(1, 4))):
        instance = bytes([life]) * 16
        model = Model(entries)
        settlement: list[Entry] = []
        open_ones = [
            e for e in entries
            if isinstance(e, Begin) and not any(
                isinstance(x, Seal | SettleSeal | Begin) and x is not e and x.instance == e.instance and x.n >= e.n
                for x in entries
            )
        ]  # fmt: skip
        for one in open_ones:
            rows = [e for e in entries if isinstance(e, Page) and (e.instance, e.n) == (one.instance, one.n)]
            names = [e.digests[i : i + 1].decode() for e in rows for i in range(0, len(e.digests), 16)]
            there = [name for name in names if draw(st.booleans())]
            gone = [name for name in names if name not in there]
            settlement += [page(instance, 0, "".join(there), Proof.PROVEN)] if there else []
            settlement += [page(instance, 0, "".join(gone), Proof.VOID, b"\xff" * len(gone))] if gone else []
            settlement.append(SettleSeal("w", one.instance, one.n))
        entries += [begin(instance, 0, -1, f"t{life}"), *settlement, Seal("w", instance, 0)]
        for n in range(1, draw(st.integers(1, 4))):
            done = Model(entries).proven()
            fresh = [name for name in todo if digest(name) not in done]
            batch = fresh[: draw(st.integers(0, 3))]
            whole: list[Entry] = [begin(instance, n, tid=f"t{life}")]
            whole += [page(instance, n, name, offset=(number := number + 1)) for name in batch]
            whole.append(Seal("w", instance, n))
            visible = draw(st.integers(0, len(whole)))
            entries += whole[:visible]
            if visible < len(whole):
                break
        del model
    return entries


def compacted(entries: list[Entry], clean: int) -> list[tuple[int, Entry]]:
    """Keep only the last begin, seal and settle seal of each key among the first ``clean`` entries."""
    last = {
        (type(e), e.worker, e.instance): i for i, e in enumerate(entries[:clean]) if not isinstance(e, Page)
    }
    keep = set(last.values())
    return [(i, e) for i, e in enumerate(entries) if i >= clean or i in keep or isinstance(e, Page)]


@settings(max_examples=500)
@given(st.data())
def test_folding_agrees_with_the_rules_read_literally(data) -> None:
    entries = data.draw(histories())
    expected = Model(entries).proven()
    index = memory_index(0)
    evidence = Evidence(index.add_page, index.void)
    for offset, entry in compacted(entries, data.draw(st.integers(0, len(entries)))):
        evidence.add(offset, entry)
        assert len({key for one in evidence.unsealed() for key in [one.instance]}) <= 2
    names = [digest(name) for name in "abcdefghijklmnop"]

    assert {name for name, value in zip(names, index.find(names), strict=True) if value} == expected
    assert evidence.alarms == []


def test_an_unread_page_proves_earlier_transactions_as_a_read_one_does() -> None:
    scan = Evidence()
    scan.add(0, begin(ONE, 1))
    assert scan.unsealed() == [begin(ONE, 1)]
    scan.add_unread(ONE, 2)
    assert scan.unsealed() == []


@settings(max_examples=200)
@given(st.data())
def test_a_scan_that_leaves_pages_unread_finds_the_same_open(data) -> None:
    entries = data.draw(histories())
    whole, scan = Evidence(), Evidence()
    for offset, entry in compacted(entries, data.draw(st.integers(0, len(entries)))):
        whole.add(offset, entry)
        page_of = transaction_of_page(encode(entry, 7)[0])
        assert (page_of is not None) == isinstance(entry, Page)
        if page_of is None:
            scan.add(offset, entry)
        else:
            assert page_of == (entry.instance, entry.n)
            scan.add_unread(*page_of)

    assert scan.unsealed() == whole.unsealed()
    assert scan.transactional_ids_open() == whole.transactional_ids_open()
