"""The same commands, at random, on every store and on the reference book: answers and views must be the same."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import settings as bounds
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from relay.message.errors import RelayError
from relay.queue.message import Audience, MessageView, NewMessage, Taken, Ticket
from relay.queue.port import Child, Filter, Holder, QueueStore
from relay.queue.receipt import EDITED
from relay.queue.settings import Retention
from relay.queue.states import PublisherState, SubscriberState
from relay.queue.stores import files_base
from tests.contracts.queue_book import QueueBook
from tests.contracts.queue_media import MEDIA, NOW, PARENT, Medium, medium_of, settings, subscribers

AUDIENCES = (
    subscribers("ann"),
    subscribers("ann", "bob"),
    subscribers(("ann", "bob")),
    subscribers(("ann", "bob"), "cid"),
    subscribers("ann", ("bob", "cid"), in_order=True),
)
RETENTIONS = (Retention(age_ms=20), Retention(age_ms=20, count=3), Retention(bytes=40), Retention())
SHRINK = os.environ.get("RELAY_TEST_SHRINK") == "1"
HOURS_MS = 10_000_000
"""Beyond `QueueSettings.wait_max_ms`."""
NAMES = ("ann", "bob", "cid")
HOLDERS = {name: (name.encode(), name.upper().encode()) for name in NAMES}

UNFINISHED = [state for state in SubscriberState if state is not SubscriberState.JOURNALLED]
"""What `counts` tells exactly."""

_which = st.lists(st.integers(0, 11), min_size=1, max_size=3, unique=True)
_name = st.sampled_from(NAMES)
_ticket = st.integers(0, 5)
_new = st.builds(
    lambda id_, publisher, lane, priority, ttl, delay, child: NewMessage(
        publisher=publisher,
        id=id_,
        value=id_.encode() * 3,
        key=lane,
        headers=(("h", lane),),
        lane=lane,
        priority=priority,
        ttl_ms=ttl,
        delay_ms=delay,
        parents=(PARENT,) if child else (),
        attempt="t" if child else None,
    ),
    id_=st.sampled_from("abcdef"),
    publisher=st.sampled_from(["shop", "shop", "till"]),
    lane=st.sampled_from([None, b"l", b"l", b"m"]),
    priority=st.sampled_from([0, 0, 0, 3, 9]),
    ttl=st.sampled_from([None, None, 5, 40]),
    delay=st.sampled_from([0, 0, 0, 10]),
    child=st.sampled_from([False, False, False, True]),
)


class Undo(Exception):
    """Takes a transaction back."""


@dataclass
class Subject:
    """A store under test. Messages are known by when they were put: stores may choose other handles."""

    name: str
    store: QueueStore
    handles: list[int] = field(default_factory=list)
    tickets: dict[str, list[Ticket]] = field(default_factory=dict)

    def some(self, which: Sequence[int]) -> list[int]:
        return [self.handles[number] for number in which if number < len(self.handles)]

    def given(self, subscriber: str, which: Sequence[int]) -> list[Ticket]:
        """Return tickets of this subscriber, the newest first; old ones are among them."""
        known = self.tickets.get(subscriber, [])
        return [known[-1 - number] for number in which if number < len(known)]

    def plain(self, answer: Any) -> Any:
        """Return the answer with handles as numbers, so that two stores' answers can be compared."""
        if isinstance(answer, MessageView):
            return replace(
                answer, handle=self.handles.index(answer.handle), headers=without_digests(answer.headers)
            )
        if isinstance(answer, Taken):
            return answer._replace(ticket=self.plain(answer.ticket), headers=without_digests(answer.headers))
        if isinstance(answer, Ticket | Child):
            return answer._replace(handle=self.handles.index(answer.handle))
        if isinstance(answer, list | tuple) and not hasattr(answer, "_fields"):
            return [self.plain(one) for one in answer]
        return answer


