"""A TCP proxy that reads Kafka's request frames and can keep one back, to let it arrive late.

What a late EndTxn does to a client is the point: the frame leaves the client, lies somewhere (a paused machine, a
full socket buffer), the client gives up on the connection and repeats the request on another one, and then the
first copy reaches the broker after all, over a connection of its own. The broker must advertise the proxy's address.
Frames and headers as in the Kafka protocol guide: int32 length, int16 api key, int16 version, int32 correlation id,
nullable string client id.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Final, NamedTuple, Self

from relay.world import clock, schedule

PRODUCE: Final = 0
ADD_PARTITIONS_TO_TXN: Final = 24
END_TXN: Final = 26
TXN_OFFSET_COMMIT: Final = 28

MAX_FRAME: Final = 64 * 1024 * 1024
MAX_CONNECTIONS: Final = 512
BROKER_TIMEOUT_S: Final = 20.0
_FIRST_FLEXIBLE_END_TXN: Final = 3
_FIRST_FLEXIBLE_PRODUCE: Final = 9
_FIRST_PRODUCE_WITH_IDS: Final = 13
_CONCURRENT_TRANSACTIONS: Final = 51


class EndTxn(NamedTuple):
    """The body of an EndTxn request."""

    transactional_id: str
    producer_id: int
    epoch: int
    committed: bool


@dataclass(frozen=True, slots=True)
class Request:
    """One request frame; ``frame`` is all of it without the length, ``body`` what follows the client id."""

    api_key: int
    version: int
    correlation: int
    client_id: str
    frame: bytes
    body: bytes

    @classmethod
    def parse(cls, frame: bytes) -> Request:
        """Read the header. Raises ValueError when the frame is no Kafka request."""
        try:
            api_key, version, correlation, length = struct.unpack_from(">hhih", frame)
        except struct.error as error:
            raise ValueError(f"a frame of {len(frame)} bytes is too short for a request header") from error
        end = 10 + max(length, 0)
        if end > len(frame):
            raise ValueError(f"a client id of {length} bytes does not fit into a frame of {len(frame)}")
        return cls(api_key, version, correlation, frame[10:end].decode("utf-8", "replace"), frame, frame[end:])

    def end_txn(self) -> EndTxn:
        """Read the body of an EndTxn. Raises ValueError for another request or a version from 3 on (flexible)."""
        if self.api_key != END_TXN or self.version >= _FIRST_FLEXIBLE_END_TXN:
            raise ValueError(f"api key {self.api_key} version {self.version} is not an EndTxn below version 3")
        (length,) = struct.unpack_from(">h", self.body)
        producer_id, epoch, committed = struct.unpack_from(">qh?", self.body, 2 + length)
        return EndTxn(self.body[2 : 2 + length].decode(), producer_id, epoch, committed)

    def produce_topic(self) -> str:
        """Read the topic of a Produce up to version 12 (librdkafka sends one partition at a time); "" if it is none.

        Raises ValueError for another request or a later version, which names topics by their ids.
        """
        if self.api_key != PRODUCE or self.version >= _FIRST_PRODUCE_WITH_IDS:
            raise ValueError(f"api key {self.api_key} version {self.version} is not a Produce below version 13")
        flexible = self.version >= _FIRST_FLEXIBLE_PRODUCE
        # A flexible header ends with tagged fields of its own, here none: one zero byte.
        _, at = _string(self.body, 1, flexible) if flexible else _string(self.body, 0, flexible)
        at += 6  # acks and timeout
        count, at = _uvarint(self.body, at) if flexible else (struct.unpack_from(">i", self.body, at)[0], at + 4)
        return _string(self.body, at, flexible)[0] if count > flexible else ""


def _string(data: bytes, at: int, flexible: bool) -> tuple[str, int]:
    """Read a nullable string; compact strings have their length, plus one, as an unsigned varint."""
    if flexible:
        length, at = _uvarint(data, at)
        length -= 1
    else:
        length, at = struct.unpack_from(">h", data, at)[0], at + 2
    end = at + max(length, 0)
    return data[at:end].decode("utf-8", "replace"), end


def _uvarint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1


Match = Callable[[Request], bool]


def end_txn(*, committed: bool, transactional_id: str = "") -> Match:
    """Match an EndTxn of the given result whose transactional id contains ``transactional_id``."""

    def matches(request: Request) -> bool:
        if request.api_key != END_TXN:
            return False
        found = request.end_txn()
        return found.committed is committed and transactional_id in found.transactional_id

    return matches


def api(key: int) -> Match:
    """Match every request of an api key."""
    return lambda request: request.api_key == key


class Fate(Enum):
    """What becomes of the request a rule catches."""

    HOLD = "kept back until released"
    DROP_ANSWER = "goes through, its answer does not come back"
    PASS = "goes through once the rule's action is done"  # noqa: S105 - no password
    ANSWER = "is answered by the proxy, and goes no further"


@dataclass(eq=False)
class Caught:
    """A rule and the one request that it caught."""

    match: Match
    fate: Fate
    reset: bool
    action: Callable[[Request], None] | None = None
    answer: Callable[[Request], bytes] | None = None
    request: Request | None = None
    _broker: tuple[str, int] = ("", 0)
    _seen: schedule.Event = field(default_factory=schedule.event)

    def wait(self, timeout_s: float = 20.0) -> Request:
        """Return the caught request; TimeoutError when none came."""
        if not self._seen.wait(timeout_s) or self.request is None:
            raise TimeoutError(f"no request to be {self.fate.value} came within {timeout_s} s")
        return self.request

    def tell(self) -> None:
        """The request was caught and dealt with."""
        self._seen.set()

    @property
    def is_caught(self) -> bool:
        """Tell whether the request came."""
        return self._seen.is_set()

    def release(self) -> bytes:
        """Send the kept request to the broker over a connection of its own; return the answer's frame."""
        request = self.wait(0)
        with socket.create_connection(self._broker, timeout=BROKER_TIMEOUT_S) as broker:
            broker.sendall(struct.pack(">i", len(request.frame)) + request.frame)
            answer = read_frame(broker)
        if answer is None:
            raise ConnectionError("the broker closed the connection of a late copy without an answer")
        return answer

    def release_end_txn(self) -> int:
        """Release a kept EndTxn (versions below 3); return the broker's error code, 0 if it took effect.

        While the coordinator is busy with the transaction it refuses (CONCURRENT_TRANSACTIONS): try again for a while.
        """
        self.wait(0).end_txn()
        limit = clock.monotonic() + BROKER_TIMEOUT_S
        while True:
            (code,) = struct.unpack_from(">h", self.release(), 8)  # correlation id, throttle time
            if code != _CONCURRENT_TRANSACTIONS or clock.monotonic() > limit:
                return int(code)
            clock.sleep(0.005)


