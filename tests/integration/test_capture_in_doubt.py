"""A lost answer is never an abort: the decision row tells, and everyone reads the same row."""

# ruff: noqa: PT012 - a block that raises on leaving is the subject

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from capture_log import DECIDING_COMMIT, DatabaseProxy, messages, read_log, shown, until

from relay import Capture
from relay.capture import publisher
from relay.capture.message import Buffered
from relay.capture.outcomes import Placed, encode_marker, marker_headers
from relay.capture.resolver import Resolver, State
from relay.kafka.appender import Appender, Receipt, Record
from relay.kafka.settings import DefaultTiming
from relay.message.errors import CaptureError, CaptureFenced, CaptureInDoubt, Unreachable
from relay.message.identity import capture_id
from relay.resources import open_resource, patience, postgresql_session
from relay.resources.port import Resource


@pytest.fixture
def proxy(postgres: str) -> Iterator[DatabaseProxy]:
    with DatabaseProxy(postgres) as opened:
        yield opened


@pytest.fixture
def direct(postgres: str) -> Resource:
    resource = open_resource("shop", postgres, 0.2)
    resource.create_tables()
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("create table orders (id integer primary key)")
    return resource


@pytest.fixture
def capture(kafka: str, proxy: DatabaseProxy, direct: Resource) -> Iterator[Capture]:
    resource = open_resource("shop", proxy.url, 0.2)
    with Capture(kafka={"bootstrap.servers": kafka}, resource=resource, source="/s") as opened:
        yield opened


@pytest.fixture
def topic(make_topic) -> str:
    return make_topic(partitions=2)


def orders(url: str) -> list[int]:
    with psycopg.connect(url, autocommit=True) as connection:
        return [row[0] for row in connection.execute("select id from orders order by id").fetchall()]


def only_capture(kafka: str, topic: str) -> bytes:
    (found,) = {read.capture for read in messages(kafka, topic)}
    return found


def end_backends(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid() and state like 'idle in%'"
        )


