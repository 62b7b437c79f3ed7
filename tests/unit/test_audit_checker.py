"""The checker finds every planted fault, names it, and finds nothing where nothing is wrong."""

from __future__ import annotations

import pytest

from relay.audit.checker import MUST_BE_ZERO, Checker, CommitOrder, Findings, State
from relay.audit.ledger import Fact, Ledger, Outcome, Place
from relay.audit.letters import SecondOutcomes
from relay.audit.memory import Memory
from relay.message.identity import digest
from relay.message.record import LogPartition
from relay.monitor.entries import DEAD, DELIVERED, SKIPPED, InputRange

LOG = LogPartition("orders", 0)
OUT = [LogPartition("ledger", 0), LogPartition("ledger", 1)]


def d(name: str) -> bytes:
    return digest(b"c", name.encode())


def fact(
    name: str,
    offset: int,
    *,
    lane: str = "a",
    content: int = 7,
    partition: int = 0,
    match: bytes | None = None,
) -> Fact:
    return Fact(partition, offset, d(name), lane.encode(), content, match)


def ledger(*names: str) -> Ledger:
    made = Ledger([LOG])
    for offset, name in enumerate(names):
        made.add(fact(name, offset))
    return made


def effects(*names: str, content: int = 7) -> list[tuple[int, int, bytes, int]]:
    return [(0, offset, d(name), content) for offset, name in enumerate(names)]


def state(position: int = 100, *, low: int = 0, dead: tuple[str, ...] = (), outcomes: dict[str, int] | None = None,
          forgotten: tuple[str, ...] = (), ranges: tuple[InputRange, ...] = ()) -> State:  # fmt: skip
    by_digest = {d(name): outcome for name, outcome in (outcomes or {}).items()}
    return State({LOG: position}, {LOG: low}, {d(name) for name in dead}, {d(name) for name in forgotten}, by_digest, ranges)


def audit(
    log: Ledger, *names: str, at: State | None = None, ordered: bool = True, expired: tuple[str, ...] = ()
) -> Findings:
    checker = Checker(log, ordered=ordered)
    checker.outputs(OUT, effects(*names))
    return checker.conclude(at or state(), {d(name) for name in expired})


def committed(log: Ledger, commits: list[tuple[str, int, int]]) -> Findings:
    """Judge a table whose inbox has all messages of the log, committed as (name, number, transaction) say."""
    order = CommitOrder(log)
    for name, applied, transaction in commits:
        order.note(d(name), applied, transaction)
    checker = Checker(log, ordered=True)
    checker.recorded(list(log.index), "inbox")
    checker.commits(order)
    return checker.conclude(state())


def wrong(findings: Findings) -> dict[str, int]:
    return {name: getattr(findings, name) for name in (*MUST_BE_ZERO, "unseen") if getattr(findings, name)}


def test_a_clean_route_is_right() -> None:
    findings = audit(ledger("a", "b", "c"), "a", "b", "c")

    assert wrong(findings) == {}
    assert (findings.captured, findings.delivered) == (3, 3)
    assert findings.passes(allow_lag=False)


def test_one_lost_message_is_named_by_its_place_in_the_log() -> None:
    findings = audit(ledger("a", "b", "c"), "a", "c")

    assert wrong(findings) == {"lost": 1}
    assert [(o.kind, str(o.place)) for o in findings.offenders] == [("lost", "orders[0]@1")]
    assert not findings.passes(allow_lag=True)


def test_a_message_above_the_committed_position_is_unseen_not_lost() -> None:
    findings = audit(ledger("a", "b", "c"), "a", at=state(position=2))

    assert wrong(findings) == {"lost": 1, "unseen": 1}
    lagging = audit(ledger("a", "b"), "a", at=state(position=1))
    assert lagging.passes(allow_lag=True)
    assert not lagging.passes(allow_lag=False)


def test_a_message_that_the_monitor_calls_delivered_without_an_effect_is_lost_above_the_position_too() -> (
    None
):
    findings = audit(ledger("a", "b"), "a", at=state(position=1, outcomes={"b": DELIVERED}))

    assert wrong(findings) == {"lost": 1}


