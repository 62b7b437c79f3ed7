"""Messages that have ended, in files that are written once and sorted by handle: on disk a footer finds each, in memory a line per file."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from relay.message.errors import Stopped
from relay.queue.states import PublisherState
from relay.queue.stores.files_log import LogFile, drop_new, sync_directory
from relay.queue.stores.files_message import At, Kept
from relay.queue.stores.files_record import Unit, decode_unit, message_of
from relay.world.crash import crash_point

_ROW: Final = Struct(">qqqqB")
_TRAILER: Final = Struct(">QQqqqQQQI")
"""Rows, their bytes in all, first and last handle, earliest end, how many per state, checksum of the rows."""
_STATES: Final = (PublisherState.UNAVAILABLE, PublisherState.JOURNALLED, PublisherState.DELETED)
_OPEN_AT_ONCE: Final = 8


class Row(NamedTuple):
    """One message in a file: where its frame begins, when it ended (milliseconds), what it counts (bytes)."""

    handle: int
    offset: int
    ended_at: int
    size: int
    state: int


@dataclass
class JournalFile:
    """What is known of one file without opening it; ``dead`` were trimmed or revealed again."""

    number: int
    path: Path
    first: int
    last: int
    earliest: int
    count: int
    bytes: int
    states: Counter[PublisherState]
    dead: set[int] = field(default_factory=set)


class Opened:
    """A file that is being read, with its rows."""

    def __init__(self, known: JournalFile) -> None:
        self._file = LogFile(known.path, known.number)
        try:
            trailer, length = _trailer_of(self._file)
            raw = self._file.read(At(known.number, self._file.end - _TRAILER.size - length, length))
            if crc32(raw) != trailer[-1]:
                raise Stopped(f"{known.path} is damaged: restore the queue's directory from a copy")
        except BaseException:
            self.close()
            raise
        self.rows = [Row(*row) for row in _ROW.iter_unpack(raw)]
        self.handles = [row.handle for row in self.rows]

    def read(self, row: Row) -> tuple[Kept, bytes]:
        """Return a message as it ended, with its content."""
        found = self._file.frame(row.offset)
        if found is None:
            raise Stopped(
                f"{self._file.path} is damaged at byte {row.offset}: restore the queue's directory from a copy"
            )
        unit = decode_unit(found[0].record)
        return message_of(unit["arrived"][0], unit["stands"][0], found[0].contents), self._file.read(
            found[0].contents
        )

    def close(self) -> None:
        """Let the file go."""
        self._file.close()


class Journal:
    """The journal files of one queue, the oldest first."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.files: dict[int, JournalFile] = {}
        self._opened: OrderedDict[int, Opened] = OrderedDict()

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:012}.journal"

    def own(self, journals: dict[int, Sequence[int]]) -> None:
        """Go by these files, with what is dead in each, and delete whatever the log does not know."""
        for path in [*self._directory.glob("*.journal"), *self._directory.glob("*.journal.new")]:
            if path.suffix == ".new" or int(path.stem) not in journals:
                path.unlink()
        for number, dead in sorted(journals.items()):
            self.files[number] = self._known(number)
            for handle in dead:
                row = self.find_in(number, handle)
                assert row is not None
                self.bury(number, row)

    def _known(self, number: int) -> JournalFile:
        if not self._path(number).exists():
            raise Stopped(f"{self._path(number)} is missing: restore the queue's directory from a copy")
        with closing(LogFile(self._path(number), number)) as file:
            (count, size, first, last, earliest, *states, _), _ = _trailer_of(file)
        counted = Counter(dict(zip(_STATES, states, strict=True)))
        return JournalFile(number, file.path, first, last, earliest, count, size, counted)

    def write(self, messages: Sequence[tuple[Kept, bytes]], uuid: str) -> int:
        """Write messages with their contents into a new file, safely, and return its number; the log must name it next."""
        number = max(self.files, default=0) + 1
        path = self._path(number).with_suffix(".journal.new")
        file = LogFile.create(path, number)
        rows = []
        try:
            for message, content in messages:
                at = message.at
                message.at = At(0, 0, len(content))
                record = Unit(
                    uuid, message.handle, retired=False, arrived=[message], stands=[message]
                ).encode()
                message.at = at
                rows.append(Row(message.handle, file.end, message.ended_at(), message.size, message.state))
                file.append(record, content, sync=False)
            file.append(b"", _footer(rows), sync=False)
            file.confirm_new()
            crash_point("files.journal")
            path.rename(self._path(number))
        except BaseException:
            drop_new(path)
            raise
        finally:
            file.close()
        sync_directory(self._directory)
        self.files[number] = self._known(number)
        return number

    def forget(self, number: int) -> None:
        """Delete a file that the log does not name, or no longer; one that stays is deleted at the next opening (`own`)."""
        self.files.pop(number, None)
        if number in self._opened:
            self._opened.pop(number).close()
        with suppress(OSError):
            self._path(number).unlink(missing_ok=True)

    def find(self, handle: int) -> tuple[int, Row] | None:
        """Return the file's number and the row of a message that is not dead."""
        for number, file in self.files.items():
            if file.first <= handle <= file.last and handle not in file.dead:
                row = self.find_in(number, handle)
                if row is not None:
                    return number, row
        return None

    def find_in(self, number: int, handle: int) -> Row | None:
        """Return the row of a message in this file, dead or not."""
        opened = self._open(number)
        place = bisect_left(opened.handles, handle)
        found = place < len(opened.handles) and opened.handles[place] == handle
        return opened.rows[place] if found else None

    def rows(self, number: int, after: int = -1) -> Iterator[Row]:
        """Yield the rows of a file above a handle that are not dead."""
        opened, dead = self._open(number), self.files[number].dead
        for place in range(bisect_left(opened.handles, after + 1), len(opened.rows)):
            if opened.handles[place] not in dead:
                yield opened.rows[place]

    def read(self, number: int, row: Row) -> tuple[Kept, bytes]:
        """Return a message as it ended, with its content."""
        return self._open(number).read(row)

    def bury(self, number: int, row: Row) -> None:
        """Count a message as gone from its file."""
        file = self.files[number]
        file.dead.add(row.handle)
        file.bytes -= row.size
        file.states[PublisherState(row.state)] -= 1

    def raise_again(self, number: int, row: Row) -> None:
        """Take back `bury`."""
        file = self.files[number]
        file.dead.discard(row.handle)
        file.bytes += row.size
        file.states[PublisherState(row.state)] += 1

    def _open(self, number: int) -> Opened:
        if number in self._opened:
            self._opened.move_to_end(number)
        else:
            self._opened[number] = Opened(self.files[number])
            if len(self._opened) > _OPEN_AT_ONCE:
                self._opened.popitem(last=False)[1].close()
        return self._opened[number]

    def close(self) -> None:
        """Let all files go."""
        while self._opened:
            self._opened.popitem()[1].close()


def _footer(rows: Sequence[Row]) -> bytes:
    raw = b"".join(_ROW.pack(*row) for row in rows)
    states = Counter(row.state for row in rows)
    return raw + _TRAILER.pack(
        len(rows),
        sum(row.size for row in rows),
        rows[0].handle,
        rows[-1].handle,
        min(row.ended_at for row in rows),
        *(states[state] for state in _STATES),
        crc32(raw),
    )


def _trailer_of(file: LogFile) -> tuple[tuple[int, ...], int]:
    """Return the trailer and how many bytes the rows before it have."""
    raw = file.read(At(file.number, max(0, file.end - _TRAILER.size), _TRAILER.size))
    trailer = _TRAILER.unpack(raw.ljust(_TRAILER.size, b"\0"))
    rows_length = trailer[0] * _ROW.size
    if not file.ends_with(rows_length + _TRAILER.size):
        raise Stopped(f"{file.path} is damaged: restore the queue's directory from a copy")
    return trailer, rows_length
