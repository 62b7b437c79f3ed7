"""Strangers who reach the port keep nobody else out, and fill no log: before anybody is asked for a token."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from relay.serve.http import CONNECTIONS_AT_ONCE

SERVER = """
import socket
from relay.run.logging import setup
from relay.serve.http import Door, application, serve
from relay.serve.watching import Watching
from tests.unit.test_serve_answers import TOKEN, Looking, sight
setup(as_json=True)
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
serve(application("shop", "1", Watching(Looking(sight)), Door(TOKEN, None)), listening, None)
"""


class Served(NamedTuple):
    """A server in a process of its own, and its standard error."""

    port: int
    said: Path
    pid: int

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 5)

    def live(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/livez", timeout=5) as answer:
            return str(answer.read().decode())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    said = tmp_path / "stderr"
    with said.open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=log, cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    try:
        yield Served(int(process.stdout.readline() or 0), said, process.pid)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("begun", [b"", b"GET /livez HTTP/1.1\r\nhost: a\r\nx: ", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9999\r\n\r\nx"])
def test_connections_that_ask_for_nothing_keep_no_probe_out(served: Served, begun: bytes) -> None:
    idle = [served.connect() for _ in range(2 * CONNECTIONS_AT_ONCE)]
    for one in idle[-CONNECTIONS_AT_ONCE // 2 :]:
        one.sendall(begun)
    time.sleep(0.2)

    assert [served.live() for _ in range(3)] == ["alive\n"] * 3

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
    highest = max(int(number) for number in os.listdir(f"/proc/{served.pid}/fd"))  # noqa: PTH208 - numbers
    resource.prlimit(served.pid, resource.RLIMIT_NOFILE, (highest + 1, before[1]))
    one = served.connect()
    time.sleep(2.5)
    one.close()
    resource.prlimit(served.pid, resource.RLIMIT_NOFILE, before)

    assert served.live() == "alive\n"
    (line,) = [json.loads(line) for line in served.said.read_text().splitlines()]
    assert line["said"].startswith("socket.accept() out of system resource")
    assert line["reason"].startswith("Too many open files; this process")