def test_one_duplicate_is_named_by_its_second_effect() -> None:
    findings = audit(ledger("a", "b"), "a", "b", "a")

    assert wrong(findings) == {"duplicates": 1}
    assert str(findings.offenders[0].place) == "ledger[0]@2"
    assert findings.delivered == 2


def test_a_duplicate_in_another_partition_is_found() -> None:
    checker = Checker(ledger("a"), ordered=True)
    checker.outputs(OUT, [(0, 0, d("a"), 7), (1, 0, d("a"), 7)])

    assert wrong(checker.conclude(state())) == {"duplicates": 1}


def test_one_inversion_in_a_lane_is_named() -> None:
    findings = audit(ledger("a", "b", "c"), "a", "c", "b")

    assert wrong(findings) == {"reordered": 1}
    assert str(findings.offenders[0].place) == "orders[0]@1"


def test_order_is_judged_per_lane_and_log_partition_only() -> None:
    log = Ledger([LOG, LogPartition("orders", 1)])
    log.add(fact("a", 0, lane="x"))
    log.add(fact("b", 1, lane="y"))
    log.add(fact("c", 5, lane="x", partition=1))
    checker = Checker(log, ordered=True)
    checker.outputs(OUT, effects("b", "c", "a"))

    assert wrong(checker.conclude(state())) == {}


def test_a_route_without_order_has_no_inversions() -> None:
    assert wrong(audit(ledger("a", "b"), "b", "a", ordered=False)) == {}


def test_a_lane_over_two_output_partitions_is_noted_and_its_order_judged_in_each() -> None:
    checker = Checker(ledger("a", "b"), ordered=True)
    checker.outputs(OUT, [(0, 0, d("b"), 7), (1, 0, d("a"), 7)])
    findings = checker.conclude(state())

    assert wrong(findings) == {}
    assert any("1 lanes lie in more than one output partition" in note for note in findings.notes)


def test_what_stood_outside_of_its_lane_is_judged_in_all_but_its_order() -> None:
    for content, found in ((7, {}), (8, {"altered": 1})):
        checker = Checker(ledger("a", "b", "c"), ordered=True, apart=[d("c")])
        checker.outputs(OUT, [(0, 0, d("c"), content), *[(0, 1 + n, d(name), 7) for n, name in enumerate("ab")]])
        assert wrong(checker.conclude(state())) == found

    log = ledger("a", "b", "c")
    order = CommitOrder(log)
    for applied, name in enumerate("cab"):
        order.note(d(name), applied, applied)
    checker = Checker(log, ordered=True, apart=[d("c")])
    checker.recorded([d(name) for name in "abc"], "inbox")
    checker.commits(order)
    assert wrong(checker.conclude(state())) == {}


def test_one_phantom_is_named_by_its_place_at_the_destination() -> None:
    findings = audit(ledger("a"), "a", "never-sent")

    assert wrong(findings) == {"phantoms": 1}
    assert str(findings.offenders[0].place) == "ledger[0]@1"


def test_a_second_effect_is_a_duplicate_although_its_message_has_left_the_log() -> None:
    for effects_of_old in (2, 3):
        findings = audit(ledger("a"), "a", *["old"] * effects_of_old, expired=("old",))

        assert wrong(findings) == {"duplicates": effects_of_old - 1}
        assert findings.expired == 1


def test_an_effect_older_than_the_log_is_expired_not_a_phantom() -> None:
    findings = audit(ledger("a"), "old", "a", expired=("old",))

    assert wrong(findings) == {}
    assert findings.expired == 1


def test_a_dead_letter_excuses_nothing_that_was_delivered() -> None:
    found = audit(ledger("a", "b", "c"), at=state(dead=("a", "b"), outcomes={"a": DELIVERED, "b": DEAD, "c": DELIVERED}))

    assert wrong(found) == {"lost": 2}
    assert {offender.why for offender in found.offenders} == {"recorded as delivered, but it has no effect"}
    forgotten = state(outcomes={"a": DELIVERED}, forgotten=("a",))
    assert wrong(audit(ledger("a"), at=forgotten)) == {"lost": 1}, "nor does one that may have been"


