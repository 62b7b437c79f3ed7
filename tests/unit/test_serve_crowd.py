"""Strangers who reach the port keep nobody else out, and fill no log: before anybody is asked for a token."""

from __future__ import annotations

import json
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from relay.serve.connections import BoundedListener
from relay.serve.http import CONNECTIONS_AT_ONCE
from tests.integration.tls_site import Authority
from tests.routes import wait_for

SERVER = """
import socket, sys
from relay.run.logging import setup
from relay.serve.http import Door, application, serve
from relay.serve.watching import Watching
from tests.unit.test_serve_answers import TOKEN, Looking, sight
setup(as_json=True)
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
serve(application("shop", "1", Watching(Looking(sight)), Door(TOKEN, None)), listening, tuple(sys.argv[1:]) or None)
"""


class Served(NamedTuple):
    """A server in a process of its own, and its standard error."""

    port: int
    said: Path
    pid: int
    trust: ssl.SSLContext | None = None

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 5)

    def live(self) -> str:
        scheme = "http" if self.trust is None else "https"
        with urllib.request.urlopen(f"{scheme}://127.0.0.1:{self.port}/livez", timeout=60, context=self.trust) as answer:
            return str(answer.read().decode())


def highest(pid: int) -> int:
    """Return the highest number of a process's files."""
    return max(int(number) for number in os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - numbers


@contextmanager
def serving(folder: Path, authority: Authority | None = None) -> Iterator[Served]:
    said = folder / "stderr"
    pair = [] if authority is None else [folder / name for name in ("certificate", "key")]
    for file, held in zip(pair, authority.issue("served") if authority else (), strict=True):
        file.write_bytes(held)
    with said.open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", SERVER, *pair], stdout=subprocess.PIPE, stderr=log, cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    try:
        trust = None if authority is None else ssl.create_default_context(cafile=authority.place)
        yield Served(int(process.stdout.readline() or 0), said, process.pid, trust)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as made:
        yield made


@pytest.mark.parametrize("begun", [b"", b"GET /livez HTTP/1.1\r\nhost: a\r\nx: ", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9999\r\n\r\nx"])
def test_connections_that_ask_for_nothing_keep_no_probe_out(served: Served, begun: bytes) -> None:
    idle = [served.connect() for _ in range(2 * CONNECTIONS_AT_ONCE)]
    for one in idle[-CONNECTIONS_AT_ONCE // 2 :]:
        one.sendall(begun)
    time.sleep(0.2)

    assert [served.live() for _ in range(3)] == ["alive\n"] * 3

    for one in idle:
        one.close()


def test_connections_that_begin_no_tls_count_like_others(tmp_path: Path) -> None:
    """They were not counted at all, and have a minute to begin it: who held a thousand left no file for a probe, or for the look at brokers."""
    with serving(tmp_path, Authority("here", tmp_path)) as served:
        assert served.live() == "alive\n"
        limits = resource.prlimit(served.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(served.pid, resource.RLIMIT_NOFILE, (highest(served.pid) + 3 * CONNECTIONS_AT_ONCE, limits[1]))
        idle = [served.connect() for _ in range(5 * CONNECTIONS_AT_ONCE)]
        time.sleep(0.5)

        assert [served.live() for _ in range(3)] == ["alive\n"] * 3
        assert served.said.read_text() == ""

        for one in idle:
            one.close()


def test_requests_that_are_none_fill_no_log_and_each_line_is_json(served: Served) -> None:
    for number in range(50):
        with served.connect() as one:
            one.sendall(b"no request\r\n\r\n" if number % 2 else b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n")
            one.recv(1000)

    lines = [json.loads(line) for line in served.said.read_text().splitlines()]
    assert 0 < len(lines) < 6
    assert all(line["event"] == "http server" for line in lines)


def test_where_no_file_is_left_for_a_connection_it_is_said_once_and_answered_later(served: Served) -> None:
    """The event loop said it two thousand times a second, with a traceback each."""
    assert served.live() == "alive\n"
    before = resource.prlimit(served.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(served.pid, resource.RLIMIT_NOFILE, (highest(served.pid) + 1, before[1]))
    one = served.connect()
    wait_for(served.said.read_text, what="its word of it")
    time.sleep(2.5)
    one.close()
    resource.prlimit(served.pid, resource.RLIMIT_NOFILE, before)

    assert served.live() == "alive\n"
    (line,) = [json.loads(line) for line in served.said.read_text().splitlines()]
    assert line["said"].startswith("socket.accept() out of system resource")
    assert line["reason"].startswith("Too many open files; this process")


def test_connections_that_were_ended_are_closed_before_more_are_accepted() -> None:
    """The event loop accepts a hundred in a row before it closes one, and would hold the files of all of them."""
    listening = BoundedListener(socket.create_server(("127.0.0.1", 0), backlog=20), 2)
    asking = [socket.create_connection(listening.getsockname(), 5) for _ in range(6)]
    accepted = [listening.accept()[0] for _ in range(4)]

    with pytest.raises(BlockingIOError):
        listening.accept()
    assert [one.recv(1) for one in asking[:2]] == [b"", b""], "the oldest were ended"
    accepted[0].close()
    accepted.append(listening.accept()[0])

    for one in (*asking, *accepted, listening):
        one.close()
