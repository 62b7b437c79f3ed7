"""The frame proxy against a small broker of its own that answers every frame with its correlation id and a count."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from relay.chaos.frame_proxy import (
    END_TXN,
    PRODUCE,
    EndTxn,
    FrameProxy,
    Request,
    api,
    end_txn,
    read_frame,
)
from tests.frame_matches import ADD_OFFSETS_TO_TXN, produce_to


def request(api_key: int, correlation: int, body: bytes = b"", client: str = "me", version: int = 1) -> bytes:
    name = client.encode()
    frame = struct.pack(">hhih", api_key, version, correlation, len(name)) + name + body
    return struct.pack(">i", len(frame)) + frame


def ending(correlation: int, *, committed: bool, identifier: str = "r.1") -> bytes:
    body = struct.pack(">h", len(identifier)) + identifier.encode() + struct.pack(">qh?", 77, 3, committed)
    return request(END_TXN, correlation, body)


def producing(correlation: int, topic: str, content: bytes = b"", version: int = 8) -> bytes:
    """A Produce request as the protocol guide has it up to the topic's name, then ``content``."""
    name, identifier = topic.encode(), b"r.1"
    if version < 9:
        body = struct.pack(">h", len(identifier)) + identifier + struct.pack(">hii", -1, 1000, 1)
        body += struct.pack(">h", len(name)) + name
    else:
        count = len(name) + 1  # as an unsigned varint of one or two bytes
        size = bytes([count]) if count < 128 else bytes([count & 0x7F | 0x80, count >> 7])
        body = b"\0" + bytes([len(identifier) + 1]) + identifier + struct.pack(">hi", -1, 1000) + b"\x02" + size + name
    return request(PRODUCE, correlation, body + content, version=version)


class Broker:
    """Answers each frame with correlation id, a zero int32 and error code 47, and remembers what came."""

    def __init__(self) -> None:
        self.frames: list[Request] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while (frame := read_frame(connection)) is not None:
                got = Request.parse(frame)
                self.frames.append(got)
                answer = struct.pack(">iih", got.correlation, 0, 47)
                connection.sendall(struct.pack(">i", len(answer)) + answer)

    def correlations(self) -> list[int]:
        return [frame.correlation for frame in self.frames]


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.listener.shutdown(socket.SHUT_RDWR)
    made.listener.close()


@pytest.fixture
def proxy(broker: Broker) -> Iterator[FrameProxy]:
    with FrameProxy(broker.address) as made:
        yield made


@pytest.fixture
def client(proxy: FrameProxy) -> Iterator[socket.socket]:
    with dial(proxy) as made:
        yield made


def dial(proxy: FrameProxy) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=5)


def answered(client: socket.socket) -> int:
    frame = read_frame(client)
    assert frame is not None
    return int(struct.unpack_from(">i", frame)[0])


def test_frames_pass_in_order_even_when_cut_into_bytes(client: socket.socket, broker: Broker) -> None:
    for byte in request(PRODUCE, 1, b"x" * 50) + request(PRODUCE, 2):
        client.sendall(bytes([byte]))
    assert [answered(client), answered(client)] == [1, 2]
    assert broker.frames[0].body == b"x" * 50
    assert broker.frames[0].client_id == "me"


def test_a_large_frame_passes(client: socket.socket, broker: Broker) -> None:
    client.sendall(request(PRODUCE, 9, bytes(3_000_000)))
    assert answered(client) == 9
    assert len(broker.frames[0].body) == 3_000_000


def test_a_held_request_reaches_the_broker_only_when_released(
    client: socket.socket, proxy: FrameProxy, broker: Broker
) -> None:
    held = proxy.hold(end_txn(committed=True))
    client.sendall(ending(1, committed=True))
    assert held.wait().end_txn() == EndTxn("r.1", 77, 3, committed=True)
    client.sendall(ending(2, committed=True))
    assert answered(client) == 2, "the repeat must pass: a rule catches one request"
    client.close()
    assert broker.correlations() == [2]
    assert held.release_end_txn() == 47
    assert broker.correlations() == [2, 1]


def test_a_held_request_can_reset_its_connection(
    client: socket.socket, proxy: FrameProxy, broker: Broker
) -> None:
    held = proxy.hold(api(END_TXN), reset=True)
    client.sendall(ending(1, committed=False))
    held.wait()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert broker.frames == []


