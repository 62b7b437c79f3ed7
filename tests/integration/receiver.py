"""A receiver over HTTP that misbehaves as a test says, and keeps a book of what it was asked for and what took effect."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Asked:
    """One request; ``number`` counts those of its key."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    number: int

    @property
    def key(self) -> str:
        return self.headers.get("idempotency-key", "")


@dataclass(frozen=True)
class Reply:
    """What comes back: an answer, after ``wait`` is set, or with ``status`` 0 a connection that is reset."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    length: int | None = None
    wait: threading.Event | None = None
    takes_effect: bool = True


class Receiver:
    """Listens on this machine. ``effects`` has a body once for each key, ``repeated`` each time, both in the order of the effects."""

    def __init__(self, reply: Callable[[Asked], Reply] = lambda _: Reply(), tls: ssl.SSLContext | None = None) -> None:
        self.asked: list[Asked] = []
        self.effects: list[bytes] = []
        self.repeated: list[bytes] = []
        self.connections = 0
        self._keys: dict[str, int] = {}
        self._done: set[str] = set()
        self._lock = threading.Lock()
        self._reply = reply
        receiver = self

        class Answering(_Answering):
            book = receiver

        self._server = _Server(("127.0.0.1", 0), Answering)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def note(self, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Note a request and let it take effect; return what is answered."""
        with self._lock:
            key = headers.get("idempotency-key", "")
            self._keys[key] = self._keys.get(key, 0) + 1
            asked = Asked(path, headers, body, self._keys[key])
            self.asked.append(asked)
            reply = self._reply(asked)
            if reply.takes_effect:
                self.repeated.append(body)
                if key not in self._done:
                    self._done.add(key)
                    self.effects.append(body)
        return reply


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: Any) -> None:
        """A caller that is killed is no failure of the receiver."""


class _Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    book: Receiver
    timeout = 120

    def setup(self) -> None:
        self.book.connections += 1
        super().setup()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        reply = self.book.note(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        if reply.wait is not None:
            reply.wait.wait(120)
        if not reply.status:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(reply.body) if reply.length is None else reply.length))
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""
