"""Poolers before a PostgreSQL, as PgBouncer's are: one session of the server's for each client, or for each transaction."""

from __future__ import annotations

import secrets
import socket
import threading
from types import TracebackType
from typing import Self

import psycopg
from psycopg import conninfo

_SSL_REQUEST, _CANCEL_REQUEST = 80877103, 80877102
_PARAMETERS = {
    "server_version": "15.0",
    "server_encoding": "UTF8",
    "client_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "integer_datetimes": "on",
    "DateStyle": "ISO, MDY",
    "TimeZone": "UTC",
}


class Pooler:
    """Listens on ``url``. ``shared``: whoever begins a transaction gets the session that became free last, or ``in_turn`` first.

    ``free`` is how many others have left behind.
    """

    def __init__(self, url: str, *, shared: bool, in_turn: bool = False, free: int = 0) -> None:
        self._server = conninfo.make_conninfo(url, sslmode="disable")
        self._shared = shared
        self._next = 0 if in_turn else -1
        self._lock = threading.Lock()
        self._all = [psycopg.connect(self._server, autocommit=True) for _ in range(free)]
        self._free = list(self._all)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = "postgresql://postgres@127.0.0.1:{}/{}?sslmode=disable".format(
            self._listener.getsockname()[1], conninfo.conninfo_to_dict(url)["dbname"]
        )

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.close()
        for session in self._all:
            session.close()

    @property
    def sessions(self) -> list[psycopg.Connection]:
        """The server's sessions; what they were told is asked of them only while no client is in one."""
        return self._all

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        session: psycopg.Connection | None = None
        try:
            with client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if not _greet(client):
                    return
                while True:
                    asked = _until(client, b"QS", b"X")
                    if asked is None:
                        return
                    session = session or self._take()
                    is_over = _exchange(client, session, asked)
                    if is_over and self._shared:
                        session = self._give_back(session)
        except (OSError, EOFError):
            pass
        finally:
            if session is not None:
                session.close()

    def _take(self) -> psycopg.Connection:
        with self._lock:
            if self._shared and self._free:
                return self._free.pop(self._next)
            self._all.append(psycopg.connect(self._server, autocommit=True))
            return self._all[-1]

    def _give_back(self, session: psycopg.Connection) -> None:
        with self._lock:
            self._free.append(session)


def _greet(client: socket.socket) -> bool:
    while True:
        length = int.from_bytes(_exactly(client, 4), "big")
        request = _exactly(client, length - 4)
        code = int.from_bytes(request[:4], "big")
        if code == _CANCEL_REQUEST:
            return False
        if code != _SSL_REQUEST:
            break
        client.sendall(b"N")
    answer = _message(b"R", bytes(4))
    for name, value in _PARAMETERS.items():
        answer += _message(b"S", name.encode() + b"\0" + value.encode() + b"\0")
    # The number of no process of the server's.
    answer += _message(b"K", b"\x7f" + secrets.token_bytes(7)) + _message(b"Z", b"I")
    client.sendall(answer)
    return True


def _exchange(client: socket.socket, session: psycopg.Connection, asked: bytes) -> bool:
    """Hand on what was asked and all that is answered; return whether no transaction is open behind it."""
    with socket.socket(fileno=socket.dup(session.fileno())) as server:
        server.setblocking(True)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.sendall(asked)
        while True:
            kind, content = _read(server)
            client.sendall(_message(kind, content))
            if kind == b"G":
                copied = _until(client, b"cf", b"X")
                if copied is None:
                    raise OSError("the client has gone in a copy")
                server.sendall(copied)
            if kind == b"Z":
                return content == b"I"


def _until(connection: socket.socket, last: bytes, end: bytes) -> bytes | None:
    """Read messages up to one of these kinds; None at the end."""
    found = b""
    while True:
        try:
            kind, content = _read(connection)
        except EOFError:
            return None
        if kind == end:
            return None
        found += _message(kind, content)
        if kind in last:
            return found


def _read(connection: socket.socket) -> tuple[bytes, bytes]:
    kind = _exactly(connection, 1)
    return kind, _exactly(connection, int.from_bytes(_exactly(connection, 4), "big") - 4)


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        some = connection.recv(count - len(found))
        if not some:
            raise EOFError
        found += some
    return found


def _message(kind: bytes, content: bytes) -> bytes:
    return kind + (len(content) + 4).to_bytes(4, "big") + content