@pytest.mark.parametrize("silent", [False, True])
def test_a_lost_commit_answer_is_found_out(
    capture: Capture,
    proxy: DatabaseProxy,
    postgres: str,
    kafka: str,
    topic: str,
    silent: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with capture.transaction() as tx:
        tx.execute("insert into orders values (1)")
        tx.publish(topic, 1)
        monkeypatch.setattr(patience, "ANSWER_TIMEOUT_S", 1.0)  # of what comes before none is to be lost
        proxy.silent, proxy.lose_answer_to = silent, DECIDING_COMMIT
    assert orders(postgres) == [1]
    until(lambda: shown(kafka, topic), "the marker")


def test_a_lost_answer_with_the_database_away_is_in_doubt_and_found_out_later(
    capture: Capture,
    proxy: DatabaseProxy,
    postgres: str,
    kafka: str,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher, "FIND_OUT_S", 0.3)
    with pytest.raises(CaptureInDoubt, match="answer was lost"), capture.transaction() as tx:
        tx.execute("insert into orders values (1)")
        tx.publish(topic, 1)
        proxy.lose_answer_to, proxy.refuse = DECIDING_COMMIT, True
    assert capture.in_doubt == 1
    assert [read.marker for read in read_log(kafka, topic)] == [None], "nobody may guess meanwhile"
    proxy.refuse = False
    until(lambda: shown(kafka, topic), "the marker")
    assert orders(postgres) == [1]
    assert capture.in_doubt == 0


def test_a_connection_lost_before_commit_is_aborted_by_whoever_asks(
    capture: Capture, postgres: str, kafka: str, topic: str
) -> None:
    with (
        pytest.raises(CaptureError, match="before the commit took effect") as caught,
        capture.transaction() as tx,
    ):
        tx.publish(topic, 1)
        tx._publisher.append(tx._messages, tx._placed)
        end_backends(postgres)
    assert not isinstance(caught.value, (CaptureFenced, CaptureInDoubt))
    until(lambda: [r for r in read_log(kafka, topic) if r.marker], "the aborted marker")
    assert shown(kafka, topic) == []


def test_a_block_that_says_nothing_for_too_long_is_told_so(
    kafka: str, direct: Resource, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_session, "IDLE_LIMIT_S", 0.2)
    with (
        Capture(kafka={"bootstrap.servers": kafka}, resource=direct, source="/s") as capture,
        pytest.raises(CaptureError, match=r"run the block again.*silent for [0-9]+ s"),
        capture.transaction() as tx,
    ):
        tx.publish(topic, 1)
        time.sleep(1)


@pytest.mark.parametrize("lost", [False, True], ids=["a statement failed", "the connection is lost"])
def test_a_failure_that_the_block_swallowed_beside_execute_is_no_doubt(
    capture: Capture, postgres: str, kafka: str, topic: str, lost: bool
) -> None:
    with pytest.raises(CaptureError, match="rolled back") as caught, capture.transaction() as tx:
        cursor = tx.execute("insert into orders values (1)")
        tx.publish(topic, 1)
        if lost:
            end_backends(postgres)
        with pytest.raises(psycopg.Error):
            cursor.executemany("insert into orders values (%s)", [(2,), (1,)])
    assert not isinstance(caught.value, CaptureInDoubt), "nothing of it was committed, and nothing can be"
    assert (orders(postgres), capture.in_doubt, read_log(kafka, topic)) == ([], 0, [])


def test_a_block_that_committed_before_its_failure_is_still_in_doubt(capture: Capture, postgres: str, topic: str) -> None:
    with pytest.raises(CaptureInDoubt, match="what they committed stays"), capture.transaction() as tx:
        cursor = tx.execute("insert into orders values (1)")
        tx.publish(topic, 1)
        tx.execute("select 1; commit; begin")
        with pytest.raises(psycopg.Error):
            cursor.execute("insert into orders values (1)")
    assert orders(postgres) == [1]


def test_a_commit_after_a_fence_fails_with_capture_fenced(
    capture: Capture, direct: Resource, postgres: str, kafka: str, topic: str
) -> None:
    with pytest.raises(CaptureFenced), capture.transaction() as tx:
        tx.execute("insert into orders values (1)")
        tx.publish(topic, 1)
        tx._publisher.append(tx._messages, tx._placed)
        end_backends(postgres)
        found = until(
            lambda: Resolver({"shop": direct}).resolve([(tx.id, direct.identity())]), "the resolution"
        )
        assert found[tx.id].state is State.ABORTED
    assert orders(postgres) == []
    assert shown(kafka, topic) == []


def test_a_slow_publisher_is_waited_for_and_then_believed(
    capture: Capture, direct: Resource, kafka: str, topic: str
) -> None:
    resolver = Resolver({"shop": direct})
    name = direct.identity()
    with capture.transaction() as tx:
        tx.publish(topic, 1)
        assert resolver.resolve([(tx.id, name)])[tx.id].state is State.UNDECIDED
    found = resolver.resolve([(tx.id, name)])[tx.id]
    assert found.state is State.COMMITTED
    assert capture_id(found.nonce or b"") == tx.id
    resolver.close()


def test_resolvers_and_the_publisher_agree_however_they_race(
    kafka: str, direct: Resource, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = direct.session()
    drawn = [number.to_bytes(16, "big") for number in range(100)]
    monkeypatch.setattr(session, "_nonces", drawn[:])
    session._pgconn.exec_(b"set relay.nonces = '%s'" % b"".join(drawn).hex().encode())
    name = direct.identity()
    answers: dict[bytes, set[State]] = {}
    stop = threading.Event()
    known: list[bytes] = []

    def resolve() -> None:
        resolver = Resolver({"shop": direct})
        while not stop.is_set():
            for capture, found in resolver.resolve([(c, name) for c in list(known)]).items():
                if found.state in (State.COMMITTED, State.ABORTED):
                    answers.setdefault(capture, set()).add(found.state)
        resolver.close()

    threads = [threading.Thread(target=resolve) for _ in range(2)]
    for thread in threads:
        thread.start()
    committed = set()
    for nonce in reversed(drawn):
        capture = capture_id(nonce)
        known.append(capture)
        try:
            assert session.begin() == (capture, nonce)
            session.decide(capture, b"[]")
            committed.add(capture)
        except CaptureFenced:
            pass
    session.close()
    until(lambda: len(answers) == 100, "every answer")
    stop.set()
    for thread in threads:
        thread.join()
    assert {c for c, states in answers.items() if State.COMMITTED in states} == committed
    assert all(len(states) == 1 for states in answers.values())


def test_another_database_under_the_right_name_decides_nothing(direct: Resource, postgres: str) -> None:
    asked = (capture_id(b"n" * 16), direct.identity())
    direct.renew_identity()
    found = Resolver({"shop": direct}).resolve([asked])[asked[0]]
    assert found.state is State.WRONG_RESOURCE
    assert asked[1].uuid in found.detail
    with psycopg.connect(postgres) as connection:
        assert connection.execute("select count(*) from relay_capture").fetchone() == (0,)
    assert Resolver({}).resolve([asked])[asked[0]].state is State.WRONG_RESOURCE


def test_a_publisher_notices_that_its_database_was_exchanged(
    capture: Capture, direct: Resource, postgres: str, topic: str
) -> None:
    direct.renew_identity()
    with pytest.raises(Exception, match="identity changed"), capture.transaction() as tx:
        tx.publish(topic, 1)


def test_a_database_that_is_away_is_asked_again(
    direct: Resource, proxy: DatabaseProxy, capture: Capture, topic: str
) -> None:
    resolver = Resolver({"shop": open_resource("shop", proxy.url, 0.2)})
    name = direct.identity()
    with capture.transaction() as tx:
        tx.publish(topic, 1)
    assert resolver.resolve([(tx.id, name)])[tx.id].state is State.COMMITTED
    proxy.refuse = True
    proxy.cut()
    assert resolver.resolve([(tx.id, name)])[tx.id].state is State.UNREACHABLE
    with pytest.raises(Unreachable), capture.transaction():
        pass
    proxy.refuse = False
    assert resolver.resolve([(tx.id, name)])[tx.id].state is State.COMMITTED
    resolver.close()


def test_a_forged_marker_shows_nothing(kafka: str, direct: Resource, topic: str) -> None:
    capture = capture_id(b"secret nonce 16b")
    headers = marker_headers(capture, b"/stranger", direct.identity())
    appender = Appender({"bootstrap.servers": kafka}, DefaultTiming())
    receipt = Receipt(2)
    message = [("ce_relaycapture", capture.hex().encode()), ("ce_relayresource", direct.identity().encode())]
    records = [
        Record(topic, 0, b"1", b"1", message),
        Record(topic, 0, capture, encode_marker(capture, b"guessed nonce 16", None, []), headers),
    ]
    appender.append(records, receipt, float("inf"))
    assert receipt.wait(10)
    appender.close()
    (marker,) = [read.marker for read in read_log(kafka, topic) if read.marker]
    assert marker.forged
    assert shown(kafka, topic) == []
    asked = (capture, direct.identity())
    assert Resolver({"shop": direct}).resolve([asked])[capture].state is State.ABORTED


@pytest.mark.parametrize(
    "then",
    [["select 1; commit; begin", "insert into orders values (2)"], ["select 1; commit; begin read only"]],
    ids=["the row is no one's", "the proof is refused"],
)
def test_commit_and_begin_inside_one_statement_are_caught_by_the_row(
    capture: Capture, postgres: str, kafka: str, topic: str, then: list[str]
) -> None:
    with pytest.raises(CaptureInDoubt, match="follow what they committed"), capture.transaction() as tx:
        tx.execute("insert into orders values (1)")
        tx.publish(topic, 1)
        for statement in then:
            tx.execute(statement)
    assert orders(postgres) == [1]
    until(lambda: shown(kafka, topic), "the marker of what the block committed itself")


def test_a_block_that_committed_before_its_end_is_no_success_whose_answer_was_lost(
    capture: Capture, proxy: DatabaseProxy, postgres: str, kafka: str, topic: str
) -> None:
    with pytest.raises(CaptureInDoubt, match="follow what they committed"), capture.transaction() as tx:
        tx.execute("insert into orders values (1)")
        tx.publish(topic, 1)
        tx.execute("select 1; commit; begin")
        tx.execute("insert into orders values (2)")
        proxy.lose_answer_to = DECIDING_COMMIT
    assert orders(postgres) == [1]
    until(lambda: shown(kafka, topic), "the marker of what the block committed itself")


def test_a_block_that_committed_before_a_failure_it_swallowed_is_in_doubt(
    capture: Capture, postgres: str, kafka: str, topic: str
) -> None:
    with pytest.raises(CaptureInDoubt, match="what they committed stays"), capture.transaction() as tx:
        tx.execute("insert into orders values (1)")
        tx.publish(topic, 1)
        tx.execute("select 1; commit; begin")
        with pytest.raises(psycopg.Error):
            tx.execute("insert into orders values (1)")
    assert (orders(postgres), read_log(kafka, topic)) == ([1], [])


def test_what_a_block_prepared_and_somebody_commits_later_is_followed(
    capture: Capture, postgres: str, kafka: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "FIND_OUT_S", 0.3)
    with pytest.raises(CaptureInDoubt), capture.transaction() as tx:
        tx.execute("insert into orders values (1)")
        tx.publish(topic, 1)
        tx.execute("select 1; prepare transaction 'later'; begin read only")
    with psycopg.connect(postgres, autocommit=True) as somebody:
        somebody.execute("commit prepared 'later'")
    assert orders(postgres) == [1]
    until(lambda: shown(kafka, topic), "the marker of what was committed later")


@pytest.mark.parametrize("ended", [False, True], ids=["as it is", "after a COMMIT of the block's own"])
def test_messages_whose_reports_did_not_come_follow_the_row(
    capture: Capture, postgres: str, kafka: str, topic: str, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = capture._publisher.append

    def append_without_report(messages: list[Buffered], placed: list[Placed]) -> None:
        append(messages, placed)
        raise CaptureError("no delivery report came")

    monkeypatch.setattr(capture._publisher, "append", append_without_report)
    raised = CaptureInDoubt if ended else CaptureError
    with pytest.raises(raised, match="themselves" if ended else "no delivery report"), capture.transaction() as tx:
        tx.execute("insert into orders values (1)")
        tx.publish(topic, 1)
        if ended:
            tx.execute("select 1; commit; begin")
    until(lambda: [read for read in read_log(kafka, topic) if read.marker], "the marker")
    assert len(orders(postgres)) == len(shown(kafka, topic)) == int(ended)
    assert capture.in_doubt == 0


@pytest.mark.parametrize("at", [b"synchronous_commit", b"relay_resource", b"to_regclass", b"relay_enter"])
def test_a_database_that_falls_silent_while_a_session_is_made_is_away(
    proxy: DatabaseProxy, direct: Resource, at: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "ANSWER_TIMEOUT_S", 0.5)
    proxy.silent, proxy.lose_answer_to = True, at
    begun = time.monotonic()
    with pytest.raises(Unreachable):
        open_resource("shop", proxy.url, 0.2).session()
    assert time.monotonic() - begun < 5


def test_a_decision_is_not_waited_for_for_ever(
    proxy: DatabaseProxy, direct: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions = open_resource("shop", proxy.url, 0.2).decisions()
    monkeypatch.setattr(patience, "ANSWER_TIMEOUT_S", 0.5)
    proxy.silent, proxy.lose_answer_to = True, b"from relay_capture"
    begun = time.monotonic()
    with pytest.raises(Unreachable):
        decisions.read([bytes(16)])
    assert time.monotonic() - begun < 5
    decisions.close()


def test_markers_go_on_after_an_answer_that_somebody_swallowed(
    capture: Capture, proxy: DatabaseProxy, postgres: str, kafka: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "ANSWER_TIMEOUT_S", 0.5)
    proxy.silent, proxy.lose_answer_to = True, b"set marked"
    with capture.transaction() as tx:
        tx.publish(topic, 1)
    time.sleep(2)
    proxy.lose_answer_to = None
    with capture.transaction() as tx:
        tx.publish(topic, 2)
    until(lambda: len(shown(kafka, topic)) == 2, "both markers")
    until(lambda: unmarked(postgres) == 0, "the notes that they are written")


def unmarked(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("select count(*) from relay_capture where not marked").fetchone()
    assert row is not None
    return int(row[0])


def test_connections_that_are_silent_together_are_not_tried_one_after_the_other(
    capture: Capture, proxy: DatabaseProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(8)

    def block() -> None:
        with capture.transaction() as tx:
            tx.execute("select 1")
            together.wait(10)

    threads = [threading.Thread(target=block) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.setattr(patience, "ANSWER_TIMEOUT_S", 1.0)
    proxy.silent, proxy.lose_answer_to = True, b"begin"
    begun = time.monotonic()
    with pytest.raises(Unreachable), capture.transaction():
        pass
    assert time.monotonic() - begun < 5


def open_stream(cursor: psycopg.Cursor[Any]) -> object:
    stream = cursor.stream("select generate_series(1, 1000000)")
    next(stream)
    time.sleep(0.3)  # until the server waits for its reader, everything between them being full
    return stream


def open_copy(cursor: psycopg.Cursor[Any]) -> object:
    unread = cursor.copy("copy (select generate_series(1, 100000000)) to stdout")
    unread.__enter__()
    return unread


def open_pipeline(cursor: psycopg.Cursor[Any]) -> object:
    pipeline = cursor.connection.pipeline()
    pipeline.__enter__()
    cursor.execute("select 1")
    return pipeline


@pytest.mark.parametrize("raises", [False, True], ids=["goes on", "raises"])
@pytest.mark.parametrize("leave_open", [open_stream, open_copy, open_pipeline])
def test_what_a_block_leaves_unread_holds_up_no_later_block(
    capture: Capture, topic: str, postgres: str, leave_open: Callable[[psycopg.Cursor[Any]], object], raises: bool
) -> None:
    left = []
    begun = time.monotonic()
    with pytest.raises((ValueError, CaptureError), match=r"enough|read to its end"), capture.transaction() as tx:
        tx.publish(topic, 1)
        tx.execute("insert into orders values (1)")
        left.append(leave_open(tx.execute("select 1").connection.cursor()))
        if raises:
            raise ValueError("enough")
    with capture.transaction() as tx:
        tx.execute("insert into orders values (2)")
    assert time.monotonic() - begun < 5
    assert orders(postgres) == [2]
