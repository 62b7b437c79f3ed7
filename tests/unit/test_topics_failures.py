"""A failure that passes by itself must never stop a worker for a person."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from relay.config.timing import Timing
from relay.kafka.topics import TopicPlan, Topics
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
    ],
)
def test_what_passes_is_tried_again(topics: Topics, code: int) -> None:
    with pytest.raises(RelayError) as raised:
        topics._result(answered(code), "describe topic orders")

    assert isinstance(raised.value, Unreachable)
    assert "describe topic orders" in str(raised.value)


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
