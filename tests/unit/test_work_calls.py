"""One call of a handler that has no database: under which name it runs, and what is left to it once it has returned."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from relay.message.errors import ConfigError, InDoubt, RelayError, Stopped, Unreachable
from relay.queue.attempts import AttemptName
from relay.queue.message import Audience, Group, NewMessage
from relay.queue.port import Filter, Holder, QueueStore, StoreAway
from relay.queue.recovery import Recovery
from relay.queue.settings import QueueSettings
from relay.queue.states import PublisherState
from relay.work.away import Waits
from relay.work.desk import CallOver
from relay.work.dispatch import Ended, Outcome, Work
from relay.work.message import Message
from relay.work.place import Place
from relay.work.running import Runner
from relay.work.subscriber import Handler, Unusable
from relay.world import clock, schedule
from tests.contracts.queue_book import QueueBook

HOLDER = b"a worker--------"
LONGEST = 80
"""Characters of a name in the configuration."""


def ended(store: QueueBook, subscriber: str, function: Callable[[Message], None]) -> Ended:
    """Run the function as handler of the message that waits and return how that ended."""
    queue = store.settings.name
    store.enter(Holder(HOLDER, subscriber, 0, None))
    store.put([NewMessage("p", "1", b"1")], 1)
    (taken,) = store.take(subscriber, HOLDER, 1, 1)
    place = Place(queue, subscriber, f"queue:{queue}", {queue: store}, {queue: schedule.lock()})
    (end,) = Runner(Handler(queue, function, None, 0, "queue"), place, None)(Work((taken,)))
    return end


def queue(name: str, subscriber: str) -> QueueBook:
    store = QueueBook(QueueSettings(name, Audience((Group(subscriber, (subscriber,)),))))
    store.uuid = "0123456789abcdef" * 2
    return store


def test_a_message_of_a_queue_with_the_longest_name_is_handled() -> None:
    store = queue("q" * LONGEST, "s" * LONGEST)

    end = ended(store, "s" * LONGEST, lambda message: message.publish("q" * LONGEST, b"child"))

    assert end.outcome is Outcome.WRITTEN, end.cause
    assert [view.id for view in store.find(Filter(publisher=f"{'q' * LONGEST}/{'s' * LONGEST}"))] == [f"{store.uuid}.1.1"]
    name = AttemptName(f"queue:{'q' * LONGEST}", "q" * LONGEST, store.uuid, "s" * LONGEST, end.taken.ticket)
    assert AttemptName.decode(name.encode()) == name


def test_each_child_has_a_name_of_its_own_which_is_the_same_in_every_attempt() -> None:
    def publishing(message: Message) -> None:
        for value in (b"one", b"two"):
            message.publish("q", value)

    store = queue("q", "s")
    assert ended(store, "s", publishing).outcome is Outcome.WRITTEN

    assert [view.id for view in store.find(Filter(publisher="q/s"))] == [f"{store.uuid}.1.{number}" for number in (1, 2)]


@pytest.mark.parametrize(
    "given",
    [
        {"ab": "1", "cd": b"2", "ef": None},
        [("ab", b"1"), ["cd", bytearray(b"2")], ("ef", None)],
        iter([("ab", "1"), ("cd", memoryview(b"2")), ("ef", None)]),
    ],
    ids=["mapping", "pairs", "iterator"],
)
def test_headers_are_published_as_they_are_given(given: Any) -> None:
    store = queue("q", "s")

    end = ended(store, "s", lambda message: message.publish("q", b"child", headers=given))

    assert end.outcome is Outcome.WRITTEN, end.cause
    (view,) = store.find(Filter(publisher="q/s"))
    assert view.headers == (("ab", b"1"), ("cd", b"2"), ("ef", None))


@pytest.mark.parametrize("given", ["ab", b"ab", ["ab"], [("a", "b", "c")], {"a": 7}, {7: "a"}, {"\ud800": "a"}, {"a": "\ud800"}, 7])
def test_headers_that_are_no_pairs_of_name_and_value_fail_the_message(given: Any) -> None:
    end = ended(queue("q", "s"), "s", lambda message: message.publish("q", b"child", headers=given))

    assert end.outcome is not Outcome.WRITTEN
    assert "headers: " in str(end.cause)


@pytest.mark.parametrize("given", [5, b"a", "\ud800", "a\0b"])
def test_a_subject_that_not_every_store_gives_back_as_text_fails_the_message(given: Any) -> None:
    end = ended(queue("q", "s"), "s", lambda message: message.publish("q", b"child", subject=given))

    assert end.outcome is not Outcome.WRITTEN
    assert "subject: " in str(end.cause)


@pytest.mark.parametrize("of", [bytearray, memoryview])
def test_bytes_of_any_kind_are_key_and_value_of_a_child(of: Any) -> None:
    store = queue("q", "s")

    end = ended(store, "s", lambda message: message.publish("q", of(b"child"), key=of(b"k")))

    assert end.outcome is Outcome.WRITTEN, end.cause
    view = store.view(store.find(Filter(publisher="q/s"))[0].handle)
    assert view is not None
    assert (type(view.key), view.key, view.lane, view.value) == (bytes, b"k", b"k", b"child")


@pytest.mark.parametrize(("of", "outcome"), [(Exception, Outcome.FAILED), (ValueError, Outcome.FAILED), (Unusable, Outcome.UNUSABLE)])
def test_an_error_that_fails_to_say_what_it_is_fails_its_message_and_not_the_worker(
    of: type[Exception], outcome: Outcome
) -> None:
    class Wordless(of):  # type: ignore[misc, valid-type]
        def __str__(self) -> str:
            return f"no {self.field}"

    def failing(_: Message) -> None:
        raise Wordless

    end = ended(queue("q", "s"), "s", failing)

    assert (end.outcome, "Wordless" in str(end.cause)) == (outcome, True)


def test_what_a_handler_returns_to_be_awaited_by_nobody_is_its_failure() -> None:
    class Awaitable:
        def __await__(self) -> Iterator[None]:
            return iter(())

    end = ended(queue("q", "s"), "s", lambda _: Awaitable())  # type: ignore[arg-type,return-value]

    assert (end.outcome, "declare it with async def" in end.cause) == (Outcome.FAILED, True)


def test_what_is_published_once_the_handler_has_returned_is_refused() -> None:
    store = queue("q", "s")
    kept: list[Message] = []

    end = ended(store, "s", kept.append)

    assert end.outcome is Outcome.DONE
    with pytest.raises(CallOver, match="the handler has returned"):
        kept[0].publish("q", b"late")


def test_what_a_thread_is_just_publishing_as_the_handler_returns_is_refused() -> None:
    """Otherwise it is in nobody's hands: the message is decided without it, and whoever published believes that it will show."""
    begun, returned = schedule.event(), schedule.event()
    outcomes: list[type[BaseException] | None] = []
    threads: list[schedule.Thread] = []

    def headers() -> Iterator[tuple[str, bytes]]:
        begun.set()
        returned.wait(10)
        yield "a", b"1"

    def handler(message: Message) -> None:
        def publish() -> None:
            try:
                message.publish("q", b"child", headers=headers())
            except CallOver:
                outcomes.append(CallOver)
            else:
                outcomes.append(None)

        threads.append(schedule.start_thread("left-behind", publish))
        begun.wait(10)

    end = ended(queue("q", "s"), "s", handler)
    returned.set()
    threads[0].join(10)

    assert (end.outcome, outcomes) == (Outcome.DONE, [CallOver])