def test_a_redrive_excuses_nothing_that_was_delivered() -> None:
    redriven = state(outcomes={"a": DEAD, "b": DELIVERED})._replace(redriven=[d("a"), d("b")])

    assert wrong(audit(ledger("a", "b"), at=redriven)) == {"unseen": 1, "lost": 1}


def test_an_effect_of_a_redrive_under_way_lags_no_more_than_that() -> None:
    redriving = state()._replace(second=SecondOutcomes(redriving=frozenset({d("a")})))

    assert wrong(audit(ledger("a", "b"), "a", "b", at=redriving)) == {"unseen": 1}


def test_an_effect_whose_content_differs_from_the_log_is_altered() -> None:
    checker = Checker(ledger("a"), ordered=True)
    checker.outputs(OUT, effects("a", content=8))

    assert wrong(checker.conclude(state())) == {"altered": 1}


def test_a_dead_letter_stands_for_its_message() -> None:
    findings = audit(ledger("a", "b"), "a", at=state(dead=("b",)))

    assert wrong(findings) == {}
    assert (findings.dead_letters, findings.delivered) == (1, 1)


def test_a_recorded_death_without_a_dead_letter_is_a_loss_unless_its_letter_may_have_expired() -> None:
    recorded = state(outcomes={"a": DEAD, "b": DEAD}, forgotten=("b",))
    findings = audit(ledger("a", "b"), at=recorded)

    assert wrong(findings) == {"lost": 1}
    assert str(findings.offenders[0].place) == "orders[0]@0"


def test_a_skipped_message_is_counted_apart() -> None:
    findings = audit(ledger("a"), at=state(outcomes={"a": SKIPPED}))

    assert wrong(findings) == {}
    assert findings.skipped == 1


def test_a_position_below_the_logs_beginning_counts_what_was_left_as_lost() -> None:
    assert wrong(audit(Ledger([LOG]), at=state(position=40, low=45))) == {"lost": 5}
    assert wrong(audit(Ledger([LOG]), at=state(position=44, low=45))) == {"lost": 1}
    assert wrong(audit(Ledger([LOG]), at=state(position=45, low=45))) == {}


def test_a_begun_delivery_without_an_end_is_in_doubt() -> None:
    begun = InputRange("orders", 0, 1, 2)
    findings = audit(ledger("a", "b"), "a", at=state(position=1, ranges=(begun,)))

    assert wrong(findings) == {"in_doubt": 1}
    for elsewhere in (begun._replace(partition=1), begun._replace(topic="bills")):
        assert wrong(audit(ledger("a", "b"), "a", at=state(position=1, ranges=(elsewhere,)))) == {"unseen": 1}