def without_digests(headers: tuple[tuple[str, bytes | None], ...]) -> Any:
    """Leave out what an edit notes of the value before: an index without values does not know it."""
    found = [(name, orjson.loads(value) if name == EDITED and value else value) for name, value in headers]
    return [(name, {**value, "before": None} if isinstance(value, dict) else value) for name, value in found]


class QueueMachine(RuleBasedStateMachine):
    """Runs commands on the book and on one store for each medium."""

    media: tuple[Medium, ...] = ()

    @initialize(audience=st.sampled_from(AUDIENCES), tight=st.booleans(), retain=st.sampled_from(RETENTIONS))
    def open(self, audience: Audience, tight: bool, retain: Retention) -> None:
        self.now = NOW
        self.settings = replace(
            settings(),
            audience=audience,
            waiting_max=6 if tight else 1000,
            retain=retain,
            ttl_ms=300,
        )
        self.book = Subject("book", QueueBook(self.settings))
        self.subjects = [Subject(medium.name, medium.open(self.settings)) for medium in self.media]
        for name in self.known():
            for holder in HOLDERS[name]:
                self.enter_one(Holder(holder, name, 0, None))

    def enter_one(self, holder: Holder) -> None:
        self.same(lambda it: it.store.enter(holder))

    def known(self) -> list[str]:
        return [member for group in self.settings.audience.groups for member in group.members]

    def same(self, command: Callable[[Subject], Any]) -> Any:
        """Run the command everywhere and return the book's answer: the others' must be the same, or the same refusal."""
        expected, wanted = self.ask(self.book, command)
        for subject in self.subjects:
            got = self.ask(subject, command)[1]
            assert (subject.name, got) == (subject.name, wanted)
        return expected

    @staticmethod
    def ask(subject: Subject, command: Callable[[Subject], Any]) -> tuple[Any, Any]:
        try:
            answer = command(subject)
        except RelayError as refusal:
            return None, type(refusal)
        return answer, subject.plain(answer)

    def teardown(self) -> None:
        for subject in getattr(self, "subjects", []):
            subject.store.close()

    @invariant()
    def every_message_looks_the_same(self) -> None:
        if hasattr(self, "book"):
            self.same(lambda it: (it.store.find(Filter(), limit=1000), it.store.waiting()))

    @rule(by=st.sampled_from([1, 5, 20, 20, -7]))
    def time_passes(self, by: int) -> None:
        self.now += by

    @rule(
        messages=st.lists(_new, min_size=1, max_size=3),
        reveal=st.sampled_from([True, True, False]),
        own=st.integers(0, 9),
    )
    def put(self, messages: list[NewMessage], reveal: bool, own: int) -> None:
        if own < 2 and len(self.known()) > 1:
            other = subscribers(self.known()[-1]) if own else subscribers(tuple(self.known()))
            messages = [message._replace(audience=other) for message in messages]

        def put(it: Subject) -> list[tuple[int, bool]]:
            answers = it.store.put(messages, self.now, reveal=reveal)
            it.handles += [answer.handle for answer in answers if not answer.repeat]
            return [(it.handles.index(answer.handle), answer.repeat) for answer in answers]

        self.same(put)

    @rule(which=_which, to=st.none() | st.lists(_name, min_size=1, unique=True))
    def reveal(self, which: list[int], to: list[str] | None) -> None:
        self.same(lambda it: it.store.reveal(it.some(which), self.now, to))

    @rule(which=_which, what=st.sampled_from(["accept", "withdraw", "discard", "expire_now"]))
    def say(self, which: list[int], what: str) -> None:
        self.same(lambda it: getattr(it.store, what)(it.some(which), self.now))

    @rule(which=_which, name=_name)
    def expire_for_one(self, which: list[int], name: str) -> None:
        self.same(lambda it: it.store.expire_now(it.some(which), self.now, name))

    @rule(what=st.sampled_from(["expire", "reveal_due"]))
    def time_tells(self, what: str) -> None:
        self.same(lambda it: getattr(it.store, what)(self.now, 1000))

    @rule(held=st.sampled_from([(), ("shop",), ("till",), ("shop", "till")]))
    def time_tells_but_for_held_publishers(self, held: tuple[str, ...]) -> None:
        self.same(lambda it: it.store.reveal_due(self.now, 1000, held=held))

    @rule(which=_which, name=_name, even_done=st.booleans())
    def republish(self, which: list[int], name: str, even_done: bool) -> None:
        self.same(
            lambda it: [it.store.republish(h, name, self.now, even_done=even_done) for h in it.some(which)]
        )

    @rule(which=_which, priority=st.sampled_from([0, 3, 9, 10]))
    def prioritise(self, which: list[int], priority: int) -> None:
        self.same(lambda it: it.store.prioritise(it.some(which), priority))

    @rule(which=_which)
    def edit(self, which: list[int]) -> None:
        self.same(lambda it: [it.store.edit(h, b"new", "ops", "why", self.now) for h in it.some(which)])

    @rule(
        name=_name,
        second=st.sampled_from([False, False, False, True]),
        limit=st.integers(1, 5),
        without=st.sampled_from([(), (), (b"l",)]),
        start=st.booleans(),
    )
    def take(self, name: str, second: bool, limit: int, without: tuple[bytes, ...], start: bool) -> None:
        def take(it: Subject) -> list[Taken]:
            taken = it.store.take(name, HOLDERS[name][second], limit, self.now, without=without, start=start)
            it.tickets.setdefault(name, []).extend(one.ticket for one in taken)
            return taken

        self.same(take)

    @rule(
        name=_name,
        which=st.lists(_ticket, min_size=1, max_size=4, unique=True),
        what=st.sampled_from(["start", "finish"]),
    )
    def go_on(self, name: str, which: list[int], what: str) -> None:
        self.same(lambda it: getattr(it.store, what)(name, it.given(name, which), self.now))

    @rule(name=_name, which=st.lists(_ticket, min_size=1, max_size=3, unique=True))
    def refuse(self, name: str, which: list[int]) -> None:
        self.same(
            lambda it: it.store.refuse(name, [(ticket, "torn") for ticket in it.given(name, which)], self.now)
        )

    @rule(
        name=_name,
        which=st.lists(_ticket, min_size=1, max_size=3, unique=True),
        wait=st.sampled_from([None, 3, 30, HOURS_MS]),
        failed=st.booleans(),
    )
    def free(self, name: str, which: list[int], wait: int | None, failed: bool) -> None:
        again_at = None if wait is None else self.now + wait
        self.same(
            lambda it: it.store.free(name, it.given(name, which), self.now, again_at=again_at, failed=failed)
        )

    @rule(name=_name, second=st.booleans(), what=st.sampled_from(["leave", "beat", "held"]))
    def worker(self, name: str, second: bool, what: str) -> None:
        self.same(lambda it: getattr(it.store, what)(HOLDERS[name][second]))

    @rule(name=_name)
    def enter(self, name: str) -> None:
        self.enter_one(Holder(HOLDERS[name][0], name, 0, None))
        self.same(lambda it: sorted(it.store.holders()))

    @rule(name=_name, which=st.lists(_ticket, min_size=1, max_size=4))
    def holds(self, name: str, which: list[int]) -> None:
        self.same(lambda it: it.store.holds(name, it.given(name, which)))

    @rule(attempt=st.sampled_from(["t", "u"]), committed=st.booleans())
    def settle(self, attempt: str, committed: bool) -> None:
        self.same(lambda it: it.store.settle(attempt, committed=committed, now=self.now))
        self.same(lambda it: [it.store.outcome(name) for name in "tuv"])

    @rule()
    def look(self) -> None:
        self.same(lambda it: it.store.children(1000))
        self.same(lambda it: sorted(it.store.journalled(self.now, 1000), key=lambda view: view.handle))
        self.same(lambda it: [it.store.view(handle) for handle in it.handles])
        self.same(lambda it: [one.subscriber for one in it.store.counts()[1]])
        self.same(
            lambda it: [[one.counts.get(state, 0) for state in UNFINISHED] for one in it.store.counts()[1]]
        )

    @rule(
        state=st.none() | st.sampled_from(PublisherState),
        name=st.none() | _name,
        substate=st.none() | st.sampled_from(SubscriberState),
        unusable=st.booleans(),
        publisher=st.sampled_from([None, "shop", "till"]),
        since=st.sampled_from([None, 0, 20]),
        until=st.sampled_from([None, 0, 20]),
        after=st.integers(0, 4),
    )
    def look_for_some(
        self,
        state: PublisherState | None,
        name: str | None,
        substate: SubscriberState | None,
        unusable: bool,
        publisher: str | None,
        since: int | None,
        until: int | None,
        after: int,
    ) -> None:
        times = [None if time is None else NOW + time for time in (since, until)]
        wanted = Filter(state, name, substate, unusable, publisher, *times)
        self.same(lambda it: it.store.find(wanted, after=it.handles[after] if after < len(it.handles) else 0, limit=3))

    @rule(which=_which)
    def trim(self, which: list[int]) -> None:
        self.same(lambda it: it.store.trim(it.some(which)))

    @rule(name=_name, which=_which)
    def take_everything_back(self, name: str, which: list[int]) -> None:
        def undone(it: Subject) -> None:
            with suppress(Undo), it.store.transaction():
                it.store.finish(name, it.given(name, which), self.now)
                it.store.withdraw(it.some(which), self.now)
                it.store.settle("v", committed=True, now=self.now)
                it.store.put([NewMessage("undone", "x", b"x")], self.now)
                raise Undo

        self.same(undone)

    @rule(audience=st.sampled_from(AUDIENCES))
    def open_with_other_subscribers(self, audience: Audience) -> None:
        before = self.known()
        self.settings = self.book.store.settings = replace(self.settings, audience=audience)
        self.open_again()
        for name in sorted(set(self.known()) - set(before)):
            for holder in HOLDERS[name]:
                self.enter_one(Holder(holder, name, 0, None))

    @rule()
    def open_again(self) -> None:
        for subject, medium in zip(self.subjects, self.media, strict=True):
            subject.store.close()
            subject.store = medium.open(self.settings)


