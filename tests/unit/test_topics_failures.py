"""A failure that passes by itself must never stop a worker for a person."""

from __future__ import annotations

import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from relay.cli.report import tell_of_waiting
from relay.config.timing import Timing
from relay.kafka.topics import WAITING, TopicPlan, Topics
from relay.message.errors import ConfigError, RelayError, Unreachable


@pytest.fixture
def topics() -> Iterator[Topics]:
    with Topics({"bootstrap.servers": "127.0.0.1:1"}, Timing()) as asked:
        yield asked


def answered(code: int) -> Future[None]:
    future: Future[None] = Future()
    future.set_exception(KafkaException(KafkaError(code)))
    return future


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 250, "a\0b", "a\udcff"])
@pytest.mark.parametrize(
    "call",
    [
        lambda topics, name: topics.describe(["orders", name]),
        lambda topics, name: topics.create([TopicPlan("orders", 1, 1), TopicPlan(name, 1, 1)]),
        lambda topics, name: topics.watermarks(name, [0]),
    ],
    ids=["describe", "create", "watermarks"],
)
def test_what_is_no_topics_name_never_reaches_the_client(
    topics: Topics, call: Callable[[Topics, str], object], name: str
) -> None:
    # It raises what is no sentence, or ends the process.
    topics._admin = None

    with pytest.raises(ConfigError, match="not a topic's name; use 1 to 249 letters"):
        call(topics, name)


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        # The client dropped its handle of a broker while a question was under way to it.
        KafkaError._DESTROY_BROKER,
        KafkaError._WAIT_COORD,
        KafkaError.UNKNOWN,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        # The password was changed: a question that was under way as a connection had to show it again, and one after it.
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    ],
)
def test_what_passes_is_tried_again(topics: Topics, code: int) -> None:
    with pytest.raises(RelayError) as raised:
        topics._result(answered(code), "describe topic orders")

    assert isinstance(raised.value, Unreachable)
    assert "describe topic orders" in str(raised.value)


def test_who_asks_while_another_thread_makes_a_new_client_is_told_that_brokers_are_away() -> None:
    """Publishers of one process ask by one client, which is thrown away, with what it was asked, when a broker is silent."""
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as silent:  # it takes connections, and answers none
        asked = Topics({"bootstrap.servers": f"127.0.0.1:{silent.server_address[1]}"}, Timing(), 1.0)
        told: list[BaseException] = []

        def ask() -> None:
            try:
                asked.describe(["orders"])
            except RelayError as failure:
                told.append(failure)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
            time.sleep(0.1)
        for thread in threads:
            thread.join()

    assert [type(failure) for failure in told] == [Unreachable] * 4, told


def test_who_was_asked_by_a_client_of_before_leaves_the_new_one_to_the_others(topics: Topics) -> None:
    """Or each would throw away what the other has just asked, also when the brokers are back."""
    made = topics._admin

    with pytest.raises(Unreachable, match="no broker answers"):
        topics._result(answered(KafkaError._DESTROY), "describe topic orders")

    assert topics._admin is made


def test_who_asked_by_a_client_that_is_closed_is_told_so(topics: Topics) -> None:
    topics.close()

    with pytest.raises(Unreachable, match="is closed"):
        topics._result(answered(KafkaError._DESTROY), "describe topic orders")