class TestCaptures:
    CAPTURE = b"c" * 16

    def held(self) -> Ledger:
        log = Ledger([LOG])
        log.hold(fact("a", 0), self.CAPTURE, b"shop/1")
        log.add(fact("b", 1))
        return log

    def test_an_aborted_message_is_shown_and_needs_no_effect(self) -> None:
        log = self.held()
        log.marker(self.CAPTURE, Outcome.ABORTED)
        assert log.hints(self.CAPTURE)
        log.decide([(self.CAPTURE, Outcome.ABORTED)])

        findings = audit(log, "b")
        assert wrong(findings) == {}
        assert (findings.captured, findings.aborted) == (1, 1)

    def test_an_aborted_message_with_an_effect_is_a_phantom(self) -> None:
        log = self.held()
        log.decide([(self.CAPTURE, Outcome.ABORTED)])
        findings = audit(log, "b", "a")
        assert wrong(findings) == {"phantoms": 1}
        assert "aborted (orders[0]@0)" in findings.offenders[0].why

    @pytest.mark.parametrize(("outcome", "found"), [(Outcome.ABORTED, {"phantoms": 1}), (None, {"in_doubt": 1})])
    def test_a_dead_letter_shows_an_aborted_message_too(self, outcome: Outcome | None, found: dict[str, int]) -> None:
        log = self.held()
        log.decide([(self.CAPTURE, outcome)])
        assert wrong(audit(log, "b", at=state(dead=("a",)))) == found

    def test_a_committed_marker_makes_the_message_count(self) -> None:
        log = self.held()
        log.marker(self.CAPTURE, Outcome.COMMITTED)

        assert log.open_captures() == {}
        assert wrong(audit(log, "b")) == {"lost": 1}

    def test_an_undecided_message_is_in_doubt_with_or_without_an_effect(self) -> None:
        for names in (("b",), ("b", "a")):
            log = self.held()
            assert log.open_captures() == {self.CAPTURE: b"shop/1"}
            log.decide([(self.CAPTURE, None)])

            findings = audit(log, *names)
            assert wrong(findings) == {"in_doubt": 1}
            assert str(findings.offenders[0].place) == "orders[0]@0"

    def test_the_first_record_of_a_message_is_the_one_of_a_committed_capture_before_its_repeat(self) -> None:
        log = Ledger([LOG])
        log.hold(fact("a", 0, content=1, lane="x"), self.CAPTURE, b"shop/1")
        log.add(fact("b", 1, lane="x"))
        log.add(fact("a", 5, content=2, lane="y"))
        log.marker(self.CAPTURE, Outcome.COMMITTED)

        row, other = log.index[d("a")], log.index[d("b")]
        assert (log.offset[row], log.content[row], log.repeats, log.conflict_count) == (0, 1, 1, 1)
        assert log.lane[row] == log.lane[other]

    def test_a_hint_that_comes_before_its_message_decides_no_more_than_one_behind_it(self) -> None:
        log = Ledger([LOG])
        log.marker(self.CAPTURE, Outcome.ABORTED)
        log.hold(fact("a", 0), self.CAPTURE, b"shop/1")
        log.hold(fact("a", 7), self.CAPTURE, b"elsewhere/2")  # anyone may write this behind it

        assert log.open_captures() == {self.CAPTURE: b"shop/1"}
        log.decide([(self.CAPTURE, Outcome.ABORTED)])
        assert log.aborted == {d("a"): (0, 0)}

    def test_a_repeat_of_an_aborted_message_is_captured(self) -> None:
        log = Ledger([LOG])
        log.hold(fact("a", 0), self.CAPTURE, b"shop/1")
        log.add(fact("a", 5))
        log.decide([(self.CAPTURE, Outcome.ABORTED)])

        findings = audit(log, "a")
        assert wrong(findings) == {}
        assert (findings.captured, findings.aborted) == (1, 0)


