"""Disks that can be filled: file systems of a fixed size in files, mounted where data will lie, so that ENOSPC is the kernel's.

Only root may mount. Elsewhere a worker's disk is stood in for by a limit on the size of its files (``Crew.let_write``),
and no other disk is filled.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from relay.message.errors import CheckFailed
from relay.world import clock, schedule

IMAGES: Final = "disks"
_STEP_BYTES: Final = 1 << 30
_BLOCK_BYTES: Final = 4096
_BYTES_PER_INODE: Final = 1 << 16
_REFILL_S: Final = 0.2
_COMMAND_S: Final = 30.0


class NotPermitted(Exception):
    """This machine, or this user, cannot mount; the sentence says why."""


class Disk:
    """A mounted file system; the image is sparse, and stays when it is unmounted (``mount -o loop`` shows it again)."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._filler = place / ".filler"

    @classmethod
    def mounted(cls, image: Path, place: Path, size: int) -> Disk:
        """Make a file system of so many bytes and mount it at ``place``. Raises NotPermitted."""
        if os.geteuid() != 0:
            raise NotPermitted("only root may mount file systems")
        image.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir(parents=True, exist_ok=True)
        with image.open("wb") as file:
            file.truncate(size)
        # No blocks are kept back for root: a broker runs as root here, and must find the disk as full as others do.
        _run("mkfs.ext4", "-q", "-m", "0", "-i", str(_BYTES_PER_INODE), "-O", "^has_journal", str(image))
        _run("mount", "-o", "loop", str(image), str(place))
        disk = cls(place)
        # Database and broker want an empty directory.
        (place / "lost+found").rmdir()
        return disk

    def keep_full(
        self, seconds: float, stopping: schedule.Event, once_full: Callable[[], None] = lambda: None
    ) -> None:
        """Take all space there is, and what becomes free, for so long; then give it back."""
        limit = clock.monotonic() + seconds
        try:
            self.fill()
            once_full()
            while (left := limit - clock.monotonic()) > 0 and not stopping.wait(min(left, _REFILL_S)):
                self.fill()
        finally:
            self.free()

    def fill(self) -> None:
        """Take all space that is free now, without writing it."""
        with self._filler.open("ab") as file:
            taken, step = os.fstat(file.fileno()).st_size, _STEP_BYTES
            while step >= _BLOCK_BYTES:
                try:
                    os.posix_fallocate(file.fileno(), taken, step)
                    taken += step
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 4

    def free(self) -> None:
        """Give the space back."""
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount; where a process still holds a file, as soon as it lets go."""
        if self.place.is_mount():
            self.free()
            try:
                _run("umount", "--lazy", str(self.place))
            except NotPermitted as error:
                raise CheckFailed(f"{self.place} could not be unmounted ({error}): do it by hand") from error


class Disks(NamedTuple):
    """The disks by name; ``told`` says for people what a full disk is on this machine."""

    by_name: dict[str, Disk]
    told: str

    def close(self) -> None:
        """Unmount all."""
        for disk in self.by_name.values():
            disk.close()


def mount(directory: Path, places: Mapping[str, tuple[Path, int]]) -> Disks:
    """Mount a disk at each of the places, given with bytes: all of them, or none where that is not permitted."""
    found: dict[str, Disk] = {}
    try:
        for name, (place, size) in places.items():
            found[name] = Disk.mounted(directory / IMAGES / f"{name}.ext4", place, size)
    except NotPermitted as reason:
        _forget(directory, found)
        stands = "a full disk of a worker is a limit on its files' size, brokers and database keep their room"
        return Disks({}, f"disks: {stands}, since bounded file systems are not permitted here ({reason})")
    except BaseException:
        # Stop: nobody else knows yet what is mounted.
        _forget(directory, found)
        raise
    return Disks(found, f"disks: file systems of a fixed size (ext4 in {IMAGES}/, mounted until the end)")


def _forget(directory: Path, found: dict[str, Disk]) -> None:
    Disks(found, "").close()
    shutil.rmtree(directory / IMAGES, ignore_errors=True)


def _run(program: str, *arguments: str) -> None:
    path = shutil.which(program)
    if path is None:
        raise NotPermitted(f"there is no {program}")
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise NotPermitted(f"{program} did not end within {_COMMAND_S:g} s") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NotPermitted(f"{program}: {said[-1] if said else f'exit code {done.returncode}'}")