def test_rules_match_what_they_name(client: socket.socket, proxy: FrameProxy) -> None:
    abort = proxy.hold(end_txn(committed=False, transactional_id="r."))
    other = proxy.hold(end_txn(committed=True, transactional_id="another"))
    output = proxy.hold(produce_to("out"))
    client.sendall(ending(1, committed=True) + producing(2, "in", b"out") + request(ADD_OFFSETS_TO_TXN, 3, b"out"))
    assert [answered(client) for _ in range(3)] == [1, 2, 3]
    assert not any(rule.is_caught for rule in (abort, other, output))
    client.sendall(ending(4, committed=False) + producing(5, "out"))
    assert (abort.wait().correlation, output.wait().correlation) == (4, 5)


@pytest.mark.parametrize("reset", [False, True])
def test_a_dropped_answer_leaves_the_request_done(
    client: socket.socket, proxy: FrameProxy, broker: Broker, reset: bool
) -> None:
    proxy.drop_answer(api(PRODUCE), reset=reset)
    client.sendall(request(PRODUCE, 1))
    if reset:
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    else:
        client.sendall(request(END_TXN, 2))
        assert answered(client) == 2
    assert broker.correlations()[0] == 1


def test_an_action_runs_before_its_request_goes_on(
    client: socket.socket, proxy: FrameProxy, broker: Broker
) -> None:
    held = proxy.hold(end_txn(committed=True))
    proxy.before(api(PRODUCE), lambda _: nothing(held.release()))
    client.sendall(ending(1, committed=True))
    held.wait()
    client.sendall(request(PRODUCE, 2))
    assert answered(client) == 2
    assert broker.correlations() == [1, 2]


def nothing(_: object) -> None:
    return None


def test_a_cancelled_rule_catches_nothing(client: socket.socket, proxy: FrameProxy) -> None:
    rule = proxy.hold(api(PRODUCE))
    proxy.cancel(rule)
    client.sendall(request(PRODUCE, 1))
    assert answered(client) == 1
    with pytest.raises(TimeoutError):
        rule.wait(0)
    proxy.cancel(rule)  # a second time does no harm


def test_close_ends_clients_and_threads(broker: Broker) -> None:
    others = set(threading.enumerate())
    proxy = FrameProxy(broker.address)
    clients = [dial(proxy) for _ in range(5)]
    for number, one in enumerate(clients):
        one.sendall(request(PRODUCE, number))
        assert answered(one) == number
    proxy.close()
    for one in clients:
        assert one.recv(1) == b""
        one.close()
    assert not [
        thread for thread in set(threading.enumerate()) - others if thread.name.startswith("proxy-")
    ]


def test_without_a_broker_the_client_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    with FrameProxy(address) as proxy, dial(proxy) as client:
        assert client.recv(1) == b""


def test_what_is_no_kafka_is_reported_at_close(broker: Broker) -> None:
    proxy = FrameProxy(broker.address)
    with dial(proxy) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert client.recv(1) == b""
    with pytest.raises(ValueError, match="a frame of"):
        proxy.close()


@pytest.mark.parametrize("frame", [b"", b"\0\0\0", struct.pack(">hhih", 0, 1, 1, 400)])
def test_a_broken_header_is_refused(frame: bytes) -> None:
    with pytest.raises(ValueError, match="frame"):
        Request.parse(frame)


def test_a_flexible_end_txn_is_not_misread() -> None:
    frame = request(END_TXN, 1, b"whatever", version=5)[4:]
    with pytest.raises(ValueError, match="below version 3"):
        Request.parse(frame).end_txn()


@pytest.mark.parametrize("version", [3, 8, 9, 12])
@pytest.mark.parametrize("topic", ["out", "t" * 200])
def test_the_topic_of_a_produce_is_read(topic: str, version: int) -> None:
    assert Request.parse(producing(1, topic, version=version)[4:]).produce_topic() == topic


def test_a_produce_without_a_name_is_not_misread() -> None:
    with pytest.raises(ValueError, match="below version 13"):
        Request.parse(request(PRODUCE, 1, version=13)[4:]).produce_topic()
