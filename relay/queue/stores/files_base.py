"""A queue kept in files: memory holds the living messages' states, and each unit of writing is one frame of the log."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from relay.message.errors import InDoubt, RelayError, Retriable, Stopped
from relay.message.schemas import UnknownRecord
from relay.queue.port import Holder, Retired, StoreAway, StoreFull
from relay.queue.settings import QueueSettings
from relay.queue.stores.files_index import Index
from relay.queue.stores.files_journal import Journal, Row
from relay.queue.stores.files_log import FULL, Frame, LogFile, LogFiles, lock_directory, sync_directory
from relay.queue.stores.files_message import At, Content, Kept
from relay.queue.stores.files_record import HERE, Unit, bring, decode_content, decode_unit, message_of
from relay.world import randomness

JOURNAL_MESSAGES: Final = 8192
"""So many messages that have ended stay in memory at most; then they go into a journal file together."""
PAUSE_UNITS_MAX: Final = 1023
"""So many units pass at most before a journal file that did not fit is tried again."""
FOLLOW_BYTES: Final = 64 << 20
"""A new log file follows when one has grown by this, or by twice what it began with if that is more."""
FOLLOW_RECORD_BYTES: Final = 8 << 20
"""A new log file follows also when the records in one are so many bytes, and twice what the living need: they are read at opening."""
_LIVING_BYTES: Final = 256
"""About what the records of one living message take."""
SPARSE: Final = 4
"""A log file of whose bytes less than one in so many is needed is copied from, and deleted."""
_CHUNK: Final = 1000


@dataclass
class Pending:
    """What a unit has changed so far, and how to take it back."""

    undo: list[Callable[[], None]] = field(default_factory=list)
    arrived: dict[int, Kept] = field(default_factory=dict)
    changed: dict[int, Kept] = field(default_factory=dict)
    contents: dict[int, bytes] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    gone: list[int] = field(default_factory=list)
    journals: set[int] = field(default_factory=set)
    emptied: list[int] = field(default_factory=list)
    holders: dict[bytes, Holder] = field(default_factory=dict)
    left: list[bytes] = field(default_factory=list)
    outcomes: list[tuple[str, bool]] = field(default_factory=list)
    other: bool = False

    def anything(self) -> bool:
        """Tell whether there is something to write."""
        lists = self.changed, self.gone, self.journals, self.holders, self.left, self.outcomes
        return self.other or any(lists)


class FilesBase:
    """One queue in a directory of its own, open in one process at a time."""

    shared = False

    def __init__(self, settings: QueueSettings, directory: Path) -> None:
        self.settings = settings
        self.uuid = randomness.uuid_bytes().hex()
        """Of a queue that is made now; else its files say it. It stays while they are read back: others ask at any time."""
        self._directory = directory
        self._lock = -1
        self._pending: Pending | None = None
        self._broken: RelayError | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            sync_directory(directory.parent)
            self._lock = lock_directory(directory, settings.name)
            self._load()
        except (OSError, InDoubt) as error:
            # Retry: whoever opens has written nothing of its own yet.
            self.close()
            raise _away(settings.name, directory, error) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let the directory go to whoever opens it next; once more: nothing happens."""
        self._close_files()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _close_files(self) -> None:
        for files in (getattr(self, "_log", None), getattr(self, "_journal", None)):
            if files is not None:
                files.close()

    # Reading the log back ---------------------------------------------------------------------------------------------

    def _load(self) -> None:
        self._index = Index()
        self._holders: dict[bytes, Holder] = {}
        self._outcomes: dict[str, bool] = {}
        self._last = 0
        self._retired = False
        self._not_before = 0
        self._journal_in = self._journal_pause = 0
        self._journal = Journal(self._directory)
        self._log = LogFiles(self._directory)
        self._read_back()

    def _mend(self) -> None:
        """Read the files back after a write whose end is unknown, and write anew what the disk may not have."""
        if self._broken is None:
            return
        try:
            self._close_files()
            self._load()
            # The cache may show what a disk that did not confirm has dropped: nothing of that file is relied upon.
            self._follow(self._log.newest.number)
        except (OSError, Retriable, InDoubt) as error:
            # Retry: the next call tries it again; until then nothing is read or written.
            raise StoreAway(f"queue {self.settings.name!r} must be opened again: {self._broken}") from error
        self._broken = None

    def _read_back(self) -> None:
        if not self._log.files:
            self._log.begin(self._write_all)
        messages: dict[int, Kept] = {}
        journals: dict[int, Sequence[int]] = {}
        newest = self._log.newest
        uuid = self.uuid
        with _no_cycles():
            for frame in newest.frames():
                uuid = self._apply(frame, messages, journals, str(newest.path))
            self.uuid = uuid
            # What a process wrote and died over may be in the kernel only, and is believed from now on.
            newest.sync()
            self._journal.own(journals)
            for message in messages.values():
                self._log.check_place(message.at, f"message {message.handle}")
                self._index.add(message)

    def _apply(
        self, frame: Frame, messages: dict[int, Kept], journals: dict[int, Sequence[int]], path: str
    ) -> str:
        """Take a unit in and return the uuid that the queue had then."""
        try:
            unit = decode_unit(frame.record)
        except UnknownRecord as error:
            raise Stopped(
                f"{path} was written by another version ({error}): open the queue with that one"
            ) from error
        self._last, self._retired = unit["last"], unit["retired"]
        arrived = {found["handle"]: found for found in unit["arrived"]}
        for stand in unit["stands"]:
            if stand["handle"] in arrived:
                messages[stand["handle"]] = message_of(arrived[stand["handle"]], stand, frame.contents)
            else:
                bring(messages[stand["handle"]], stand, frame.contents)
        for handle in unit["gone"]:
            messages.pop(handle, None)
        journals.update({found["number"]: found["dead"] for found in unit["journals"]})
        for number in unit["dropped"]:
            journals.pop(number, None)
        self._holders.update({found["id"]: Holder(**found) for found in unit["holders"]})
        for holder in unit["left"]:
            self._holders.pop(holder, None)
        self._outcomes.update({found["attempt"]: found["committed"] for found in unit["outcomes"]})
        uuid: str = unit["uuid"]
        return uuid

    # Units of writing -------------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make what is called inside one unit; an exception takes all of it back."""
        if self._pending is not None:
            yield
            return
        self._mend()
        self._pending = pending = Pending()
        try:
            yield
            if pending.anything():
                self._commit(pending)
        except BaseException:
            # Abort: nothing of it was promised. Whoever gets InDoubt from here opens the queue again and reads.
            for undo in reversed(pending.undo):
                undo()
            raise
        finally:
            self._pending = None
        for number in pending.emptied:
            self._journal.forget(number)
        self._tidy()

    @contextmanager
    def _writing(self) -> Iterator[Pending]:
        """Begin what a method writes, in the open unit or one of its own."""
        with self.transaction():
            if self._retired:
                raise Retired(f"queue {self.settings.name!r} has moved to another store: write there")
            assert self._pending is not None
            yield self._pending

    def _guard(self) -> None:
        if self._pending is None:
            self._mend()

    def _commit(self, pending: Pending) -> None:
        contents, offset = [], 0
        for handle, content in pending.contents.items():
            pending.changed[handle].at = At(HERE, offset, len(content))
            contents.append(content)
            offset += len(content)
        here = self._index.messages
        journals = {number: sorted(self._journal.files[number].dead) for number in pending.journals}
        emptied = [
            number for number, dead in journals.items() if len(dead) == self._journal.files[number].count
        ]
        unit = Unit(
            uuid=self.uuid,
            last=self._last,
            retired=self._retired,
            arrived=[message for handle, message in pending.arrived.items() if handle in here],
            stands=[message for handle, message in pending.changed.items() if handle in here],
            gone=pending.gone,
            journals=[(number, dead) for number, dead in journals.items() if number not in emptied],
            dropped=emptied,
            holders=list(pending.holders.values()),
            left=pending.left,
            outcomes=pending.outcomes,
        )
        begin = self._append(self._log.newest, unit, b"".join(contents))
        for handle in pending.contents:
            at = pending.changed[handle].at
            pending.changed[handle].at = At(begin.file, begin.offset + at.offset, at.length)
        pending.emptied = emptied

    def _append(self, file: LogFile, unit: Unit, contents: bytes) -> At:
        try:
            return file.append(unit.encode(), contents)
        except (StoreAway, InDoubt) as error:
            # Stop: what lies at the end of the file is known only once it was read again.
            self._broken = error
            raise

    # What methods do inside a unit --------------------------------------------------------------------------------

    def _touch(self, message: Kept) -> Kept:
        """Say that a message is about to change."""
        pending = self._pending
        assert pending is not None
        if message.handle not in pending.touched:
            pending.touched.add(message.handle)
            restore = message.keep()

            def undo() -> None:
                restore()
                self._index.add(message)

            pending.undo.append(undo)
        return message

    def _changed(self, message: Kept) -> None:
        """Say that a message has changed."""
        assert self._pending is not None
        self._pending.changed[message.handle] = message
        self._index.derive(message)

    def _add(self, message: Kept, content: bytes) -> None:
        """Take in a message that is new to memory."""
        pending = self._pending
        assert pending is not None
        self._index.add(message)
        pending.undo.append(lambda: self._index.forget(message))
        pending.touched.add(message.handle)
        pending.gone = [handle for handle in pending.gone if handle != message.handle]
        pending.arrived[message.handle] = pending.changed[message.handle] = message
        pending.contents[message.handle] = content

    def _remove(self, message: Kept) -> None:
        """Let a message go from memory."""
        assert self._pending is not None
        self._index.forget(message)
        self._pending.undo.append(lambda: self._index.add(message))
        self._pending.contents.pop(message.handle, None)
        self._pending.gone.append(message.handle)

    def _bury(self, number: int, row: Row) -> None:
        """Let a message go from its journal file."""
        assert self._pending is not None
        self._journal.bury(number, row)
        self._pending.undo.append(lambda: self._journal.raise_again(number, row))
        self._pending.journals.add(number)

    def _give_handle(self) -> int:
        # A unit that is taken back leaves a gap: so no handle ever means two messages.
        self._last += 1
        return self._last

    def _content(self, message: Kept) -> Content:
        raw = self._pending.contents.get(message.handle) if self._pending else None
        return decode_content(self._log.read(message.at) if raw is None else raw, f"message {message.handle}")

    def _messages(self, handles: Sequence[int]) -> list[Kept | None]:
        return [self._index.messages.get(handle) for handle in handles]

    # What keeps the files small -----------------------------------------------------------------------------------

    def _tidy(self) -> None:
        """Move what has ended to the journal and let a new log file follow, when it is time.

        What was written before is safe whatever happens here: without room it is tried again later.
        """
        if self._broken is not None or self._retired:
            return
        try:
            if len(self._index.ended) >= JOURNAL_MESSAGES and self._is_time_to_journal():
                self._journal_ended()
                self._journal_in = self._journal_pause = 0
            if self._is_time_to_follow():
                self._follow()
                self._not_before = 0
        except InDoubt as error:
            # Stop: whether the new file is there decides what the next opening reads.
            self._broken = error
        except (Retriable, OSError):
            # Retry: the old files hold.
            self._not_before = self._log.newest.end + FOLLOW_BYTES

    def _is_time_to_follow(self) -> bool:
        newest, living = self._log.newest, len(self._index.messages)
        if newest.end < self._not_before:
            return False
        # Many subscribers, or long names, take more than is reckoned: what was just written anew would be so again with each unit.
        records = max(FOLLOW_RECORD_BYTES, 2 * max(_LIVING_BYTES * living, self._log.begun_records))
        return self._log.grown() >= max(FOLLOW_BYTES, 2 * self._log.begun_at) or newest.records >= records

    def _is_time_to_journal(self) -> bool:
        """Whether to try it now; tried without end of it, it is tried again after twice as many units: all is written each time."""
        if self._journal_in > 0:
            self._journal_in -= 1
            return False
        self._journal_in, self._journal_pause = self._journal_pause, min(2 * self._journal_pause + 1, PAUSE_UNITS_MAX)
        return True

    def _journal_ended(self) -> None:
        ended = [self._index.messages[handle] for handle in sorted(self._index.ended)]
        number = self._journal.write([(message, self._log.read(message.at)) for message in ended], self.uuid)
        gone = [message.handle for message in ended]
        unit = Unit(self.uuid, self._last, self._retired, gone=gone, journals=[(number, [])])
        try:
            self._append(self._log.newest, unit, b"")
        except Retriable:
            self._journal.forget(number)
            raise
        for message in ended:
            self._index.forget(message)

    def _follow(self, doubted: int | None = None) -> None:
        moved: dict[int, At] = {}
        self._log.begin(lambda file: moved.update(self._write_all(file, doubted)))
        for handle, at in moved.items():
            self._index.messages[handle].at = at
        self._log.drop_but({message.at.file for message in self._index.messages.values()})

    def _write_all(self, file: LogFile, doubted: int | None = None) -> dict[int, At]:
        """Write all that lives, and the contents of files that hold little else, or are doubted; return where those lie now."""
        journals = [(number, sorted(known.dead)) for number, known in self._journal.files.items()]
        first = Unit(self.uuid, self._last, self._retired, journals=journals)
        first.holders, first.outcomes = list(self._holders.values()), list(self._outcomes.items())
        file.append(first.encode(), b"", sync=False)
        messages, moved = list(self._index.messages.values()), dict[int, At]()
        sparse = self._sparse(messages) | ({doubted} if doubted is not None else set())
        for begin in range(0, len(messages), _CHUNK):
            moved.update(self._write_some(file, messages[begin : begin + _CHUNK], sparse))
        return moved

    def _write_some(self, file: LogFile, messages: list[Kept], sparse: set[int]) -> dict[int, At]:
        before, contents, offset = {}, [], 0
        for message in messages:
            if message.at.file in sparse:
                before[message.handle] = message.at
                contents.append(self._log.read(message.at))
                message.at = At(HERE, offset, message.at.length)
                offset += message.at.length
        try:
            record = Unit(self.uuid, self._last, self._retired, arrived=messages, stands=messages).encode()
            begin = file.append(record, b"".join(contents), sync=False)
            return {
                message.handle: At(begin.file, begin.offset + message.at.offset, message.at.length)
                for message in messages
                if message.handle in before
            }
        finally:
            for message in messages:
                message.at = before.get(message.handle, message.at)

    def _sparse(self, messages: list[Kept]) -> set[int]:
        needed: Counter[int] = Counter()
        for message in messages:
            needed[message.at.file] += message.at.length
        return {number for number, file in self._log.files.items() if needed[number] * SPARSE < file.end}


@contextmanager
def _no_cycles() -> Iterator[None]:
    """Keep the collector of cycles from looking through what is read back again and again: half of the time of opening."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _away(name: str, directory: Path, error: OSError | InDoubt) -> Retriable:
    if isinstance(error, OSError) and error.errno in FULL:
        return StoreFull(
            f"queue {name!r} in {directory} cannot be opened ({error.strerror}): make room on its disk"
        )
    reason = error.strerror if isinstance(error, OSError) else error
    return StoreAway(f"queue {name!r} in {directory} cannot be opened ({reason}): mend the disk")
