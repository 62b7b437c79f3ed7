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


def test_a_disk_that_cannot_be_read_for_long_leaves_no_file_open(
    queue: QueueSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_files(queue, tmp_path)
    for command in COMMANDS:
        command(store)
    store.close()
    readable = os.pread
    for reads in range(8):
        # So many succeed, and then none.
        left = iter([readable] * reads)
        monkeypatch.setattr(os, "pread", lambda *given, left=left: next(left, refuse)(*given))
        before = len(list(Path("/dev/fd").iterdir()))
        with pytest.raises(StoreAway):
            open_files(queue, tmp_path)
        assert (reads, len(list(Path("/dev/fd").iterdir()))) == (reads, before)


def refuse(*_: object) -> bytes:
    raise OSError(errno.EIO, "failed")


@contextmanager
def disk_of(directory: Path, room: list[int]) -> Iterator[None]:
    """Let the files of a directory have so many bytes together, or nothing more be said to be written (``room[0]``)."""
    pwrite, write_bytes = os.pwrite, Path.write_bytes

    def left() -> int:
        return room[0] - sum(path.stat().st_size for path in directory.rglob("*") if path.name != "lock")

    def full() -> OSError:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def written(fd: int, data: bytes, offset: int) -> int:
        fits = data[: max(0, left())]
        if data and not fits:
            raise full()
        return pwrite(fd, fits, offset)

    def made(path: Path, data: bytes) -> int:
        path.unlink(missing_ok=True)
        done = write_bytes(path, data[: max(0, left())])
        if done < len(data):
            raise full()
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", written)
        patch.setattr(Path, "write_bytes", made)
        yield


def test_what_did_not_fit_takes_no_room_from_what_does(queue: QueueSettings, tmp_path: Path) -> None:
    room = [1 << 30]
    with disk_of(tmp_path, room):
        store = open_files(queue, tmp_path)
        enter(store, "ann", b"ann")
        put(store, *"abcdefgh", value=b"v" * 4000)
        # More than the states of messages take, less than a journal file of three or another log file.
        room[0] = sum(path.stat().st_size for path in tmp_path.rglob("*.log")) + 9000
        for _ in range(8):
            finish(store, 1)
        assert not list(tmp_path.rglob("*.new"))
        room[0] = 1 << 30
        put(store, *"ijk")
        finish(store, 3)
        assert len(list(tmp_path.rglob("*.journal"))) > 0
    assert [view.id for view in store.find(Filter())] == list("abcdefghijk")
    store.close()


def test_a_file_that_nothing_names_yet_is_in_no_doubt(
    queue: QueueSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Network file systems and thin volumes find out when a file is confirmed that there was no room for it.
    store, refused = open_files(queue, tmp_path), set[str]()
    enter(store, "ann", b"ann")
    put(store, *"abcdefgh", value=b"v" * 4000)

    def fail_if_new(fd: int, real: Callable[[int], None] = os.fdatasync) -> None:
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        if path.endswith(".new"):
            refused.add(Path(path).name.split(".", 1)[1])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail_if_new)
        for _ in range(8):
            finish(store, 1)
        put(store, "i", value=b"v" * 4000)
        assert refused == {"journal.new", "log.new"}
        assert not list(tmp_path.rglob("*.new"))
    assert [view.id for view in store.find(Filter())] == list("abcdefghi")
    store.close()


def test_a_disk_that_stays_full_for_a_while_loses_nothing(queue: QueueSettings, tmp_path: Path) -> None:
    seen, _ = after_each_command(queue, tmp_path / "clean")
    for size in range(0, 12_000, 900):
        directory, room, store, failures = tmp_path / str(size), [size], None, 0
        directory.mkdir()
        with disk_of(directory, room):
            for done in range(len(COMMANDS)):
                while True:
                    try:
                        store = open_files(queue, directory) if store is None else store
                        assert seen_in(store) == seen[done], f"room for {size} bytes, in command {done}"
                        COMMANDS[done](store)
                        break
                    except StoreFull:
                        failures += 1
                        room[0] += 1 << 30 if failures == 4 else 0
            assert store is not None
            assert seen_in(store) == seen[-1]
            store.close()
            again = open_files(queue, directory)
            assert seen_in(again) == seen[-1], f"room for {size} bytes"
            again.close()
            assert not list(directory.rglob("*.new"))


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


def test_while_the_files_are_read_back_the_queue_is_the_one_it_was(
    queue: QueueSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that decides then names its attempt by it: under another name recovery would not find the outcome."""
    store = open_files(queue, tmp_path)
    enter(store, "ann", b"ann")
    before, seen = store.uuid, list[str]()

    def fail(*_: object) -> None:
        seen.append(store.uuid)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(InDoubt):
            put(store, "a")
        patch.setattr(files_base, "LogFiles", fail)
        with pytest.raises(StoreAway, match="opened again"):
            store.view(1)
    assert set(seen) == {before}
    assert store.uuid == before
    put(store, "b")
    assert store.uuid == before
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