def test_children_that_another_thread_counts_in_the_same_moment_are_counted_too() -> None:
    store, looked = queue("q", "s"), 0
    store.enter(Holder(HOLDER, "s", 0, None))
    store.put([NewMessage("p", "1", b"1")], 1)
    (taken,) = store.take("s", HOLDER, 1, 1)

    class Children(list[tuple[str, NewMessage]]):
        def __len__(self) -> int:
            nonlocal looked
            looked += 1
            runner.children += 1  # by another thread
            return super().__len__()

    def publishing(message: Message) -> None:
        message.publish("q", b"child")
        message.children = Children(message.children)

    place = Place("q", "s", "queue:q", {"q": store}, {"q": schedule.lock()})
    runner = Runner(Handler("q", publishing, None, 0, "queue"), place, None)
    runner(Work((taken,)))

    assert looked
    assert runner.children == 1 + looked


class Damaged(dict[str, QueueStore]):
    """Queues of which one cannot be opened, mostly until a person has mended it."""

    why: RelayError

    def __getitem__(self, name: str) -> QueueStore:
        if name == "credit":
            raise self.why
        return super().__getitem__(name)


@pytest.mark.parametrize(
    "why",
    [
        Stopped("queue 'credit' is not recorded; run `relay migrate`"),
        ConfigError("the queue's tables are missing or old; run `relay migrate`"),
        StoreAway("the queue's database does not answer"),
        Unreachable("the queue's database does not answer"),
    ],
)
def test_a_childs_queue_that_cannot_be_opened_uses_up_no_try_of_its_parent(why: RelayError) -> None:
    store = queue("q", "s")
    store.enter(Holder(HOLDER, "s", 0, None))
    store.put([NewMessage("p", "1", b"1")], 1)
    (taken,) = store.take("s", HOLDER, 1, 1)
    queues = Damaged({"q": store, "credit": store})
    queues.why = why
    place = Place("q", "s", "queue:q", queues, {name: schedule.lock() for name in queues})
    handler = Handler("q", lambda message: message.publish("credit", b"child"), None, 0, "queue")

    (end,) = Runner(handler, place, None)(Work((taken,)))

    assert end.outcome is Outcome.AWAY