def run(name: str, request: pytest.FixtureRequest, examples: int, steps: int) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        # Files go to the journal and follow each other all the time.
        patch.setattr(files_base, "JOURNAL_MESSAGES", 3)
        patch.setattr(files_base, "FOLLOW_BYTES", 3000)
        media = (medium_of(name, Path(directory), request),)
        machine = type("QueueMachine", (QueueMachine,), {"media": media})
        run_state_machine_as_test(
            machine,
            settings=bounds(
                max_examples=examples,
                stateful_step_count=steps,
                derandomize=True,
                database=None,
                deadline=None,
                # To shorten a failing run takes many runs, and each waits for the disk: set RELAY_TEST_SHRINK=1 for it.
                phases=[phase for phase in Phase if SHRINK or phase is not Phase.shrink],
                suppress_health_check=list(HealthCheck),
            ),
        )


STORES = [name for name in MEDIA if name != "book"]
LONG = ("postgresql", "log")
"""They take more than a minute at length."""


@pytest.mark.parametrize("name", STORES)
def test_every_store_answers_as_the_book_does(name: str, request: pytest.FixtureRequest) -> None:
    run(name, request, examples=12, steps=40)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name in LONG else name for name in STORES]
)
def test_every_store_answers_as_the_book_does_at_length(name: str, request: pytest.FixtureRequest) -> None:
    run(name, request, examples=150, steps=80)