def read_frame(connection: socket.socket) -> bytes | None:
    """Read one length-prefixed frame; None at the end of the stream. ValueError for an impossible length."""
    head = _read(connection, 4)
    if head is None:
        return None
    (length,) = struct.unpack(">i", head)
    if not 0 <= length <= MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes")
    return _read(connection, length)


def _read(connection: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(min(count - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)


def _close(connection: socket.socket, *, reset: bool = False) -> None:
    """End a connection for both directions; with ``reset`` the peer sees a reset instead of an end."""
    with contextlib.suppress(OSError):
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            connection.shutdown(socket.SHUT_RDWR)
    # A thread blocked in recv keeps the socket alive past close: shut down for reading wakes it.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RD)
    connection.close()


class _Connection:
    """A client's connection and the broker's side of it, a thread for each direction."""

    def __init__(self, proxy: FrameProxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._broker = broker
        self._to_drop: dict[int, bool] = {}
        self._ending = schedule.lock()
        self._answering = schedule.lock()
        self._ended = False
        for end in (client, broker):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.threads = [
            schedule.start_thread("proxy-requests", lambda: self._guard(self._requests)),
            schedule.start_thread("proxy-answers", lambda: self._guard(self._answers)),
        ]

    def end(self, *, reset: bool = False) -> None:
        """End both sides, once: a second end could turn the reset into an ordinary one."""
        with self._ending:
            if self._ended:
                return
            self._ended = True
        _close(self._client, reset=reset)
        _close(self._broker)

    def _guard(self, pump: Callable[[], None]) -> None:
        try:
            pump()
        except OSError:
            pass  # either side went away: both are ended below
        except Exception as error:  # noqa: BLE001 - reported by the proxy when it is closed
            self._proxy.failures.append(error)
        finally:
            self.end()
            self._proxy.forget(self)

    def _requests(self) -> None:
        while (frame := read_frame(self._client)) is not None:
            request = Request.parse(frame)
            rule = self._proxy.claim(request)
            if rule is not None and rule.action is not None:
                rule.action(request)
            if rule is not None and rule.fate is Fate.DROP_ANSWER:
                self._to_drop[request.correlation] = rule.reset
            if rule is not None and rule.answer is not None:
                self._answer(rule.answer(request))
            elif rule is None or rule.fate is not Fate.HOLD:
                self._broker.sendall(struct.pack(">i", len(frame)) + frame)
            elif rule.reset:
                self.end(reset=True)
            if rule is not None:
                rule.tell()

    def _answers(self) -> None:
        while (frame := read_frame(self._broker)) is not None:
            (correlation,) = struct.unpack_from(">i", frame)
            reset = self._to_drop.pop(correlation, None)
            if reset is None:
                self._answer(frame)
            elif reset:
                self.end(reset=True)

    def _answer(self, frame: bytes) -> None:
        with self._answering:
            self._client.sendall(struct.pack(">i", len(frame)) + frame)


class FrameProxy:
    """Listens on ``port`` and forwards to the broker, frame by frame, catching what its rules name.

    A rule catches one request, the first that matches, and is used up; of several the oldest one wins. An ``action``
    runs on the connection's thread before the request goes on, so what it does has happened when the broker sees it.
    """

    def __init__(self, broker: str, port: int = 0) -> None:
        host, _, number = broker.rpartition(":")
        self._broker = (host, int(number))
        self._lock = schedule.lock()
        self._rules: list[Caught] = []
        self._connections: set[_Connection] = set()
        self._closed = False
        self.failures: list[Exception] = []
        self.seen: dict[int, int] = {}
        self._listener = socket.create_server(("127.0.0.1", port), backlog=MAX_CONNECTIONS)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = schedule.start_thread("proxy-accept", self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def hold(self, match: Match, *, reset: bool = False) -> Caught:
        """Keep one request back; with ``reset`` its connection is reset at once, else the client waits."""
        return self._add(Caught(match, Fate.HOLD, reset, _broker=self._broker))

    def drop_answer(self, match: Match, *, reset: bool = False) -> Caught:
        """Let one request through and drop its answer; with ``reset`` the connection is reset when it comes."""
        return self._add(Caught(match, Fate.DROP_ANSWER, reset))

    def before(self, match: Match, action: Callable[[Request], None]) -> Caught:
        """Run ``action`` when one request comes, before it goes on to the broker."""
        return self._add(Caught(match, Fate.PASS, reset=False, action=action))

    def answer(self, match: Match, make: Callable[[Request], bytes]) -> Caught:
        """Answer one request in the broker's place with the frame that ``make`` returns: correlation id, header, body."""
        return self._add(Caught(match, Fate.ANSWER, reset=False, answer=make))

    def cancel(self, rule: Caught) -> None:
        """Take back a rule that caught nothing yet; nothing happens if it did."""
        with self._lock, contextlib.suppress(ValueError):
            self._rules.remove(rule)

    def claim(self, request: Request) -> Caught | None:
        """Count the request and return the rule that catches it, used up."""
        with self._lock:
            self.seen[request.api_key] = self.seen.get(request.api_key, 0) + 1
            for rule in self._rules:
                if rule.match(request):
                    self._rules.remove(rule)
                    rule.request = request
                    return rule
        return None

    def forget(self, connection: _Connection) -> None:
        """Drop an ended connection."""
        with self._lock:
            self._connections.discard(connection)

    def close(self) -> None:
        """End every connection and thread. Raises the first failure of a connection's thread, if any."""
        with self._lock:
            self._closed = True
            open_ones = list(self._connections)
        _close(self._listener)
        self._thread.join(10)
        for connection in open_ones:
            connection.end()
        for connection in open_ones:
            for thread in connection.threads:
                thread.join(10)
        if self.failures:
            raise self.failures[0]

    def _add(self, rule: Caught) -> Caught:
        with self._lock:
            self._rules.append(rule)
        return rule

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                broker = socket.create_connection(self._broker, timeout=BROKER_TIMEOUT_S)
            except OSError:
                _close(client)  # no broker: the client sees what it would see without a proxy
                continue
            broker.settimeout(None)
            with self._lock:
                if self._closed or len(self._connections) >= MAX_CONNECTIONS:
                    _close(client)
                    _close(broker)
                    continue
                self._connections.add(_Connection(self, client, broker))