class TestRepeats:
    def test_repeats_are_one_message_and_other_content_is_a_conflict(self) -> None:
        log = ledger("a", "b")
        log.add(fact("a", 2))
        log.add(fact("b", 3, content=8))

        findings = audit(log, "a", "b")
        assert wrong(findings) == {}
        assert (findings.captured, findings.repeats, findings.conflicts) == (2, 2, 1)
        assert any("orders[0]@3" in note for note in findings.notes)

    def test_one_id_in_two_partitions_is_noted(self) -> None:
        log = Ledger([LOG, LogPartition("orders", 1)])
        log.add(fact("a", 0))
        log.add(fact("a", 0, partition=1))

        assert any("orders[1]@0" in note for note in audit(log, "a").notes)

    @pytest.mark.parametrize("partitions", [[0, 1], [1, 0]], ids=["in order", "the last one first"])
    def test_what_lies_in_two_partitions_is_judged_alike_whichever_of_them_is_read_first(self, partitions: list[int]) -> None:
        written = {0: [fact("a", 0), fact("b", 1), fact("c", 2)], 1: [fact("c", 0, partition=1, content=8), fact("d", 1, partition=1)]}
        log = Ledger([LOG, LogPartition("orders", 1)])
        for partition in partitions:
            for one in written[partition]:
                log.add(one)

        assert log.place(log.index[d("c")]) == Place("orders", 0, 2)
        assert (log.conflicts, log.astray) == ([Place("orders", 1, 0)], [Place("orders", 1, 0)])
        at = State({LOG: 3, log.partitions[1]: 2}, {}, set(), set(), {}, ())
        assert wrong(audit(log, "c", "a", "b", "d", at=at)) == {}, "the first effect may be of the other partition's record"
        assert wrong(audit(log, "c", "b", "a", "d", at=at)) == {"reordered": 1}

    @pytest.mark.parametrize(
        ("commits", "found"),
        [([("c", 0, 0), ("a", 1, 1), ("b", 2, 2)], {}), ([("b", 0, 0), ("a", 1, 1), ("c", 2, 0)], {"reordered": 1})],
        ids=["right", "wrong, as no transaction of the other partition hides"],
    )
    def test_a_table_may_have_committed_either_record_of_what_lies_in_two_partitions(
        self, commits: list[tuple[str, int, int]], found: dict[str, int]
    ) -> None:
        log = Ledger([LOG, LogPartition("orders", 1)])
        for one in (fact("c", 2), fact("a", 0), fact("b", 1), fact("c", 0, partition=1)):
            log.add(one)
        assert wrong(committed(log, commits)) == found