def test_a_broker_that_is_away_is_what_arrives_also_where_no_further_client_can_be_made(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client takes threads and files, of which a process may have none left."""

    def at_the_limit(_settings: object) -> None:
        raise KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE))

    monkeypatch.setattr("relay.kafka.topics.AdminClient", at_the_limit)

    with pytest.raises(Unreachable, match="no broker answers"):
        topics._result(answered(KafkaError._TRANSPORT), "describe topic orders")


@pytest.mark.parametrize("code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.INVALID_CONFIG, KafkaError._INVALID_ARG])
def test_what_somebody_must_correct_is_not(topics: Topics, code: int) -> None:
    with pytest.raises(ConfigError):
        topics._result(answered(code), "describe topic orders")


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), SystemExit(143)], ids=["interrupted", "terminated"])
def test_what_a_signals_handler_raises_within_the_client_is_what_arrives(topics: Topics, raised: BaseException) -> None:
    """The client's own answer to it is an error of the interpreter's."""

    class Admin:
        def poll(self, _timeout: float) -> int:
            return 0

        def list_topics(self, timeout: float) -> None:
            raise SystemError(f"returned a result with an exception set after {timeout} s") from raised

    topics._admin = Admin()

    with pytest.raises(type(raised)):
        topics.names()


@pytest.mark.parametrize(("terminal", "said"), [(True, "waiting for brokers at 127.0.0.1:1, for up to 0.5 s\n"), (False, "")])
def test_a_person_is_told_once_what_is_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool, said: str
) -> None:
    for name, kept in (("handlers", []), ("propagate", True), ("level", 0)):
        monkeypatch.setattr(WAITING, name, kept)
    monkeypatch.setattr("relay.kafka.topics.SOON_S", 0.1)
    tell_of_waiting()
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)

    with Topics({"bootstrap.servers": "127.0.0.1:1"}, Timing(), 0.5) as asked:
        for ask in (lambda: asked.describe(["orders"]), asked.names):
            with pytest.raises(Unreachable):
                ask()

    assert capsys.readouterr().err == said


class Hearsay:
    """A client whose broker hears of ``orders`` with the given question for the topic, and of its settings with the given one."""

    def __init__(self, topic: int, settings: int = 1) -> None:
        self._unheard = {"topic": topic, "settings": settings}

    def poll(self, _timeout: float) -> int:
        return 0

    def describe_topics(self, wanted: Any) -> dict[str, Future[Any]]:
        assert wanted
        return {"orders": self._answer("topic", SimpleNamespace(partitions=[], topic_id="A" * 22))}

    def describe_configs(self, wanted: list[Any]) -> dict[Any, Future[Any]]:
        return {one: self._answer("settings", {"cleanup.policy": SimpleNamespace(value="delete")}) for one in wanted}

    def _answer(self, asked: str, answer: Any) -> Future[Any]:
        self._unheard[asked] -= 1
        if self._unheard[asked] > 0:
            return answered(KafkaError.UNKNOWN_TOPIC_OR_PART)
        future: Future[Any] = Future()
        future.set_result(answer)
        return future


@pytest.mark.parametrize(("topic", "settings"), [(3, 1), (1, 3), (2, 2)], ids=["the topic", "its settings", "both"])
def test_a_topic_that_a_broker_has_not_heard_of_yet_is_asked_for_again(topics: Topics, topic: int, settings: int) -> None:
    topics._admin = Hearsay(topic, settings)

    assert topics.describe(["orders"], wait_s=30)["orders"].settings == {"cleanup.policy": "delete"}


def test_whoever_does_not_wait_for_a_topic_is_told_at_once_that_it_is_missing(topics: Topics) -> None:
    topics._admin = Hearsay(2)
    assert topics.describe(["orders"]) == {}
    topics._admin = Hearsay(1, 2)
    assert topics.describe(["orders"]) == {}


def test_a_topic_that_stays_missing_is_waited_for_no_longer_than_said(topics: Topics) -> None:
    topics._admin = Hearsay(1_000_000)
    begun = time.monotonic()
    assert topics.describe(["orders"], wait_s=0.1) == {}
    assert time.monotonic() - begun >= 0.1


def test_a_port_that_closes_every_connection_is_there_and_wants_another_protocol() -> None:
    """So one does that speaks TLS, or wants a password: the client, which tries again, calls that no error."""
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as closing:
        threading.Thread(target=closing.serve_forever, kwargs={"poll_interval": 0.02}).start()
        try:
            asked = Topics({"bootstrap.servers": f"127.0.0.1:{closing.server_address[1]}"}, Timing(), 2.0)
            with pytest.raises(Unreachable, match=r'closes every connection\); correct "security.protocol"'):
                asked.describe(["orders"])
        finally:
            closing.shutdown()
