"""Frames in append-only files: a frame is whole or it is not there, and what was said to be written survives a power cut."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from relay.message.errors import InDoubt, Stopped
from relay.queue.port import StoreAway, StoreFull
from relay.queue.stores.files_message import At
from relay.world import randomness
from relay.world.crash import crash_point

_HEADER: Final = Struct(">8sI")
"""The file's word, and the number that its frames' checksums begin with: a frame that a payload quotes is none."""
_WORD: Final = b"relayq1\n"
_FRAME: Final = Struct(">4sIQI")
"""The frame's word, bytes of the record, bytes of the contents, checksum of both and of the two lengths."""
_MARK: Final = b"\xf5RQF"
FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Frame(NamedTuple):
    """A record with the place where the contents behind it begin."""

    record: bytes
    contents: At


class LogFile:
    """One file of frames, open for appending, or for reading only once another one has followed it."""

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self.number = number
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            word, self._salt = _HEADER.unpack(os.pread(self._fd, _HEADER.size, 0).ljust(_HEADER.size, b"\0"))
            if word != _WORD:
                raise Stopped(f"{path} is no file of a queue: restore the queue's directory from a copy")
            self.end = os.fstat(self._fd).st_size
        except BaseException:
            # Tried again and again while the disk is away: each time would leave a file open.
            self.close()
            raise
        self.records = 0
        """Bytes of the records that were read or written, without contents."""

    @classmethod
    def create(cls, path: Path, number: int) -> LogFile:
        """Make an empty file; what is appended is safe only once its directory is, too (`sync_directory`)."""
        try:
            path.write_bytes(_HEADER.pack(_WORD, int.from_bytes(randomness.random_bytes(4), "big")))
            return cls(path, number)
        except OSError:
            drop_new(path)
            raise

    def frames(self) -> Iterator[Frame]:
        """Yield every frame and cut off a torn one at the end; raises Stopped where frames follow what is broken."""
        offset = _HEADER.size
        while offset < self.end:
            found = self.frame(offset)
            if found is None:
                self._cut(offset)
                return
            self.records += len(found[0].record)
            yield found[0]
            offset = found[1]

    def frame(self, offset: int) -> tuple[Frame, int] | None:
        """Return the frame that begins here and where the next one does; None if it is not whole."""
        head = os.pread(self._fd, _FRAME.size, offset)
        if len(head) < _FRAME.size:
            return None
        mark, record_length, content_length, checksum = _FRAME.unpack(head)
        begin = offset + _FRAME.size
        end = begin + record_length + content_length
        if mark != _MARK or end > self.end:
            return None
        body = os.pread(self._fd, end - begin, begin)
        if self._checksum(record_length, content_length, body) != checksum:
            return None
        contents = At(self.number, begin + record_length, content_length)
        return Frame(body[:record_length], contents), end

    def ends_with(self, content_length: int) -> bool:
        """Tell whether a frame of nothing but so many bytes of contents ends the file; its checksum is not looked at."""
        begin = self.end - content_length - _FRAME.size
        if begin < _HEADER.size:
            return False
        mark, record_length, length, _ = _FRAME.unpack(os.pread(self._fd, _FRAME.size, begin))
        return bool(mark == _MARK and record_length == 0 and length == content_length)

    def _checksum(self, record_length: int, content_length: int, body: bytes) -> int:
        return crc32(body, crc32(b"%d,%d" % (record_length, content_length), self._salt))

    def _cut(self, offset: int) -> None:
        """Cut off what a crash left half written; frames behind it prove that it was no crash."""
        rest = os.pread(self._fd, self.end - offset, offset)
        at = rest.find(_MARK, 1)
        while at >= 0:
            if self.frame(offset + at) is not None:
                raise Stopped(
                    f"{self.path} is damaged at byte {offset}, and whole frames follow: restore the queue's directory from a copy"
                )
            at = rest.find(_MARK, at + 1)
        os.ftruncate(self._fd, offset)
        os.fsync(self._fd)
        self.end = offset

    def append(self, record: bytes, contents: bytes, *, sync: bool = True) -> At:
        """Write a frame, and wait until it is safe; return where the contents begin.

        Raises StoreFull (the file is as it was), StoreAway (what was half written is cut off at the next opening), InDoubt
        if it is not known whether the frame is safe: after the last two this object must not be written to again.
        """
        checksum = self._checksum(len(record), len(contents), record + contents)
        frame = _FRAME.pack(_MARK, len(record), len(contents), checksum) + record + contents
        try:
            self._write(frame)
        except OSError as error:
            self._take_back(error)
        crash_point("files.written")
        if sync:
            self.sync()
        begin = self.end + _FRAME.size + len(record)
        self.end += len(frame)
        self.records += len(record)
        crash_point("files.synced")
        return At(self.number, begin, len(contents))

    def _write(self, frame: bytes) -> None:
        done = 0
        while done < len(frame):
            done += os.pwrite(self._fd, frame[done : done + (1 << 26)], self.end + done)
            crash_point("files.writing")

    def _take_back(self, error: OSError) -> None:
        """Abort: nothing was promised, so a write that failed is cut off."""
        try:
            os.ftruncate(self._fd, self.end)
        except OSError:
            raise StoreAway(f"{self.path} cannot be written ({error.strerror}): mend the disk") from error
        if error.errno in FULL:
            raise StoreFull(f"{self.path} cannot grow ({error.strerror}): make room on its disk") from error
        raise StoreAway(f"{self.path} cannot be written ({error.strerror}): mend the disk") from error

    def sync(self) -> None:
        """Wait until everything appended is safe; raises InDoubt: the kernel may or may not have it."""
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise InDoubt(
                f"{self.path}: the disk does not confirm a write ({error.strerror}): open the queue again"
            ) from error

    def confirm_new(self) -> None:
        """Wait as `sync` does, of a file that nothing relies on yet: it may be dropped, so nothing is in doubt. Raises StoreAway."""
        try:
            self.sync()
        except InDoubt as error:
            raise StoreAway(str(error)) from error

    def read(self, at: At) -> bytes:
        """Return bytes of the file."""
        return os.pread(self._fd, at.length, at.offset)

    def close(self) -> None:
        """Let the file go; once more: nothing happens."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def lock_directory(directory: Path, name: str) -> int:
    """Keep other processes out of a queue's directory until the file descriptor is closed; raises StoreAway."""
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(OSError):  # the name is for whoever is refused; a disk without room has none for it
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise StoreAway(
            f"queue {name!r} in {directory} is open in process {owner}, and files are for one process at a time: "
            "end that process, or keep the queue in sqlite:/// or postgresql://"
        ) from None
    except BaseException:
        os.close(fd)
        raise
    return fd


