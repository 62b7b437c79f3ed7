"""What persons decide: the first word about a thing holds, evidence goes before it, what is obeyed stays."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from relay.capture import resolver
from relay.capture.resolver import State
from relay.message.envelope import ResourceName
from relay.message.errors import ConfigError, Unreachable
from relay.message.record import LogPartition
from relay.monitor.resolution import (
    Answer,
    Kind,
    Resolution,
    Resolutions,
    Span,
    Subject,
    Told,
    encode,
    encode_answer,
    of_capture,
    of_offsets,
    parse,
    uncovered,
)
from relay.run.asking import ASK_AGAIN_S, AskingWithBook, Inquiring
from relay.run.book import FRESH_S, ControlBook

CAPTURE, OTHER = b"c" * 16, b"d" * 16
SHOP = ResourceName("shop", "u")
PLACE = LogPartition("my.log_1-x", 3)


def resolution(subject: Subject, told: Told = Told.COMMIT, number: int = 1) -> Resolution:
    return Resolution(bytes([number]) * 16, subject, told, "ann@host", "asked the shop", 7, "nothing decides")


class Register:
    """The control topic, in memory."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes | None]] = []
        self.away = False

    def under(self, prefixes: Sequence[bytes]) -> list[tuple[bytes, bytes | None]]:
        if self.away:
            raise Unreachable("away")
        return [one for one in self.records if one[0].startswith(tuple(prefixes))]

    def put(self, key: bytes, value: bytes, *, wait: bool) -> None:
        assert wait, "a decision that is not acknowledged must not be acted on"
        self.records.append((key, value))


def book(register: Register, worker: str = "w") -> ControlBook:
    return ControlBook(lambda: register, worker)


@pytest.mark.parametrize(
    "subject",
    [
        of_capture(CAPTURE),
        of_offsets(Kind.LOST, "to-table", PLACE, 5, 6),
        of_offsets(Kind.DELIVERY, "main", PLACE, 0, 1_000_000),
    ],
)
def test_a_name_is_read_as_it_is_written(subject: Subject) -> None:
    assert parse(subject.text) == subject


@pytest.mark.parametrize(
    "name", ["", "capture:", "capture:zz", "capture:" + "A" * 32, "lost:a/b/c/1-2", "delivery:a/b/0/9-3", "delivery:a/b/0/9-8", "lost:" + "a" * 32, "stuck:a/b/0/1", "delivery:a/b/0/", f"lost:r/{'x' * 250}/0/1", "lost:r/a b/0/1"]
)
def test_what_names_nothing_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(ConfigError, match="copy a name from `relay indoubt list`"):
        parse(name)


def test_the_first_word_about_a_thing_or_a_part_of_it_holds() -> None:
    first = resolution(of_offsets(Kind.DELIVERY, "main", PLACE, 5, 9))
    second = resolution(of_offsets(Kind.DELIVERY, "main", PLACE, 8, 12), Told.ABORT, 2)
    beside = resolution(of_offsets(Kind.DELIVERY, "main", PLACE, 9, 12), Told.ABORT, 3)
    elsewhere = resolution(of_offsets(Kind.DELIVERY, "other", PLACE, 5, 9), Told.ABORT, 4)
    found = Resolutions()
    for one in (first, second, beside, elsewhere, first):
        found.add(*encode(one))

    assert found.holding == [first, beside, elsewhere]
    assert found.late == [(second, first)]
    assert found.about(second.subject) == first


@pytest.mark.parametrize(("first", "following", "overlap"), [(0, 5, False), (0, 6, True), (8, 12, True), (9, 12, False), (6, 7, True), (0, 12, True)])
def test_offsets_overlap_where_they_share_one_whoever_is_asked(first: int, following: int, overlap: bool) -> None:
    one, other = (of_offsets(Kind.LOST, "main", PLACE, *span) for span in ((5, 9), (first, following)))

    assert one.overlaps(other) is other.overlaps(one) is overlap


def test_a_word_about_what_is_lost_is_none_about_a_delivery_of_the_same_offsets() -> None:
    subjects = [of_offsets(Kind.LOST, "main", PLACE, 5, 9), of_offsets(Kind.DELIVERY, "main", PLACE, 5, 9), of_capture(CAPTURE)]

    assert [one.overlaps(other) for one in subjects for other in subjects] == [True, False, False, False, True, False, False, False, True]


def test_a_route_obeys_what_was_decided_of_its_own_offsets_in_its_partitions() -> None:
    mine = resolution(of_offsets(Kind.DELIVERY, "main", PLACE, 5, 9), number=1)
    lost = resolution(of_offsets(Kind.LOST, "main", PLACE, 5, 9), number=2)
    found = Resolutions([
        mine, lost, resolution(of_offsets(Kind.DELIVERY, "other", PLACE, 5, 9), number=3),
        resolution(of_offsets(Kind.DELIVERY, "main", PLACE._replace(partition=4), 5, 9), number=4),
    ])  # fmt: skip

    assert found.of_route(Kind.DELIVERY, "main", [PLACE]) == [mine]
    assert found.of_route(Kind.LOST, "main", [PLACE]) == [lost]


def test_compaction_leaves_what_each_worker_says_of_each_resolution() -> None:
    answers = [Answer(bytes([number]) * 16, worker, 1, "") for number in (1, 2) for worker in ("v", "w")]

    found = Resolutions()
    for key, value in dict(map(encode_answer, answers)).items():
        found.add(key, value)

    assert [one for some in found.answers.values() for one in some] == answers


