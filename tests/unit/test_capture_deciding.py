"""How a block ends, by what its COMMIT answered and what the row says: what its caller is told, and what the log is."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from relay.capture.block import CaptureBlock
from relay.capture.capture import Capture
from relay.capture.message import Buffered
from relay.capture.outcomes import Placed
from relay.capture.publisher import Publisher
from relay.capture.upkeep import Decided
from relay.kafka.appender import Receipt, Record
from relay.kafka.settings import DefaultTiming
from relay.kafka.topics import TopicFacts
from relay.message.envelope import SEQUENCE, ResourceName
from relay.message.errors import (
    CaptureError,
    CaptureFenced,
    CaptureInDoubt,
    ConfigError,
    RelayError,
    Unreachable,
)
from relay.resources.port import AnswerLost, CommitRefused, NotTheTransactionBegun, RowLocked
from relay.resources.turns import Turn
from tests.unit.test_capture_publish import Admitting

CAPTURE, NONCE = b"c" * 16, b"n" * 16
PLACED = Placed("orders", 0, 1, 1)
LOST, REFUSED, ANOTHER = AnswerLost("gone"), CommitRefused("no"), NotTheTransactionBegun("another")
COMMITTED, ABORTED = ("marked", NONCE), ("marked", None)
DOUBTED = ("doubted", NONCE)


class Session:
    """A database transaction whose COMMIT is answered as told; ``is_sure`` is whether its own connection tells it undone."""

    failed, in_transaction, usable = False, True, True
    uuid = "u"

    def __init__(self, answer: BaseException | None, *, is_sure: bool) -> None:
        self._answer = answer
        self._is_sure = is_sure
        self.decided: list[bytes] = []
        self.closed = self.rolled_back = 0

    def is_intact(self, capture: bytes) -> bool:
        return capture == CAPTURE

    def decide(self, capture: bytes, partitions: bytes) -> None:
        self.decided.append(partitions)
        if self._answer is not None:
            raise self._answer

    def rollback(self) -> None:
        self.rolled_back += 1

    def is_undone(self, capture: bytes) -> bool:
        return self._is_sure

    def close(self) -> None:
        self.closed += 1


class Deciding(Admitting):
    """A Capture whose log takes what a block appends; ``row`` is what another connection finds out."""

    def __init__(self, session: Session, row: Decided | BaseException | None) -> None:
        super().__init__()
        self._session, self._row = session, row
        self.told: list[tuple[str, bytes | None]] = []
        self.refusal: Exception | None = None

    def begin(self) -> tuple[Any, bytes, bytes]:
        return self._session, CAPTURE, NONCE

    def append(self, messages: list[Buffered], placed: list[Placed]) -> None:
        placed += [PLACED] * len(messages)
        if self.refusal is not None:
            raise self.refusal

    def mark(self, capture: bytes, nonce: bytes | None, placed: list[Placed]) -> None:
        assert (capture, placed) == (CAPTURE, [PLACED])
        self.told.append(("marked", nonce))

    def doubt(self, capture: bytes, nonce: bytes, placed: list[Placed]) -> None:
        assert capture == CAPTURE
        self.told.append(("doubted", nonce))

    def find_out(self, capture: bytes) -> Decided | None:
        if isinstance(self._row, BaseException):
            raise self._row
        return self._row


def ended(session: Session, publisher: Deciding, *, messages: int = 1) -> None:
    with CaptureBlock(publisher) as block:  # type: ignore[arg-type]
        for _ in range(messages):
            block.publish("orders", {})


@pytest.mark.parametrize(
    ("answer", "is_sure", "row", "raised", "told"),
    [
        (None, False, None, None, [COMMITTED]),
        (LOST, False, Decided.COMMITTED, None, [COMMITTED]),
        (LOST, False, Decided.COMMITTED_EARLY, CaptureInDoubt, [COMMITTED]),
        (LOST, False, Decided.ABORTED, CaptureError, [ABORTED]),
        (LOST, False, Decided.FENCED, CaptureFenced, [ABORTED]),
        (LOST, False, None, CaptureInDoubt, [DOUBTED]),
        (REFUSED, True, None, CaptureError, [ABORTED]),
        (REFUSED, False, Decided.COMMITTED, None, [COMMITTED]),
        (REFUSED, False, Decided.COMMITTED_EARLY, CaptureInDoubt, [COMMITTED]),
        (REFUSED, False, Decided.ABORTED, CaptureError, [ABORTED]),
        (REFUSED, False, None, CaptureInDoubt, [DOUBTED]),
        (ANOTHER, False, Decided.COMMITTED_EARLY, CaptureInDoubt, [COMMITTED]),
        (ANOTHER, False, Decided.ABORTED, CaptureInDoubt, [ABORTED]),
        (ANOTHER, False, Decided.FENCED, CaptureInDoubt, [ABORTED]),
        (ANOTHER, False, None, CaptureInDoubt, [DOUBTED]),
        (KeyboardInterrupt(), False, None, KeyboardInterrupt, [DOUBTED]),
        (LOST, False, KeyboardInterrupt(), KeyboardInterrupt, [DOUBTED]),
    ],
)
def test_the_row_and_not_the_answer_says_how_a_block_ended(
    answer: BaseException | None, *, is_sure: bool, row: Any, raised: type[BaseException] | None, told: list[tuple[str, bytes | None]]
) -> None:
    session = Session(answer, is_sure=is_sure)
    publisher = Deciding(session, row)

    if raised is None:
        ended(session, publisher)
    else:
        with pytest.raises(raised) as caught:
            ended(session, publisher)
        assert caught.type is raised

    assert publisher.told == told
    assert session.decided == [b'[["orders",0,1,1]]'], "the row names what the log holds"
    is_known = answer is None or is_sure
    assert session.closed == (0 if is_known else 1), "a connection that does not know its transaction's end is not used again"


@pytest.mark.parametrize(("answer", "raised"), [(None, None), (REFUSED, CaptureError)])
def test_a_block_without_messages_has_nothing_to_mark(answer: Exception | None, raised: type[Exception] | None) -> None:
    session = Session(answer, is_sure=True)
    publisher = Deciding(session, None)

    if raised is None:
        ended(session, publisher, messages=0)
    else:
        with pytest.raises(raised):
            ended(session, publisher, messages=0)

    assert (publisher.told, session.decided) == ([], [b"[]"])


def test_nothing_is_appended_once_the_blocks_statements_have_ended_its_transaction() -> None:
    session, appended = Session(None, is_sure=True), list[Any]()
    session.is_intact = lambda _: False  # type: ignore[method-assign]
    publisher: Any = Deciding(session, None)
    publisher.append = lambda messages, _placed: appended.extend(messages)

    with pytest.raises(CaptureInDoubt, match="ended the database transaction themselves"):
        ended(session, publisher)

    assert (appended, session.decided, publisher.told) == ([], [], [])


def test_what_is_undone_with_a_savepoint_is_neither_appended_nor_counted() -> None:
    session, admitted, appended = Session(None, is_sure=True), list[tuple[int, int]](), list[Any]()
    session.savepoint = session.release = session.rollback_to = lambda _: None  # type: ignore[attr-defined]
    publisher: Any = Deciding(session, None)
    publisher.admit = lambda _found, _facts, messages, size: admitted.append((messages, size)) or 10
    publisher.append = lambda messages, _placed: appended.extend(message.value for message in messages)

    with CaptureBlock(publisher) as block:
        block.publish("orders", 1)
        with suppress(ValueError), block.savepoint():
            block.publish("orders", 2)
            with block.savepoint():
                block.publish("orders", 3)
            raise ValueError
        block.publish("orders", 4)

    assert appended == [b"1", b"4"]
    assert admitted == [(0, 0), (1, 10), (2, 20), (1, 10)]


def test_a_block_that_goes_on_after_a_failed_statement_commits_nothing() -> None:
    session = Session(None, is_sure=True)
    publisher: Any = Deciding(session, None)

    def execute(query: str, _: object) -> None:
        raise ZeroDivisionError(query)

    session.execute = execute  # type: ignore[attr-defined]
    block = CaptureBlock(publisher)

    with pytest.raises(CaptureError, match="a statement of the block failed"), block:  # noqa: PT012
        block.publish("orders", 1)
        with suppress(ZeroDivisionError):
            block.execute("insert")
        assert session.rolled_back == 1, "its locks are not kept until the block is left"
        with pytest.raises(CaptureError, match="the block is failed"):
            block.publish("orders", 2)

    assert (session.decided, publisher.told) == ([], [])


@pytest.mark.parametrize(
    ("is_sure", "row", "raised"),
    [
        (True, None, CaptureError),
        (False, Decided.ABORTED, CaptureError),
        (False, Decided.COMMITTED_EARLY, CaptureInDoubt),
        (False, None, CaptureInDoubt),
    ],
)
def test_a_block_that_is_used_after_a_failed_statement_is_told_what_it_committed_before(
    *, is_sure: bool, row: Decided | None, raised: type[BaseException]
) -> None:
    """`commit and chain`, a statement whose error is passed over, and a `publish` that is refused then: not run again."""
    session = Session(None, is_sure=is_sure)
    publisher: Any = Deciding(session, row)

    def execute(query: str, _: object) -> None:
        raise ZeroDivisionError(query)

    session.execute = execute  # type: ignore[attr-defined]

    with pytest.raises(raised), CaptureBlock(publisher) as block:  # noqa: PT012
        with suppress(ZeroDivisionError):
            block.execute("insert")
        block.publish("orders", 1)


def test_a_block_is_entered_once() -> None:
    publisher: Any = Deciding(Session(None, is_sure=True), None)
    block = CaptureBlock(publisher)
    with block:
        pass

    with pytest.raises(CaptureError, match=r"begin another with capture.transaction"):
        block.__enter__()


@pytest.mark.parametrize(
    ("is_sure", "row", "raised", "told"),
    [
        (True, None, CaptureError, [ABORTED]),
        (False, Decided.ABORTED, CaptureError, [DOUBTED]),
        (False, Decided.FENCED, CaptureError, [DOUBTED]),
        (False, Decided.COMMITTED_EARLY, CaptureInDoubt, [DOUBTED]),
        (False, None, CaptureInDoubt, [DOUBTED]),
        (False, KeyboardInterrupt(), KeyboardInterrupt, [DOUBTED]),
    ],
)
def test_what_the_log_did_not_take_is_rolled_back_and_never_committed(
    *, is_sure: bool, row: Decided | BaseException | None, raised: type[BaseException], told: list[tuple[str, bytes | None]]
) -> None:
    session = Session(None, is_sure=is_sure)
    publisher = Deciding(session, row)
    publisher.refusal = CaptureError("the log did not take the messages")

    with pytest.raises(raised) as caught:
        ended(session, publisher)

    assert raised is not CaptureError or caught.value is publisher.refusal
    assert (session.rolled_back, session.decided, publisher.told) == (1, [], told)


@pytest.mark.parametrize("said", [CaptureError("too large"), ConfigError("no such topic"), Unreachable("no broker answers")])
@pytest.mark.parametrize("row", [Decided.ABORTED, Decided.COMMITTED_EARLY])
def test_a_block_that_has_committed_by_itself_is_not_told_that_it_took_no_effect(said: RelayError, row: Decided) -> None:
    session = Session(None, is_sure=row is Decided.ABORTED)

    with pytest.raises(type(said) if row is Decided.ABORTED else CaptureInDoubt), CaptureBlock(Deciding(session, row)):  # type: ignore[arg-type]
        raise said


def test_what_an_application_raises_leaves_its_block_as_it_is() -> None:
    with pytest.raises(ValueError, match="its own"), CaptureBlock(Deciding(Session(None, is_sure=False), Decided.COMMITTED_EARLY)):  # type: ignore[arg-type]
        raise ValueError("its own")


def test_each_message_has_the_next_number_of_its_partition_and_the_capture_names_the_run_that_it_took() -> None:
    publisher = Publisher.__new__(Publisher)
    publisher._sequences = {("orders", 0): 6}
    placed: list[Placed] = []

    def message(topic: str, partition: int) -> Buffered:
        return Buffered(topic, partition, None, b"{}", [("a", b"b")])

    first = publisher._numbered([message("orders", 0), message("orders", 1), message("orders", 0), message("bills", 0)], placed)
    publisher._numbered([message("orders", 0), message("orders", 1)], placed)

    assert [one.headers for one in first] == [[("a", b"b"), (SEQUENCE, number)] for number in (b"7", b"1", b"8", b"1")]
    assert placed == [
        Placed("orders", 0, 7, 2), Placed("orders", 1, 1, 1), Placed("bills", 0, 1, 1), Placed("orders", 0, 9, 1), Placed("orders", 1, 2, 1)
    ]  # fmt: skip


def test_what_is_numbered_first_is_handed_to_the_log_first() -> None:
    inside, goes_on = threading.Event(), threading.Event()
    appended: list[list[tuple[str, bytes | None]]] = []

    def append(records: Sequence[Record], receipt: Receipt, _: float) -> None:
        if not inside.is_set():
            inside.set()
            assert goes_on.wait(10)
        for record in records:
            appended.append(record.headers)
            receipt.told(None, None)

    publisher = Publisher.__new__(Publisher)
    publisher._sequences, publisher._appends, publisher._timing = {}, Turn(), DefaultTiming()
    publisher._marking = SimpleNamespace(send_with=list)  # type: ignore[assignment]
    publisher._appender = SimpleNamespace(append=append)  # type: ignore[assignment]

    def publishes() -> None:
        publisher.append([Buffered("orders", 0, None, b"{}", [])], [])

    first, second = threading.Thread(target=publishes), threading.Thread(target=publishes)
    first.start()
    assert inside.wait(10)
    second.start()
    second.join(0.1)
    goes_on.set()
    for one in (first, second):
        one.join(10)

    assert appended == [[(SEQUENCE, b"1")], [(SEQUENCE, b"2")]]


def test_a_message_that_the_log_refused_fails_its_capture_and_the_topic_is_looked_at_anew() -> None:
    forgotten: list[list[str]] = []
    publisher = Publisher.__new__(Publisher)
    publisher._sequences, publisher._appends, publisher._timing = {}, Turn(), DefaultTiming()
    publisher._marking = SimpleNamespace(send_with=list)  # type: ignore[assignment]
    publisher._appender = SimpleNamespace(  # type: ignore[assignment]
        append=lambda records, receipt, _: [receipt.told(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), None) for _ in records],
        forget=forgotten.append,
        reason=lambda _, remedy: remedy,
    )

    with pytest.raises(CaptureError, match="did not take the messages"):
        publisher.append([Buffered("orders", 0, None, b"{}", [])], [])

    assert forgotten == [["orders"]]


def test_a_capture_holds_no_more_messages_and_bytes_than_it_may() -> None:
    publisher = Publisher.__new__(Publisher)
    publisher._max_messages, publisher._max_bytes = 2, 1000
    publisher._appender = SimpleNamespace(record_bytes=lambda _: 900)  # type: ignore[assignment]
    facts = TopicFacts("orders", b"", 1, 1)

    def admits(size: int, messages: int, held: int) -> str:
        try:
            publisher.admit(Buffered("orders", 0, None, bytes(size), []), facts, messages, held)
        except CaptureError as refusal:
            return str(refusal).split()[0]
        return ""

    assert [admits(500, messages, 0) for messages in (0, 1, 2)] == ["", "", "max_messages"]
    assert [admits(500, 0, held) for held in (0, 400, 401, 600)] == ["", "", "max_bytes", "max_bytes"]
    assert [admits(size, 0, 0) for size in (800, 801)] == ["", "topic"], "with what a record has beside its value"


def test_a_block_takes_as_much_as_readme_says() -> None:
    defaults = {name: one.default for name, one in signature(Capture).parameters.items()}

    assert (defaults["max_messages"], defaults["max_bytes"]) == (100_000, 64 * 1024**2)


@pytest.mark.parametrize("failure", [RowLocked("others hold the file"), KeyboardInterrupt()])
def test_a_connection_on_which_nothing_could_be_begun_is_closed(failure: BaseException) -> None:
    def begin() -> None:
        raise failure

    publisher, session = Publisher.__new__(Publisher), Session(None, is_sure=True)
    session.begin = begin  # type: ignore[attr-defined]
    publisher._idle, publisher._connect = deque(), lambda: session  # type: ignore[assignment,return-value]

    with pytest.raises(type(failure)):
        publisher.begin()

    assert session.closed == 1


def test_a_connection_to_another_database_under_the_name_is_refused() -> None:
    publisher, session = Publisher.__new__(Publisher), Session(None, is_sure=True)
    session.uuid = "another"
    publisher.name, publisher._resource = ResourceName("shop", "u"), SimpleNamespace(session=lambda: session)  # type: ignore[assignment]

    with pytest.raises(ConfigError, match="identity changed"):
        publisher._connect()

    assert session.closed == 1


@pytest.mark.parametrize("usable", [True, False])
def test_a_connection_is_kept_for_the_next_capture_only_if_it_is_fit_for_one(*, usable: bool) -> None:
    publisher, session = Publisher.__new__(Publisher), Session(None, is_sure=True)
    publisher._idle, session.usable = deque(), usable
    publisher._close_idle = lambda: None

    publisher.give_back(session)  # type: ignore[arg-type]

    assert ([one for _, one in publisher._idle], session.closed) == (([session], 0) if usable else ([], 1))