class LogFiles:
    """The log of one queue: the newest file begins with all that lives, older ones are kept for the contents they have."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        for left in directory.glob("*.log.new"):
            left.unlink()
        numbers = sorted(int(path.stem) for path in directory.glob("*.log"))
        self.files: dict[int, LogFile] = {}
        try:
            for number in numbers:
                self.files[number] = LogFile(self._path(number), number)
        except BaseException:
            self.close()
            raise
        self.begun_at = self.begun_records = 0
        """With so many bytes, and bytes of records, the newest file began; of one that was there already it is not known."""

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:012}.log"

    @property
    def newest(self) -> LogFile:
        """The file that is written to."""
        return self.files[max(self.files)]

    def grown(self) -> int:
        """Return how many bytes follow what the newest file began with."""
        return self.newest.end - self.begun_at

    def begin(self, write: Callable[[LogFile], object]) -> None:
        """Let a new file follow, which ``write`` fills with all that lives; before its name is there, the old one holds."""
        number = max(self.files, default=0) + 1
        path = self._path(number)
        new = path.with_suffix(".log.new")
        file = LogFile.create(new, number)
        try:
            write(file)
            file.confirm_new()
            crash_point("files.begun")
            new.rename(path)
        except BaseException:
            file.close()
            drop_new(new)
            raise
        sync_directory(self._directory)
        crash_point("files.followed")
        file.path = path
        self.files[number] = file
        self.begun_at, self.begun_records = file.end, file.records

    def check_place(self, at: At, named: str) -> None:
        """Raise Stopped, naming the message, unless its content can lie there: a file is missing or was cut."""
        file = self.files.get(at.file)
        if file is None or at.offset + at.length > file.end:
            raise Stopped(
                f"{named} has its content in {self._path(at.file)}, which is missing or too short: "
                "restore the queue's directory from a copy"
            )

    def read(self, at: At) -> bytes:
        """Return a content."""
        return self.files[at.file].read(at)

    def drop_but(self, needed: set[int]) -> None:
        """Delete the older files that no message needs."""
        for number in set(self.files) - needed - {self.newest.number}:
            self.files.pop(number).close()
            self._path(number).unlink()

    def close(self) -> None:
        """Let all files go."""
        for file in self.files.values():
            file.close()


def drop_new(path: Path) -> None:
    """Delete a file that did not come to its end, so that it takes no room from what does; at the latest the next opening does."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Make names of files as safe as their contents; raises InDoubt."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        raise InDoubt(
            f"{directory}: the disk does not confirm a write ({error.strerror}): open the queue again"
        ) from error
    finally:
        os.close(fd)
