"""What only files can suffer: torn ends, damage, a full disk, two processes, a disk that does not confirm."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relay.message.errors import InDoubt, Stopped
from relay.queue.message import Ticket
from relay.queue.port import Filter, StoreAway, StoreFull
from relay.queue.settings import QueueSettings, Retention
from relay.queue.states import PublisherState as P
from relay.queue.states import SubscriberState as S
from relay.queue.stores import files_base, files_index, files_lanes
from relay.queue.stores.files import FilesQueue, open_files
from tests.contracts.queue_media import HOLDER, NOW, enter, full_view, put, settings, take, tickets

ROOT = Path(__file__).parents[2]


@pytest.fixture
def queue() -> QueueSettings:
    return settings("ann")


def opened(queue: QueueSettings, directory: Path) -> FilesQueue:
    store = open_files(queue, directory)
    enter(store, "ann", b"ann")
    return store


def newest(queue: QueueSettings, directory: Path) -> Path:
    return max((directory / queue.name).glob("*.log"))


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let no file of this process grow past a size: what a full disk answers, and parts of a write remain."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_worker_that_left_and_came_again_in_one_unit_is_known_to_who_opens_it_next(
    queue: QueueSettings, tmp_path: Path
) -> None:
    store = opened(queue, tmp_path)
    with store.transaction():
        assert store.leave(b"ann")
        enter(store, "ann", b"ann")
    store.close()

    assert [holder.id for holder in open_files(queue, tmp_path).holders()] == [b"ann"]


def test_what_comes_back_to_the_front_of_its_lane_is_the_oldest_again(queue: QueueSettings, tmp_path: Path) -> None:
    store = opened(queue, tmp_path)
    enter(store, "ann", b"other")
    for name, lane in (("a", b"l"), ("b", b"m"), ("c", b"l")):
        put(store, name, lane=lane)
    taken = tickets(take(store, limit=1))
    assert store.take("ann", b"other", 10, NOW, without={b"m"}) == []
    store.free("ann", taken, NOW)

    assert [one.id for one in take(store, limit=1)] == ["a"]


def test_a_torn_end_is_cut_off_wherever_it_is_torn(queue: QueueSettings, tmp_path: Path) -> None:
    store = opened(queue, tmp_path)
    put(store, "a", "b")
    before, safe = full_view(store), store._log.newest.end
    put(store, "torn", value=b"x" * 50)
    end = store._log.newest.end
    store.close()
    whole = newest(queue, tmp_path).read_bytes()
    assert len(whole) == end

    for length in (*range(safe, end, 7), end - 1):
        newest(queue, tmp_path).write_bytes(whole[:length])
        store = open_files(queue, tmp_path)
        assert full_view(store) == before
        assert store._log.newest.end == safe
        assert put(store, "next") == [3]
        store.close()


def test_damage_before_whole_frames_is_refused_and_nothing_is_cut(
    queue: QueueSettings, tmp_path: Path
) -> None:
    store = opened(queue, tmp_path)
    put(store, "a", value=b"mark" * 20)
    put(store, "b")
    store.close()
    raw = bytearray(newest(queue, tmp_path).read_bytes())
    raw[raw.index(b"markmark")] ^= 1
    newest(queue, tmp_path).write_bytes(raw)

    with pytest.raises(Stopped, match="damaged"):
        open_files(queue, tmp_path)
    assert newest(queue, tmp_path).read_bytes() == raw


def test_a_content_that_rots_later_is_told_and_never_given(queue: QueueSettings, tmp_path: Path) -> None:
    store = opened(queue, tmp_path)
    put(store, "a", value=b"mark" * 20)
    raw = newest(queue, tmp_path).read_bytes()
    with newest(queue, tmp_path).open("r+b") as file:
        file.seek(raw.index(b"markmark"))
        file.write(b"X")

    with pytest.raises(Stopped, match="message 1"):
        take(store)
    assert store.held(b"ann") == []


def test_a_full_disk_changes_nothing_and_is_got_over(queue: QueueSettings, tmp_path: Path) -> None:
    store = opened(queue, tmp_path)
    put(store, "a")
    (ticket,) = tickets(take(store))
    before, size = full_view(store), newest(queue, tmp_path).stat().st_size

    with file_size_limit(size + 100):
        with pytest.raises(StoreFull):
            put(store, "big", value=b"x" * 1000)
        assert newest(queue, tmp_path).stat().st_size == size
        with pytest.raises(StoreFull), store.transaction():  # noqa: PT012 - the whole block is taken back
            store.finish("ann", [ticket], NOW)
            put(store, "b", "c", "d")
    assert full_view(store) == before
    assert store.finish("ann", [ticket], NOW) == [True]
    put(store, "big", value=b"x" * 1000)
    now = full_view(store)
    store.close()
    assert full_view(open_files(queue, tmp_path)) == now


def test_a_disk_that_does_not_confirm_leaves_it_in_doubt_and_the_next_call_reads_again(
    queue: QueueSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(queue, tmp_path)
    put(store, "a")
    (ticket,) = tickets(take(store))

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(InDoubt):
            store.finish("ann", [ticket], NOW)
        for ask in (lambda: store.holds("ann", [ticket]), lambda: put(store, "b"), lambda: store.view(1)):
            with pytest.raises(StoreAway, match="opened again"):
                ask()
    assert store.holds("ann", [ticket]) == [S.DONE]
    assert put(store, "b") == [2]


def test_another_process_is_refused_by_name_while_the_queue_is_open(
    queue: QueueSettings, tmp_path: Path
) -> None:
    store = opened(queue, tmp_path)
    script = (
        "import sys; from pathlib import Path; from relay.queue.stores.files import open_files;"
        "from tests.contracts.queue_media import settings; from dataclasses import replace;"
        "open_files(replace(settings('ann'), name=sys.argv[1]), Path(sys.argv[2]))"
    )
    words = [sys.executable, "-c", script, queue.name, str(tmp_path)]
    refused = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)

    assert refused.returncode != 0
    assert f"StoreAway: queue '{queue.name}'" in refused.stderr
    assert f"is open in process {os.getpid()}" in refused.stderr
    with pytest.raises(StoreAway):
        open_files(queue, tmp_path)
    store.close()
    open_files(queue, tmp_path).close()


def test_of_messages_that_are_over_memory_keeps_nothing_until_they_would_expire(
    queue: QueueSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_index, "SPARE", 10)
    monkeypatch.setattr(files_lanes, "SPARE", 10)
    store = opened(queue, tmp_path)
    put(store, "slow", ttl_ms=50, delay_ms=20)
    for number in range(100):
        put(store, f"m{number}", ttl_ms=86_400_000)
        assert store.finish("ann", tickets(take(store)), NOW) == [True]
        (late,) = put(store, f"n{number}", delay_ms=86_400_000)
        assert store.withdraw([late], NOW) == [True]

    index = store._index
    assert (len(index._expiring) < 20, len(index._delayed) < 20) == (True, True)
    assert (store.reveal_due(NOW + 20, 10), store.expire(NOW + 50, 10)) == (1, 1)
    for number in range(100):
        (early,) = put(store, f"o{number}")
        assert store.withdraw([early], NOW) == [True]
    assert len(index._line("ann")._heap) < 20
    put(store, "last")
    assert [one.id for one in take(store)] == ["last"]


class TestSmallFiles:
    """With bounds so small that journal files are written and logs follow each other all the time."""

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files_base, "JOURNAL_MESSAGES", 4)
        monkeypatch.setattr(files_base, "FOLLOW_BYTES", 2000)
        monkeypatch.setattr(files_base, "_CHUNK", 3)

    def filled(self, queue: QueueSettings, directory: Path) -> FilesQueue:
        store = opened(queue, directory)
        put(store, *[f"m{n}" for n in range(30)], value=b"v" * 100)
        for at in range(20):
            store.finish("ann", tickets(take(store, limit=1)), NOW + at)
        return store

    def test_what_has_ended_lies_in_journal_files_and_looks_the_same(
        self, queue: QueueSettings, tmp_path: Path
    ) -> None:
        store = self.filled(queue, tmp_path)

        assert len(store._journal.files) == 5
        assert sorted(store._index.messages) == list(range(21, 31))
        views = store.find(Filter(), limit=100)
        assert [view.id for view in views] == [f"m{n}" for n in range(30)]
        assert [view.state for view in views[:20]] == [P.JOURNALLED] * 20
        ended = store.view(3)
        assert ended is not None
        assert (ended.value, ended.subscribers[0].times.done) == (b"v" * 100, NOW + 2)
        assert store.holds("ann", [Ticket(3, 1), Ticket(3, 2)]) == [S.DONE, None]
        assert [view.id for view in store.find(Filter(state=P.JOURNALLED), after=15, limit=2)] == [
            "m15",
            "m16",
        ]
        store.close()
        again = open_files(queue, tmp_path)
        assert again.find(Filter(), limit=100) == views
        assert again.counts()[0][P.JOURNALLED] == 20

    def test_old_log_files_go_and_contents_that_are_needed_stay(
        self, queue: QueueSettings, tmp_path: Path
    ) -> None:
        store = self.filled(queue, tmp_path)
        for at in range(40):
            (new,) = put(store, f"n{at}", value=b"v" * 100, priority=9)
            assert store.finish("ann", [Ticket(new, 1)], NOW) == [False]
            assert store.finish("ann", tickets(take(store, limit=1)), NOW) == [True]

        assert store._log.newest.number > 4
        assert len(list((tmp_path / queue.name).glob("*.log"))) <= 3
        assert [one.value for one in take(store)] == [b"v" * 100] * 10
        store.close()
        again = open_files(queue, tmp_path)
        assert len(again.held(b"ann")) == 10

    def test_what_lies_in_a_journal_file_can_be_given_again_and_trimmed(
        self, queue: QueueSettings, tmp_path: Path
    ) -> None:
        store = self.filled(queue, tmp_path)

        assert store.republish(3, "ann", NOW) is False
        assert store.republish(3, "ann", NOW, even_done=True) is True
        assert store.trim([1, 2, 4, 3, 25, 99]) == 3
        assert [(one.ticket, one.id) for one in take(store, limit=1)] == [((3, 2), "m2")]
        for _ in range(2):
            assert (store.view(1), store.view(4)) == (None, None)
            assert [view.handle for view in store.find(Filter(), limit=3)] == [3, 5, 6]
            assert store.counts()[0][P.JOURNALLED] == 16
            store.close()
            store = open_files(queue, tmp_path)
        assert store.trim(list(range(5, 21))) == 16
        assert list((tmp_path / queue.name).glob("*.journal")) == []

    def test_a_taken_back_trim_and_republication_leave_the_journal_as_it_was(
        self, queue: QueueSettings, tmp_path: Path
    ) -> None:
        store = self.filled(queue, tmp_path)
        before, counts = full_view(store), store.counts()

        with pytest.raises(RuntimeError), store.transaction():  # noqa: PT012 - the whole block is taken back
            store.trim([1, 2])
            store.republish(3, "ann", NOW, even_done=True)
            raise RuntimeError
        assert full_view(store) == before
        assert store.counts() == counts

    @pytest.mark.parametrize("bound", [Retention(count=15), Retention(bytes=1500), Retention(age_ms=5)])
    def test_the_retention_goes_over_files_and_memory(
        self, queue: QueueSettings, tmp_path: Path, bound: Retention
    ) -> None:
        store = self.filled(queue, tmp_path)
        store.settings = QueueSettings(queue.name, queue.audience, retain=bound)

        assert [view.handle for view in store.journalled(NOW + 9, 100)] == [1, 2, 3, 4, 5]
        assert [view.handle for view in store.journalled(NOW + 9, 3)] == [1, 2, 3]

    def test_what_was_just_written_anew_is_not_so_again_with_each_unit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files_base, "FOLLOW_BYTES", 1 << 20)
        monkeypatch.setattr(files_base, "FOLLOW_RECORD_BYTES", 2000)
        names = [f"billing-service-{n:02}" for n in range(20)]
        store = open_files(settings(*names), tmp_path)
        enter(store, names[0], HOLDER)
        put(store, *[f"m{n}" for n in range(10)])
        put(store, *[f"n{n}" for n in range(10)])

        before = store._log.newest.number
        assert before > 1
        for _ in range(20):
            assert store.beat(HOLDER)
        assert store._log.newest.number <= before + 1

    def test_without_room_for_a_journal_file_the_queue_goes_on(
        self, queue: QueueSettings, tmp_path: Path
    ) -> None:
        store = opened(queue, tmp_path)
        put(store, *[f"m{n}" for n in range(10)], value=b"v" * 3000)
        taken = tickets(take(store))
        with monkeypatched_rename():
            assert store.finish("ann", taken, NOW) == [True] * 10
            assert store._journal.files == {}
        put(store, "more")
        assert len(store._journal.files) == 1
        store.close()
        assert len(open_files(queue, tmp_path).find(Filter(), limit=20)) == 11


@contextmanager
def monkeypatched_rename() -> Iterator[None]:
    """Let no file get its name: what a directory without room answers."""

    def fail(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        yield
