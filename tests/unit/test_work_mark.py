"""The file that a worker keeps locked: who lives is not taken for dead, and whom a death is held against."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from relay.message.errors import Unreachable
from relay.queue.message import Ticket
from relay.work.mark import Mark, dead_mark

OWN = b"a worker--------"
FILES = Path("/proc/self/fd")


def died(folder: Path, *blamed: Ticket | None) -> None:
    """Leave what a worker leaves that ended after it had noted these."""
    mark = Mark(folder, OWN)
    for ticket in blamed:
        mark.blame(ticket)
    os.close(mark._fd)


def held_in(folder: Path) -> int:
    """Return how many files of a folder this process holds open; what else it holds, other tests may let go of at any time."""
    return sum(os.path.realpath(one).startswith(f"{folder}/") for one in FILES.iterdir())


def test_who_lives_is_not_dead_and_looking_every_second_uses_up_no_files(tmp_path: Path) -> None:
    mark = Mark(tmp_path, OWN)
    mark.blame(Ticket(7, 1))
    before = held_in(tmp_path)

    assert [dead_mark(tmp_path, OWN) for _ in range(3)] == [None] * 3
    assert (before, held_in(tmp_path)) == (1, 1)
    mark.close()


def test_a_worker_of_another_host_is_not_known_here(tmp_path: Path) -> None:
    assert dead_mark(tmp_path, OWN) is None


def test_what_was_noted_last_is_to_blame_alone(tmp_path: Path) -> None:
    for blamed, found in (
        ([Ticket(1234, 56), Ticket(7, 8)], Ticket(7, 8)),
        ([Ticket(1234, 56), None], None),
        ([], None),
    ):
        died(tmp_path, *blamed)
        mark = dead_mark(tmp_path, OWN)
        assert mark is not None
        assert mark.blamed == found
        mark.close(remove=True)
        assert dead_mark(tmp_path, OWN) is None, "it was removed"


def test_what_could_not_be_recovered_is_found_again(tmp_path: Path) -> None:
    died(tmp_path, Ticket(7, 8))
    for remove in (False, False, True):
        mark = dead_mark(tmp_path, OWN)
        assert mark is not None
        assert mark.blamed == Ticket(7, 8)
        mark.close(remove=remove)


def test_a_worker_that_has_left_keeps_neither_mark_nor_file(tmp_path: Path) -> None:
    Mark(tmp_path, OWN).close()

    assert not list(tmp_path.iterdir())
    assert held_in(tmp_path) == 0


def refuses(number: int) -> object:
    def call(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(("call", "ticket"), [("pwrite", Ticket(7, 8)), ("ftruncate", None)])
def test_a_disk_without_room_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, ticket: Ticket | None
) -> None:
    mark = Mark(tmp_path, OWN)
    with monkeypatch.context() as full:
        full.setattr(os, call, refuses(errno.ENOSPC))
        with pytest.raises(Unreachable, match="No space left on device"):
            mark.blame(ticket)

    mark.blame(ticket)
    mark.close()


def test_so_is_one_that_can_only_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    died(tmp_path, Ticket(7, 8))
    with monkeypatch.context() as remounted:
        remounted.setattr(os, "open", refuses(errno.EROFS))
        with pytest.raises(Unreachable, match="Read-only file system"):
            dead_mark(tmp_path, OWN)
    mark = dead_mark(tmp_path, OWN)
    assert mark is not None
    with monkeypatch.context() as remounted:
        remounted.setattr(os, "unlink", refuses(errno.EROFS))
        with pytest.raises(Unreachable, match="Read-only file system"):
            mark.close(remove=True)

    assert held_in(tmp_path) == 0