def test_a_child_that_is_refused_takes_back_at_once_what_was_put_before_it() -> None:
    store, credit = queue("q", "s"), queue("credit", "clerk")
    store.enter(Holder(HOLDER, "s", 0, None))
    store.put([NewMessage("p", "1", b"1")], 1)
    (taken,) = store.take("s", HOLDER, 1, 1)
    queues: dict[str, QueueStore] = {"q": store, "credit": credit}
    place = Place("q", "s", "queue:q", queues, {name: schedule.lock() for name in queues})

    def publishing(message: Message) -> None:
        message.publish("credit", b"child")
        message.publish("nowhere", b"child")

    (end,) = Runner(Handler("q", publishing, None, 0, "queue"), place, None)(Work((taken,)))

    assert (end.outcome, end.cause) == (Outcome.FAILED, "queue 'nowhere' is not configured: add [queues.nowhere]")
    assert [view.state for view in credit.find(Filter(), limit=10)] == [PublisherState.DELETED]


def lose_the_next_answer(store: QueueBook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is written next stand, and nobody hear of it."""
    begun, open_now = store.transaction, []

    @contextmanager
    def transaction() -> Iterator[None]:
        open_now.append(1)
        with begun():
            yield
        open_now.pop()
        if not open_now:
            monkeypatch.undo()
            raise InDoubt("the answer was lost")

    monkeypatch.setattr(store, "transaction", transaction)


def test_children_of_a_decision_whose_answer_was_lost_are_not_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store, credit = queue("q", "s"), queue("credit", "clerk")
    store.enter(Holder(HOLDER, "s", 0, None))
    store.put([NewMessage("p", "1", b"1")], 1)
    (taken,) = store.take("s", HOLDER, 1, 1)
    queues: dict[str, QueueStore] = {"q": store, "credit": credit}
    place = Place("q", "s", "queue:q", queues, {name: schedule.lock() for name in queues})

    def publishing(message: Message) -> None:
        message.publish("credit", b"child")
        lose_the_next_answer(store, monkeypatch)

    (end,) = Runner(Handler("q", publishing, None, 0, "queue"), place, None)(Work((taken,)))

    assert end.outcome is Outcome.BACK
    assert store.free("s", [taken.ticket], 2) == [False], "the guarded write tells that it is DONE"
    assert Recovery(queues, {"queue:q": store}).children("credit", 2).revealed == 1


def test_a_handler_that_fails_is_told_of_once_and_without_what_it_said() -> None:
    def failing(_: Message) -> None:
        raise ValueError("a customer's name")

    def finding_unusable(_: Message) -> None:
        raise Unusable("a customer's address")

    with capture_logs() as logs:
        first = ended(queue("q", "s"), "s", failing)
        second = ended(queue("q", "s"), "s", finding_unusable)

    assert (first.outcome, second.outcome) == (Outcome.FAILED, Outcome.UNUSABLE)
    told = [line["causes"] for line in logs if line["event"] == "handler failed"]
    assert [list(one.values()) for one in told] == [[1], [1]]
    assert "ValueError in failing, line" in str(told[0])
    assert "customer" not in str(logs)
    assert second.cause == "a customer's address", "where whoever asks for the message finds it"


def test_of_handlers_that_fail_all_are_told_of_in_the_end_also_when_none_fails_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst of five hundred left a line in the log that one had failed."""
    now = 1000.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    store = queue("q", "s")
    store.enter(Holder(HOLDER, "s", 0, None))
    store.put([NewMessage(f"p{n}", "1", b"1") for n in range(6)], 1)
    place = Place("q", "s", "queue:q", {"q": store}, {"q": schedule.lock()})

    def handle(message: Message) -> None:
        raise (Unusable if message.publisher < "p3" else Unreachable)("why")

    runner = Runner(Handler("q", handle, None, 0, "queue"), place, None)
    with capture_logs() as logs:
        for taken in store.take("s", HOLDER, 6, 1):
            runner(Work((taken,)))
        assert [list(line["causes"].values()) for line in logs] == [[1], [1]]
        runner.say(now + 29)
        assert len(logs) == 2
        runner.say(now + 31)
        runner.say(float("inf"))

    assert [(line["event"], *line["causes"].values()) for line in logs[2:]] == [("handler failed", 2), ("messages wait", 2)]


@pytest.mark.parametrize("given", [{"ttl_ms": "5s"}, {"delay_ms": "soon"}, {"priority": "high"}])
def test_a_child_with_a_number_that_is_none_fails_at_the_handlers_own_line(given: dict[str, Any]) -> None:
    def function(message: Message) -> None:
        message.publish("orders", b"child", **given)

    end = ended(queue("orders", "approval"), "approval", function)

    assert (end.outcome, end.cause) == (Outcome.FAILED, f"ValueError in function, line {function.__code__.co_firstlineno + 1}")


@pytest.mark.parametrize("name", ["ttl_ms", "delay_ms"])
@pytest.mark.parametrize("given", [2**63, -(2**63), 2**63 - 1, float("inf"), pytest.param(10**4000, id="long")])
def test_a_child_s_time_that_no_store_has_room_for_is_refused_by_name_at_the_handlers_own_line(name: str, given: Any) -> None:
    said: list[str] = []

    def function(message: Message) -> None:
        with pytest.raises(ValueError, match=f"{name} = ") as refused:
            message.publish("orders", b"child", **{name: given})
        said.append(str(refused.value))
        message.publish("orders", b"child", **{name: 2**62 - 1})

    assert ended(queue("orders", "approval"), "approval", function).outcome is Outcome.WRITTEN
    assert len(said[0]) < 200


def test_a_child_s_numbers_may_be_those_of_a_library_or_in_parts() -> None:
    def function(message: Message) -> None:
        message.publish("orders", b"child", ttl_ms=1e3, delay_ms=0.5, priority=True)  # type: ignore[arg-type]

    store = queue("orders", "approval")
    put: list[NewMessage] = []
    store.put = put_noted(put, store.put)  # type: ignore[method-assign]
    assert ended(store, "approval", function).outcome is Outcome.WRITTEN
    assert [type(one) for one in (put[-1].ttl_ms, put[-1].delay_ms, put[-1].priority)] == [int, int, int]


@pytest.mark.parametrize("given", ["the first", None, 0, -1, 2**63, 2**70])
def test_a_further_parent_that_is_no_handle_fails_at_the_handlers_own_line(given: Any) -> None:
    def function(message: Message) -> None:
        message.also_from(given)
        message.publish("orders", b"child")

    end = ended(queue("orders", "approval"), "approval", function)

    kind = "TypeError" if given is None else "ValueError"
    assert (end.outcome, end.cause) == (Outcome.FAILED, f"{kind} in function, line {function.__code__.co_firstlineno + 1}")


def test_a_further_parent_may_be_a_handle_that_was_kept_as_text() -> None:
    def function(message: Message) -> None:
        message.also_from("12")  # type: ignore[arg-type]
        message.also_from(str(message.handle))  # type: ignore[arg-type]
        message.publish("orders", b"child")

    store = queue("orders", "approval")
    put: list[NewMessage] = []
    store.put = put_noted(put, store.put)  # type: ignore[method-assign]
    assert ended(store, "approval", function).outcome is Outcome.WRITTEN
    assert [parent.handle for parent in put[-1].parents] == [1, 12]


def put_noted(put: list[NewMessage], function: Callable[..., Any]) -> Callable[..., Any]:
    def noting(messages: Any, *arguments: Any, **named: Any) -> Any:
        put.extend(messages)
        return function(messages, *arguments, **named)

    return noting


def publish_apart(message: Message) -> None:
    message.publish("orders", b"child")


def test_a_child_that_another_process_would_publish_is_refused_and_not_lost() -> None:
    """What a pool's process, or a fork, added to its copy of the message showed nowhere, and the message was DONE."""

    def carried(message: Message) -> None:
        message = pickle.loads(pickle.dumps(message))
        object.__setattr__(message, "process", -1)  # as it is found in another process
        publish_apart(message)

    def forked(message: Message) -> None:
        fork = os.fork()
        if fork == 0:
            try:
                publish_apart(message)
            except CallOver:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 7, "the fork published"

    end = ended(queue("orders", "approval"), "approval", carried)
    assert end.outcome is Outcome.FAILED
    assert end.cause.startswith("another process than the handler's")
    assert ended(queue("orders", "approval"), "approval", forked).outcome is Outcome.DONE


def test_what_messages_wait_for_is_said_and_not_for_each_of_them() -> None:
    """They use up no try: a database that was away for hours left no line in the log."""

    def handle(_: Message) -> None:
        raise Unreachable("resources.shop: the database does not answer; start it")

    store = queue("q", "s")
    with capture_logs() as said:
        end = ended(store, "s", handle)
        waits = Waits()
        for _ in range(100):
            waits.count(ValueError(), "OperationalError in approve, line 3")

    assert end.outcome is Outcome.AWAY
    assert [(line["event"], line["causes"]) for line in said] == [
        ("messages wait", {"resources.shop: the database does not answer; start it": 1}),
        ("messages wait", {"OperationalError in approve, line 3": 1}),
    ]
