"""The power goes at any moment: of a queue in files all that was answered is on the disk, by what was synced alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from relay.queue.settings import QueueSettings
from relay.queue.stores.files import open_files
from tests.contracts.test_queue_files_disk import COMMANDS, queue, seen_in

__all__ = ["queue"]


class Cut(NamedTuple):
    """What the disk has if the power goes now, after so many commands; names and contents that nobody synced are gone."""

    done: int
    files: dict[str, bytes]

    def lay_out(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        for name, content in self.files.items():
            (directory / name).write_bytes(content)


class Disk:
    """Knows of a directory what was synced: contents by inode, and which inode each name was when the names were."""

    def __init__(self, directory: Path, attic: Path) -> None:
        self.done = 0
        self.cuts: list[Cut] = []
        self._directory = directory
        self._attic = attic
        self._contents: dict[int, bytes] = {}
        self._names: dict[str, int] = {}
        self._is_named = False

    def cut(self) -> None:
        names = self._names if self._is_named else {}
        files = {name: self._contents.get(inode, b"") for name, inode in names.items() if name != "lock"}
        self.cuts.append(Cut(self.done, files))

    @contextmanager
    def watched(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fdatasync", self._sync)
            patch.setattr(os, "fsync", self._sync)
            patch.setattr(Path, "unlink", self._unlinking(Path.unlink))
            yield

    def _sync(self, fd: int) -> None:
        self.cut()
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path == self._directory.parent:
            self._is_named = self._directory.exists()
        elif path == self._directory:
            self._names = {one.name: one.stat().st_ino for one in path.iterdir()}
        elif path.is_file():
            self._contents[os.fstat(fd).st_ino] = path.read_bytes()

    def _unlinking(self, unlink: Callable[..., None]) -> Callable[..., None]:
        def call(path: Path, *, missing_ok: bool = False) -> None:
            if path.exists():  # or the next file would have the inode of one whose name is on the disk still
                os.link(path, self._attic / f"{path.stat().st_ino}-{len(self.cuts)}")
            unlink(path, missing_ok=missing_ok)

        return call


def test_what_was_answered_outlives_the_power(queue: QueueSettings, tmp_path: Path) -> None:
    attic = tmp_path / "attic"
    attic.mkdir()
    disk = Disk(tmp_path / "queues" / queue.name, attic)
    with disk.watched():
        store = open_files(queue, tmp_path / "queues")
        seen = [seen_in(store)]
        disk.cut()
        for done, command in enumerate(COMMANDS, 1):
            command(store)
            seen.append(seen_in(store))
            disk.done = done
            disk.cut()
        store.close()

    answered = {cut.done: cut for cut in disk.cuts}  # the last one of each is from when nothing more was under way
    assert set(answered) == set(range(len(COMMANDS) + 1))
    for number, cut in enumerate(disk.cuts):
        cut.lay_out(tmp_path / str(number) / queue.name)
        again = open_files(queue, tmp_path / str(number))
        assert seen_in(again) in seen[cut.done : cut.done + 2], f"cut {number}, in command {cut.done}"
        again.close()
