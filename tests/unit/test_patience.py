"""A connection whose answer is overdue is ended, so that whoever waits for it goes on; no other one is."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from relay.resources import patience
from relay.resources.patience import Patience
from relay.world import clock


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "CHECK_S", 0.01)
    nobody_watches()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def watching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "relay-database-patience"]


def nobody_watches() -> None:
    deadline = time.monotonic() + 5
    while watching():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_whoever_waits_for_an_overdue_answer_finds_the_connection_lost(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, _ = pair
    ours.settimeout(60)
    awaited = Patience().await_on(ours.fileno())
    awaited.overdue_at = clock.monotonic() + 0.05
    begun = time.monotonic()
    assert ours.recv(1) == b"", "the end of the connection"
    assert time.monotonic() - begun >= 0.04
    awaited.close()


def test_an_answer_in_time_and_a_pause_of_any_length_end_nothing(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pair
    now = [0.0]
    monkeypatch.setattr(patience, "clock", SimpleNamespace(monotonic=lambda: now[0], sleep=clock.sleep))
    awaited = Patience().await_on(ours.fileno())
    awaited.overdue_at = 0.05
    awaited.answered()
    now[0] = 1.0
    time.sleep(0.2)
    theirs.sendall(b"x")
    assert ours.recv(1) == b"x"
    awaited.close()


def test_a_closed_connections_number_may_be_another_file(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    patient = Patience()
    awaited = patient.await_on(ours.fileno())
    number = ours.fileno()
    ours.close()
    innocent, other = socket.socketpair()
    with innocent, other:
        assert innocent.fileno() == number
        awaited.overdue_at = clock.monotonic() - 1
        time.sleep(0.1)
        other.sendall(b"x")
        assert innocent.recv(1) == b"x"
    awaited.close()


def test_the_thread_lives_as_long_as_there_are_connections(pair: tuple[socket.socket, socket.socket]) -> None:
    patient = Patience()
    one, other = patient.await_on(pair[0].fileno()), patient.await_on(pair[1].fileno())
    assert len(watching()) == 1
    one.close()
    one.close()
    time.sleep(0.1)
    assert len(watching()) == 1
    other.close()
    nobody_watches()
    again = patient.await_on(pair[0].fileno())
    assert len(watching()) == 1
    again.close()


def nobody_has_it(other_end: socket.socket) -> None:
    other_end.settimeout(5)
    gc.collect()
    assert other_end.recv(1) == b"", "a descriptor of the connection is still open"


def test_a_connection_that_somebody_dropped_costs_neither_a_descriptor_nor_the_thread(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    dropped = Patience().await_on(ours.fileno())
    time.sleep(0.1)
    ours.close()
    del dropped
    nobody_has_it(theirs)
    nobody_watches()


def test_a_process_without_a_thread_left_says_so_and_keeps_nothing(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(patience.schedule, "start_thread", full)
    ours, theirs = pair
    with pytest.raises(OSError, match="no further thread"):
        Patience().await_on(ours.fileno())
    ours.close()
    nobody_has_it(theirs)


def test_a_fork_knows_that_nobody_watches_for_it() -> None:
    patient = Patience()
    assert patient.is_here
    child = os.fork()
    if child == 0:
        os._exit(int(patient.is_here))
    assert os.waitpid(child, 0)[1] == 0
