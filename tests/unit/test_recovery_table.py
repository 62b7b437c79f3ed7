"""Recovery's decision table is total and unambiguous, and settling writes down exactly what it says."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.monitor.entries import (
    DEAD,
    DELIVERED,
    NOT_DELIVERED,
    UNKNOWN_OFFSET,
    Begin,
    InputRange,
    Page,
    Proof,
    Seal,
    SettleSeal,
)
from relay.monitor.evidence import Evidence
from relay.monitor.recovery import TABLE, Do, Entered, Shown, decide, settle
from relay.monitor.resolution import Told
from tests.memory_index import memory_index

VICTIM, RECOVERY = b"V" * 16, b"R" * 16
NAMES = "abcdef"


def digest(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def begin(n: int = 3) -> Begin:
    return Begin("victim", "t", VICTIM, n, n - 1, [InputRange("log", 2, 0, 9)], [])


def page(names: str, outcome: int = DELIVERED, n: int = 3) -> Page:
    return Page(
        "victim", VICTIM, n, Proof.SEALED, None, "log", 2,
        b"".join(map(digest, names)), b"".join(name.encode() * 8 for name in names),
        [NAMES.index(name) for name in names], bytes([outcome]) * len(names),
    )  # fmt: skip


def rows(found: Page) -> dict[str, tuple[int, int]]:
    """Return (log offset, outcome) by name."""
    return {
        found.digests[16 * i : 16 * i + 16].decode().rstrip("."): (offset, found.outcomes[i])
        for i, offset in enumerate(found.offsets)
    }


INPUTS = list(product(Entered, Shown, Told))


@pytest.mark.parametrize(("entered", "shown", "told"), INPUTS)
def test_exactly_one_row_matches_each_input(entered: Entered, shown: Shown, told: Told) -> None:
    assert sum(entered in row.entered and shown in row.shown and told in row.told for row in TABLE) == 1


def test_the_inputs_are_all_there_are_and_no_row_is_idle() -> None:
    assert len(INPUTS) == len(set(INPUTS)) == 27
    assert {decide(*each).label for each in INPUTS} == {row.label for row in TABLE}


@pytest.mark.parametrize(("entered", "shown", "told"), INPUTS)
def test_a_person_decides_only_where_no_evidence_does(entered: Entered, shown: Shown, told: Told) -> None:
    silent = decide(entered, shown)
    if silent.do is not Do.STAY_IN_DOUBT:
        assert decide(entered, shown, told) is silent
    elif told is not Told.NOTHING:
        said = {Told.COMMIT: Do.ENTER_AS_TOLD, Told.ABORT: Do.VOID_AND_DELIVER}
        assert decide(entered, shown, told).do is said[told]


@pytest.mark.parametrize(
    ("entered", "shown", "do"),
    [
        (Entered.PROVEN, Shown.ABSENT, Do.NOTHING),
        (Entered.PROVEN, Shown.PRESENT, Do.NOTHING),
        (Entered.PROVEN, Shown.UNREADABLE, Do.NOTHING),
        (Entered.UNSEALED, Shown.PRESENT, Do.ADD_ENTRY),
        (Entered.UNSEALED, Shown.ABSENT, Do.VOID_AND_DELIVER),
        (Entered.UNSEALED, Shown.UNREADABLE, Do.STAY_IN_DOUBT),
        (Entered.NOTHING, Shown.PRESENT, Do.ADD_ENTRY),
        (Entered.NOTHING, Shown.ABSENT, Do.DELIVER),
        (Entered.NOTHING, Shown.UNREADABLE, Do.STAY_IN_DOUBT),
    ],
)
def test_what_each_row_does(entered: Entered, shown: Shown, do: Do) -> None:
    assert decide(entered, shown).do is do


def test_every_row_is_labelled_once_and_no_row_guesses() -> None:
    assert len({row.label for row in TABLE}) == len(TABLE)
    for row in TABLE:
        if Shown.UNREADABLE in row.shown and Told.NOTHING in row.told:
            assert row.do in (Do.NOTHING, Do.STAY_IN_DOUBT)


def test_what_the_outputs_show_is_added_and_the_rest_is_taken_back() -> None:
    done = settle(begin(), [page("abc")], {digest("a")}, worker="w", instance=RECOVERY, n=1)

    proven, void = done.pages
    assert (proven.proof, rows(proven)) == (Proof.PROVEN, {"a": (0, DELIVERED)})
    assert (void.proof, rows(void)) == (Proof.VOID, {"b": (1, NOT_DELIVERED), "c": (2, NOT_DELIVERED)})
    assert (done.added, done.voided) == (1, 2)
    assert {(p.worker, p.recovery, p.instance, p.n) for p in done.pages} == {("w", "w", RECOVERY, 1)}


def test_an_output_without_an_entry_gets_one_without_a_log_position() -> None:
    done = settle(begin(), [], {digest("a")}, worker="w", instance=RECOVERY, n=1)

    (proven,) = done.pages
    assert rows(proven) == {"a": (UNKNOWN_OFFSET, DELIVERED)}
    assert (proven.topic, proven.partition) == ("log", 2)


def test_outputs_of_a_transaction_that_names_no_inputs_are_entered_where_its_other_entries_are() -> None:
    nothing_named = replace(begin(), inputs=[])

    done = settle(nothing_named, [page("a")], {digest("a"), digest("b")}, worker="w", instance=RECOVERY, n=1)

    assert [(rows(p).keys(), p.topic, p.partition) for p in done.pages] == [({"a"}, "log", 2), ({"b"}, "log", 2)]


def test_a_dead_letter_that_is_there_stays_a_dead_letter() -> None:
    done = settle(begin(), [page("a", DEAD)], {digest("a")}, worker="w", instance=RECOVERY, n=1)

    assert rows(done.pages[0]) == {"a": (0, DEAD)}


def test_the_seal_names_the_transaction_that_was_settled() -> None:
    done = settle(begin(7), [], set(), worker="w", instance=RECOVERY, n=1)

    assert done.pages == []
    assert done.seal == SettleSeal("w", VICTIM, 7)


@given(entered=st.sets(st.sampled_from(NAMES)), present=st.sets(st.sampled_from(NAMES)), n=st.integers(1, 3))
def test_after_settling_the_index_holds_what_the_outputs_show(entered: set[str], present: set[str], n: int) -> None:
    index = memory_index(2)
    evidence = Evidence(index.add_page, index.void)
    entries = [page("".join(sorted(entered)), n=n)] if entered else []
    for offset, entry in enumerate([begin(n), *entries]):
        evidence.add(offset, entry)
    assert not any(index.find([digest(name) for name in NAMES]))

    done = settle(
        begin(n), evidence.pending(VICTIM, n), {digest(name) for name in present},
        worker="w", instance=RECOVERY, n=1,
    )  # fmt: skip
    for offset, entry in enumerate([*done.pages, done.seal, Seal("w", RECOVERY, 1)], 100):
        evidence.add(offset, entry)

    known = index.find([digest(name) for name in NAMES])
    assert {name for name, found in zip(NAMES, known, strict=True) if found} == present
    assert evidence.is_ended(VICTIM, n)
