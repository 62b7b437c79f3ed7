"""What persons want of queues is a fold over records: the last word about each subject holds."""

from __future__ import annotations

from relay.queue.desired import Audit, Desired, Kind, Move, Step, Subject, Wanted, Wish, encode_uuid

QUEUE = Subject(Kind.QUEUE, "credit")
ANN = Subject(Kind.SUBSCRIBER, "credit", "ann")
TILL = Subject(Kind.PUBLISHER, "credit", "//shop/till/7")


def told(*wishes: tuple[Subject, Wanted]) -> Desired:
    found = Desired()
    for at, (subject, wanted) in enumerate(wishes):
        assert found.add(*Wish(subject, wanted, "eve", "stocktaking", at).encode())
    return found


def moved(step: Step) -> Desired:
    found = Desired()
    assert found.add(*Move("credit", "u-1", "sqlite:///a.db", "shop", step, "eve", 1).encode())
    return found


def test_without_a_word_everything_runs() -> None:
    found = Desired()

    assert found.may_take("credit", "ann")
    assert found.may_put("credit")
    assert found.held_publishers("credit") == frozenset()
    assert found.store_of("credit", "sqlite:///a.db") == "sqlite:///a.db"


def test_a_paused_queue_is_put_into_and_not_taken_from() -> None:
    found = told((QUEUE, Wanted.PAUSE))

    assert not found.may_take("credit", "ann")
    assert found.may_put("credit")
    assert found.may_take("other", "ann")


def test_a_drained_queue_is_taken_from_and_not_put_into() -> None:
    found = told((QUEUE, Wanted.DRAIN))

    assert found.may_take("credit", "ann")
    assert not found.may_put("credit")


def test_one_subscriber_is_paused_alone() -> None:
    found = told((ANN, Wanted.PAUSE))

    assert not found.may_take("credit", "ann")
    assert found.may_take("credit", "bob")


def test_a_held_publisher_is_known_by_its_whole_name() -> None:
    found = told((TILL, Wanted.PAUSE))

    assert found.held_publishers("credit") == {"//shop/till/7"}
    assert found.held_publishers("other") == frozenset()


def test_the_last_word_holds() -> None:
    found = told((QUEUE, Wanted.PAUSE), (QUEUE, Wanted.RUN), (TILL, Wanted.PAUSE), (TILL, Wanted.RUN))

    assert found.may_take("credit", "ann")
    assert found.held_publishers("credit") == frozenset()
    assert found.wishes[QUEUE] == Wish(QUEUE, Wanted.RUN, "eve", "stocktaking", 1)


def test_a_removed_record_takes_the_wish_back() -> None:
    found = told((QUEUE, Wanted.PAUSE))

    assert found.add(QUEUE.key(), None)
    assert found.may_take("credit", "ann")


def test_what_cannot_be_read_changes_nothing() -> None:
    found = told((QUEUE, Wanted.PAUSE))

    assert not found.add(QUEUE.key(), b"a newer version's")
    assert not found.add(b"desired/planet/x/", b"")
    assert not found.add(b"status/r/w", b"{}")
    assert not found.may_take("credit", "ann")


def test_a_queue_that_is_being_retired_is_neither_put_into_nor_taken_from() -> None:
    found = moved(Step.RETIRING)

    assert not found.may_put("credit")
    assert not found.may_take("credit", "ann")
    assert found.store_of("credit", "sqlite:///a.db") == "sqlite:///a.db"


def test_a_moved_queue_lies_in_its_new_store_whichever_the_configuration_names() -> None:
    found = moved(Step.MOVED)

    assert found.store_of("credit", "sqlite:///a.db") == "shop"
    assert found.store_of("credit", "shop") == "shop"
    assert found.may_put("credit")
    assert moved(Step.COPYING).store_of("credit", "sqlite:///a.db") == "sqlite:///a.db"


def test_a_queue_lies_where_the_configuration_says_if_it_was_never_moved_from_there() -> None:
    assert moved(Step.MOVED).store_of("credit", "sqlite:///new.db") == "sqlite:///new.db"


def test_a_queue_whose_copy_is_made_goes_on_and_so_does_one_that_has_moved() -> None:
    for step in (Step.COPYING, Step.MOVED):
        assert moved(step).may_take("credit", "ann")
        assert moved(step).may_put("credit")


def test_a_paused_subscriber_holds_no_publisher_of_the_same_name() -> None:
    assert told((ANN, Wanted.PAUSE)).held_publishers("credit") == frozenset()


def test_what_was_said_is_found_by_kind_and_queue() -> None:
    found = told((QUEUE, Wanted.RUN), (ANN, Wanted.PAUSE), (TILL, Wanted.PAUSE), (TILL._replace(queue="other"), Wanted.PAUSE))

    assert [wish.subject for wish in found.of(Kind.PUBLISHER, "credit")] == [TILL]
    assert [wish.subject for wish in found.of(Kind.SUBSCRIBER, "credit")] == [ANN]


def test_a_removed_record_takes_the_move_back() -> None:
    found = moved(Step.RETIRING)

    assert found.add(b"queue-move/credit", None)
    assert found.may_take("credit", "ann")


def test_identities_and_audits_are_kept() -> None:
    found = Desired()
    audit = Audit("a1", "credit", "purge", 3, "publisher=x", "eve", "test data", 9)

    assert found.add(*encode_uuid("credit", "u-1"))
    assert found.add(*audit.encode())
    assert found.uuids == {"credit": "u-1"}
    assert list(found.audits) == [audit]
