"""Every single operation on the disk fails once, in a run that fills journal files and lets logs follow: nothing is lost or half done."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay.message.errors import InDoubt, Retriable, Stopped
from relay.queue.port import Filter, StoreAway, StoreFull
from relay.queue.settings import QueueSettings
from relay.queue.stores import files_base
from relay.queue.stores.files import FilesQueue, open_files
from tests.contracts.queue_media import NOW, enter, put, settings, take, tickets

OPERATIONS = [
    (os, "pwrite"),
    (os, "fdatasync"),
    (os, "fsync"),
    (os, "ftruncate"),
    (Path, "rename"),
    (Path, "unlink"),
    (Path, "write_bytes"),
]
"""Everything that a queue in files does to its disk."""


class Died(BaseException):
    """The process ends here; nothing of it runs on."""


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> QueueSettings:
    """Return a queue with bounds so small that every command moves files."""
    monkeypatch.setattr(files_base, "JOURNAL_MESSAGES", 3)
    monkeypatch.setattr(files_base, "FOLLOW_BYTES", 1500)
    monkeypatch.setattr(files_base, "_CHUNK", 2)
    return settings("ann")


def finish(store: FilesQueue, limit: int) -> None:
    with store.transaction():
        taken = tickets(take(store, limit=limit))
        assert store.finish("ann", taken, NOW) == [True] * limit


def trim_and_give_again(store: FilesQueue) -> None:
    with store.transaction():
        handles = {view.id: view.handle for view in store.find(Filter())}
        assert store.trim([handles[name] for name in "abcd"]) == 4
        assert store.republish(handles["e"], "ann", NOW, even_done=True)


def seen_in(store: FilesQueue) -> object:
    """Return all there is but for the handles: a unit that is taken back leaves a gap in those."""
    return [replace(view, handle=0) for view in store.find(Filter())], store.holders()


COMMANDS: list[Callable[[FilesQueue], object]] = [
    lambda store: enter(store, "ann", b"ann"),
    lambda store: put(store, *"abcdef", value=b"v" * 100),
    lambda store: take(store, limit=1),
    lambda store: store.free("ann", store.held(b"ann"), NOW),
    lambda store: finish(store, 4),
    lambda store: put(store, "g", value=b"v" * 2000),
    lambda store: finish(store, 2),
    trim_and_give_again,
    lambda store: store.settle("attempt", committed=True, now=NOW),
    lambda store: put(store, *"hijk", value=b"v" * 200),
    lambda store: finish(store, 3),
]


@contextmanager
def failing_at(number: int, error: Callable[[], BaseException]) -> Iterator[list[str]]:
    """Let one operation fail before it does anything; yield the names of those that were asked for."""
    asked: list[str] = []

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*given: Any, **named: Any) -> Any:
            asked.append(name)
            if len(asked) == number:
                raise error()
            # Nothing here cuts the power, so nobody waits for the disk.
            return None if name in ("fsync", "fdatasync") else real(*given, **named)

        return operation

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in OPERATIONS:
            patch.setattr(owner, name, counted(name, getattr(owner, name)))
        yield asked


def after_each_command(queue: QueueSettings, directory: Path) -> tuple[list[object], int]:
    """Return what is seen before the first command and after each, and how many operations there were."""
    with failing_at(0, Died) as asked:
        store = open_files(queue, directory)
        seen = [seen_in(store)]
        for command in COMMANDS:
            command(store)
            seen.append(seen_in(store))
        store.close()
    return seen, len(asked)


def test_a_death_before_any_operation_leaves_each_command_done_or_not_begun(
    queue: QueueSettings, tmp_path: Path
) -> None:
    seen, count = after_each_command(queue, tmp_path / "clean")
    assert count > 60

    for number in range(1, count + 1):
        directory, store, done = tmp_path / str(number), None, 0
        with failing_at(number, Died), suppress(Died):
            store = open_files(queue, directory)
            for command in COMMANDS:
                command(store)
                done += 1
        if store is not None:
            store.close()
        again = open_files(queue, directory)
        found = seen_in(again)
        assert found in seen[done : done + 2], f"operation {number}, in command {done}"
        for command in COMMANDS[seen.index(found, done) :]:
            command(again)
        assert seen_in(again) == seen[-1], f"operation {number}, in command {done}"
        again.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_an_operation_that_fails_once_is_got_over_by_the_same_object(
    queue: QueueSettings, tmp_path: Path, error: int
) -> None:
    seen, count = after_each_command(queue, tmp_path / "clean")

    for number in range(1, count + 1):
        directory = tmp_path / str(number)
        with failing_at(number, lambda: OSError(error, "failed")):
            try:
                store = open_files(queue, directory)
            except (StoreFull, StoreAway):
                store = open_files(queue, directory)
            for done, command in enumerate(COMMANDS):
                try:
                    command(store)
                except (Retriable, InDoubt) as failure:
                    found, may_be = seen_in(store), 1 + isinstance(failure, InDoubt)
                    if found not in seen[done : done + may_be]:
                        raise AssertionError(f"operation {number}, in command {done}") from failure
                    if found == seen[done]:
                        command(store)
        assert seen_in(store) == seen[-1], f"operation {number}"
        store.close()
        again = open_files(queue, directory)
        assert seen_in(again) == seen[-1], f"operation {number}"
        again.close()


def test_what_a_disk_did_not_confirm_is_written_anew_before_anything_is_believed(
    queue: QueueSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_files(queue, tmp_path)
    enter(store, "ann", b"ann")

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(InDoubt):
            put(store, "a", value=b"content")
        for _ in range(2):
            with pytest.raises(StoreAway, match="opened again"):
                store.view(1)
    doubted = max((tmp_path / queue.name).glob("*.log"))
    assert take(store)[0].value == b"content"
    assert not doubted.exists()
    store.close()


@pytest.mark.parametrize("lost", ["*.journal", "000000000001.log"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_file_that_is_missing_or_was_cut_is_named_at_opening(
    queue: QueueSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str, damage: str
) -> None:
    monkeypatch.setattr(files_base, "SPARSE", 1_000_000)
    store = open_files(queue, tmp_path)
    enter(store, "ann", b"ann")
    put(store, *"abcdefgh", value=b"v" * 1000)
    for _ in range(4):
        finish(store, 1)
    store.close()
    (path,) = (tmp_path / queue.name).glob(lost)
    assert path != max((tmp_path / queue.name).glob("*.log"))
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-50])

    for _ in range(2):
        with pytest.raises(Stopped, match="restore the queue's directory"):
            open_files(queue, tmp_path)