def test_broken_records_and_those_under_a_foreign_key_are_passed_over() -> None:
    found = Resolutions()
    key, value = encode(resolution(of_capture(CAPTURE)))
    for record in [(key, b"broken"), (key, None), (key[:-1] + b"0", value), (b"obeyed/x", b"broken"), (b"start/r", b"{}")]:
        found.add(*record)

    assert found == Resolutions()


def test_of_two_who_write_at_once_the_second_learns_who_was_first() -> None:
    register = Register()
    ann, bob = book(register), book(register)
    first = resolution(of_capture(CAPTURE), Told.ABORT, 1)

    assert ann.write(first) == first
    assert bob.write(resolution(of_capture(CAPTURE), Told.COMMIT, 2)) == first


def test_what_no_span_covers_is_named() -> None:
    assert list(uncovered(0, 10, [Span(2, 4), Span(3, 6), Span(8, 20)])) == [Span(0, 2), Span(6, 8)]
    assert list(uncovered(5, 7, [Span(0, 9)])) == []
    assert list(uncovered(0, 10, [Span(0, 8), Span(2, 4)])) == [Span(8, 10)]
    assert list(uncovered(5, 10, [Span(0, 5), Span(10, 12), Span(20, 30)])) == [Span(5, 10)], "nor what lies beyond"


class Says:
    """A resolver that always gives one answer."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.asked: list[bytes] = []

    def resolve(self, captures: Sequence[tuple[bytes, ResourceName]]) -> dict[bytes, resolver.Resolution]:
        self.asked += [capture for capture, _ in captures]
        return {capture: resolver.Resolution(self.state) for capture, _ in captures}


@pytest.mark.parametrize("state", [State.COMMITTED, State.ABORTED, State.UNDECIDED, State.UNREACHABLE])
@pytest.mark.parametrize("told", [Told.COMMIT, Told.ABORT])
def test_a_person_never_overrides_a_resource(state: State, told: Told) -> None:
    register = Register()
    book(register).write(resolution(of_capture(CAPTURE), told))
    asking = AskingWithBook(Says(state), book(register))

    assert asking.resolve([(CAPTURE, SHOP)])[CAPTURE].state is state
    assert not book(register).read().answers


@pytest.mark.parametrize(("told", "state"), [(Told.COMMIT, State.COMMITTED), (Told.ABORT, State.ABORTED)])
def test_where_no_resource_can_be_asked_a_person_is_obeyed_and_that_is_final(told: Told, state: State) -> None:
    register = Register()
    word = resolution(of_capture(CAPTURE), told)
    book(register).write(word)
    asking = AskingWithBook(Says(State.WRONG_RESOURCE), book(register, "first"))

    found = asking.resolve([(CAPTURE, SHOP), (OTHER, SHOP)])

    assert (found[CAPTURE].state, found[OTHER].state) == (state, State.WRONG_RESOURCE)
    assert [one.worker for one in book(register).read().answers[word.id]] == ["first"]
    later = Says(State.ABORTED if state is State.COMMITTED else State.COMMITTED)
    assert AskingWithBook(later, book(register, "second")).resolve([(CAPTURE, SHOP)])[CAPTURE].state is state
    assert later.asked == [], "two partitions of one capture must not end differently"


def test_resources_are_asked_although_the_book_is_away() -> None:
    register = Register()
    register.away = True

    assert AskingWithBook(Says(State.COMMITTED), book(register)).resolve([(CAPTURE, SHOP)])[CAPTURE].state is State.COMMITTED


def test_while_the_book_is_away_a_person_is_final_whose_word_is_known_to_be_obeyed() -> None:
    register = Register()
    book(register).write(resolution(of_capture(CAPTURE)))
    asking = AskingWithBook(Says(State.WRONG_RESOURCE), book(register))
    assert asking.resolve([(CAPTURE, SHOP)])[CAPTURE].state is State.COMMITTED
    asking._resolver, kept = Says(State.ABORTED), asking._book._read
    assert kept is not None
    asking._book._read = (kept[0] - 2 * FRESH_S, kept[1])
    register.away = True

    found = asking.resolve([(CAPTURE, SHOP), (OTHER, SHOP)])

    assert (found[CAPTURE].state, found[OTHER].state) == (State.COMMITTED, State.ABORTED)


def test_lost_offsets_are_passed_only_if_every_one_was_let_go() -> None:
    register = Register()
    one = book(register)
    one.write(resolution(of_offsets(Kind.LOST, "main", PLACE, 5, 9), Told.ABORT))

    assert not one.pass_lost("main", PLACE, 5, 10, count=5)
    assert one.undecided("main", PLACE, 5, 10) == (9, 10), "what left the log since then is another thing to decide"
    assert one.undecided("main", PLACE, 5, 9) is None
    assert not one.pass_lost("other", PLACE, 5, 9, count=4)
    assert one.lost == 0
    assert one.pass_lost("main", PLACE, 5, 9, count=4)
    assert one.lost == 4
    assert len(book(register).read().answers) == 1


def test_publishers_are_asked_now_and_then() -> None:
    asked: list[bytes] = []
    inquiring = Inquiring(lambda key, _: asked.append(key), "w")

    for now in (0.0, 1.0, ASK_AGAIN_S - 1):
        inquiring.ask(CAPTURE, SHOP, [PLACE], now)
    inquiring.ask(OTHER, SHOP, [PLACE], 1.0)
    assert asked == [CAPTURE, OTHER]
    inquiring.ask(CAPTURE, SHOP, [PLACE], ASK_AGAIN_S)

    assert asked == [CAPTURE, OTHER, CAPTURE]