class TestTables:
    def table(self) -> Ledger:
        log = Ledger([LOG], matches=True)
        for offset, name in enumerate(("a", "b", "c")):
            log.add(fact(name, offset, match=name.encode()))
        log.add(fact("nameless", 3))
        return log

    def test_rows_are_effects(self) -> None:
        checker = Checker(self.table(), ordered=True)
        checker.rows([b"a", b"c", b"c", b"other"], "ledger")
        checker.nameless(1, [d("a"), d("nameless")], "ledger")

        assert wrong(checker.conclude(state())) == {"lost": 1, "duplicates": 1, "phantoms": 1}

    @pytest.mark.parametrize(("rows", "kind"), [(0, "lost"), (3, "duplicates")])
    def test_rows_without_an_id_are_held_against_what_was_recorded(self, rows: int, kind: str) -> None:
        checker = Checker(self.table(), ordered=True)
        checker.rows([b"a", b"b", b"c"], "ledger")

        assert checker.nameless(rows, [d("nameless")], "ledger") == max(rows - 1, 0)
        assert wrong(checker.conclude(state())) == {kind: abs(rows - 1)}

    def test_ids_that_are_unique_per_source_only_are_noted_and_each_wants_its_row(self) -> None:
        log = Ledger([LOG], matches=True)
        log.add(fact("a", 0, match=b"1"))
        log.add(fact("b", 1, match=b"1"))
        checker = Checker(log, ordered=True)
        checker.rows([b"1", b"1"], "ledger")

        findings = checker.conclude(state())
        assert wrong(findings) == {}
        assert any("not unique over their sources" in note for note in findings.notes)

    @pytest.mark.parametrize(("outcome", "kind", "why"), [(Outcome.ABORTED, "phantoms", "aborted"), (None, "in_doubt", "undecided")])
    def test_a_row_of_a_message_that_does_not_count_is_known_by_its_name_there(
        self, outcome: Outcome | None, kind: str, why: str
    ) -> None:
        log = Ledger([LOG], matches=True)
        log.hold(fact("a", 0, match=b"1"), b"c" * 16, b"shop/1")
        log.decide([(b"c" * 16, outcome)])
        checker = Checker(log, ordered=True)
        checker.rows([b"1"], "ledger")
        checker.expire(1)  # whatever has left the log: this has not

        findings = checker.conclude(state())
        assert (wrong(findings), findings.expired) == ({kind: 1}, 0)
        assert why in findings.offenders[0].why

    def test_so_many_effects_of_what_has_left_the_log_are_expired_and_no_more(self) -> None:
        for memory, left in ((Memory(), "phantoms"), (Memory({}), "forgotten")):
            checker = Checker(self.table(), ordered=True, memory=memory)
            checker.rows([b"a", b"b", b"c", b"x", b"y", b"z"], "ledger")
            assert checker.has_strangers
            checker.expire(2)

            findings = checker.conclude(state(position=3))
            assert (getattr(findings, left), findings.expired) == (1, 2)

    @pytest.mark.parametrize(
        ("commits", "inversions"),
        [
            ([("a", 1, 1), ("b", 2, 2), ("c", 3, 3)], 0),
            ([("c", 1, 1), ("a", 2, 1), ("b", 3, 1)], 0),  # one transaction shows all at once
            ([("b", 1, 1), ("a", 2, 2), ("c", 3, 3)], 1),
            ([("c", 1, 1), ("b", 2, 1), ("a", 3, 2)], 1),
            ([("c", 1, 1), ("a", 2, 1), ("b", 3, 2)], 1),  # behind the last in the log of what showed before, not the last noted
            ([("b", 2, 2), ("a", 1, 1), ("a", 3, 3), ("c", 4, 4)], 0),  # noted twice: the first counts
            ([("a", 3, 3), ("b", 1, 1), ("c", 2, 2)], 1),  # told in another order than applied
            ([("c", 1, 1), ("a", 2, 7), ("b", 3, 1)], 0),  # one transaction under two names, whose numbers interleave
        ],
    )
    def test_the_order_of_commits_is_judged_between_transactions(
        self, commits: list[tuple[str, int, int]], inversions: int
    ) -> None:
        log = ledger("a", "b", "c")
        order = CommitOrder(log)
        for name, applied, transaction in commits:
            order.note(d(name), applied, transaction)
        checker = Checker(log, ordered=True)
        checker.recorded([d("a"), d("b"), d("c")], "inbox")
        checker.commits(order)

        assert wrong(checker.conclude(state())) == ({"reordered": inversions} if inversions else {})

    @pytest.mark.parametrize(
        "commits",
        [
            [("c", 5, 1), ("a", 5, 2), ("b", 5, 1)],  # one number for all of a transaction, which is known under two names
            [("c", 1, 1), ("d", 2, 7), ("a", 4, 8), ("b", 10, 1)],  # under three, of which one spans the others
        ],
    )
    def test_names_of_one_transaction_are_one_however_they_overlap(self, commits: list[tuple[str, int, int]]) -> None:
        log = Ledger([LOG])
        for name, offset in (("c", 2), ("d", 3), ("a", 0), ("b", 1)):  # captures were decided in another order
            log.add(fact(name, offset))
        assert wrong(committed(log, commits)) == {}

    def test_what_is_recorded_twice_is_one_effect_and_a_record_of_nothing_is_a_phantom(self) -> None:
        checker = Checker(ledger("a"), ordered=True)
        checker.recorded([d("a"), d("a"), d("x"), d("x")], "inbox")

        assert wrong(checker.conclude(state())) == {"phantoms": 1}


def test_places_read_as_people_write_them() -> None:
    assert str(Place("orders", 3, 17)) == "orders[3]@17"


def test_what_a_person_said_was_delivered_is_counted_and_not_lost() -> None:
    recorded = state(outcomes={"a": DELIVERED, "b": DELIVERED})
    findings = audit(ledger("a", "b"), at=recorded._replace(told=[InputRange(*LOG, 0, 1)]))
    assert (findings.told, wrong(findings)) == (1, {"lost": 1})
    elsewhere = audit(ledger("a"), at=recorded._replace(told=[InputRange("orders", 1, 0, 1)]))
    assert (elsewhere.told, wrong(elsewhere)) == (0, {"lost": 1}), "the word is about another partition"
    unrecorded = audit(ledger("a"), at=state()._replace(told=[InputRange(*LOG, 0, 1)]))
    assert wrong(unrecorded) == {"lost": 1}, "a person's word counts only where the owner has entered it"
