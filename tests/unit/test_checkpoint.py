"""A checkpoint gives back the index it was made of, or less with a reason; never something else."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from relay.message.errors import Stopped, Unreachable
from relay.monitor import checkpoint, ranges, rows_on_disk
from relay.monitor.checkpoint import CheckpointFile, CheckpointStore, Identity
from relay.monitor.entries import Page, Proof
from relay.monitor.index import Budget, DedupIndex
from relay.monitor.ranges import RangeEntry, encode_value
from relay.monitor.rows_on_disk import UnusableStoreError
from tests.memory_index import memory_index

TOPIC_ID = b"T" * 16


def store(
    directory: Path,
    *,
    route: str = "copy",
    topic_id: bytes = TOPIC_ID,
    budget: int = 10**6,
    low=0,
    high=10**9,
):
    return CheckpointStore(
        directory, relay="shop", route=route, topic_id=topic_id, budget=Budget(budget),
        watermarks=lambda _partition: (low, high),
    )  # fmt: skip


def name(i: int) -> bytes:
    return i.to_bytes(16, "big")


def page(
    numbers, *, topic: str = "orders", proof: Proof = Proof.SEALED, outcomes=None, replays: bytes = b""
) -> Page:
    numbers = list(numbers)
    return Page(
        "w", b"i" * 16, 1, proof, None, topic, 0, b"".join(map(name, numbers)), bytes(8 * len(numbers)),
        [i * 2 for i in numbers], bytes(len(numbers)) if outcomes is None else outcomes, replays,
    )  # fmt: skip


def names_in(index: DedupIndex, upto: int = 200) -> dict[int, int]:
    values = index.find([name(i) for i in range(upto)])
    return {i: index.describe(value).offset for i, value in enumerate(values) if value is not None}


def saved(directory: Path, *, position: int = 40, **over) -> Path:
    one = store(directory, **over)
    index, start = one.open(0)
    assert start == 0
    index.add_page(page(range(10)))
    one.save(index, position)
    index.add_page(page(range(20, 30), topic="payments"))
    index.void(page([3], proof=Proof.VOID, outcomes=b"\xff"))
    one.save(index, position + 10)
    one.close(index)
    return directory / "0.checkpoint"


EXPECTED = {i: i * 2 for i in (*range(3), *range(4, 10), *range(20, 30))}


@pytest.mark.parametrize("budget", [10**6, 5, 15], ids=["memory", "disk", "moved between two saves"])
def test_a_restart_finds_the_index_and_the_position(tmp_path: Path, budget: int) -> None:
    saved(tmp_path, budget=budget)
    one = store(tmp_path, budget=budget)
    index, loaded = one.load(0)

    assert (loaded.position, loaded.reason, loaded.first) == (50, "", 40)
    assert names_in(index) == EXPECTED
    assert index.describe(index.find([name(20)])[0]).topic == "payments"
    assert index.is_on_disk == (budget < 10**6)
    one.close(index)


def test_appending_goes_on_after_a_restart(tmp_path: Path) -> None:
    path = saved(tmp_path)
    size = path.stat().st_size
    one = store(tmp_path)
    index, _ = one.open(0)
    index.add_page(page([99], replays=b"\x02"))
    one.save(index, 60)
    one.close(index)

    assert size < path.stat().st_size < size + 500
    again = store(tmp_path)
    index, position = again.open(0)
    index.add_page(page([99], topic="payments"))
    assert (names_in(index), position) == ({**EXPECTED, 99: 198}, 60)
    assert index.describe(index.find([name(99)])[0]).topic == "orders"


@pytest.mark.parametrize(
    ("over", "reason"),
    [
        ({"route": "other"}, "route is 'copy' instead of 'other'"),
        ({"topic_id": b"N" * 16}, "topic_id"),
        ({"high": 49}, "the monitor ends at 49"),
        ({"low": 41}, "aged out"),
    ],
)
@pytest.mark.parametrize("budget", [10**6, 5], ids=["memory", "disk"])
def test_a_checkpoint_of_another_monitor_is_ignored_with_its_reason(tmp_path, over, reason, budget) -> None:
    saved(tmp_path, budget=budget)
    one = store(tmp_path, budget=budget, **over)
    index, loaded = one.load(0)

    assert reason in loaded.reason
    assert (loaded.position, names_in(index), len(index)) == (0, {}, 0)

    index.add_page(page([7]))
    one.save(index, 45)
    one.close(index)
    index, loaded = store(tmp_path, budget=budget, **over).load(0)
    assert (loaded.reason, loaded.position, names_in(index)) == ("", 45, {7: 14})
    index.close()


def test_no_checkpoint_is_no_fault(tmp_path: Path) -> None:
    index, loaded = store(tmp_path / "new").load(0)

    assert (len(index), loaded.position, loaded.reason) == (0, 0, "")


def test_a_block_cut_short_is_dropped_and_overwritten(tmp_path: Path) -> None:
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:-3])
    one = store(tmp_path)
    index, loaded = one.load(0)

    # The last block held the position only: the entries are there, and the tail is read again from 40.
    assert (loaded.position, names_in(index)) == (40, EXPECTED)
    assert "torn" in loaded.reason
    one.save(index, 70)
    one.close(index)
    index, loaded = store(tmp_path).load(0)
    assert (loaded.position, loaded.reason, names_in(index)) == (70, "", EXPECTED)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_never_shows_an_entry_that_was_not_saved(tmp_path: Path, data: st.DataObject) -> None:
    path = saved(tmp_path / "x") if not (tmp_path / "whole").exists() else tmp_path / "whole"
    whole = path.read_bytes()
    (tmp_path / "whole").write_bytes(whole)
    directory = tmp_path / "damaged"
    directory.mkdir(exist_ok=True)
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    (directory / "0.checkpoint").write_bytes(flipped)
    index, loaded = store(directory).load(0)

    assert loaded.reason
    assert loaded.position in (0, 40)
    # Number 3 was taken back by the last blocks: it may still show only if the position says to read them again.
    assert names_in(index).items() <= {**EXPECTED, 3: 6}.items()


def test_what_gives_the_topics_other_numbers_is_not_read_as_theirs(tmp_path: Path) -> None:
    """As when a file could not be read once: the index began anew, and what it learned then was appended."""
    identity = Identity("shop", "copy", TOPIC_ID.hex(), 0)
    file = CheckpointFile(tmp_path / "0.checkpoint", identity)
    for topic, numbers, position in (("orders", range(10), 40), ("payments", range(20, 30), 50)):
        began_anew = memory_index(0)
        began_anew.keep_journal()
        began_anew.add_page(page(numbers, topic=topic))
        file.save(began_anew, position, 40)

    index = memory_index(0)
    loaded = CheckpointFile(tmp_path / "0.checkpoint", identity).load(index)

    assert (loaded.position, "the rest comes from Kafka" in loaded.reason) == (40, True)
    assert names_in(index) == {i: i * 2 for i in range(10)}


def test_a_file_of_outdated_changes_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.monitor.checkpoint._REWRITE_FLOOR", 4096)
    one = store(tmp_path)
    index, _ = one.open(0)
    sizes = []
    for turn in range(20):
        index.add_page(page(range(30)))
        one.save(index, turn)
        sizes.append((tmp_path / "0.checkpoint").stat().st_size)
    one.close(index)

    assert max(sizes) < 4096 + 2000
    assert sorted(sizes) != sizes
    again, loaded = store(tmp_path).load(0)
    assert (names_in(again), loaded.position, loaded.first) == ({i: i * 2 for i in range(30)}, 19, 0)


def test_a_file_that_cannot_be_written_costs_nothing_but_the_checkpoint(tmp_path: Path) -> None:
    path = saved(tmp_path)
    one = store(tmp_path)
    index, _ = one.open(0)
    index.add_page(page([99]))
    path.unlink()
    path.mkdir()
    one.save(index, 60)
    path.rmdir()
    one.save(index, 61)
    one.close(index)

    index, loaded = store(tmp_path).load(0)
    assert (names_in(index), loaded.position, loaded.reason) == ({**EXPECTED, 99: 198}, 61, "")


def test_what_of_a_checkpoint_does_not_fit_takes_no_room(tmp_path: Path) -> None:
    one = store(tmp_path)
    index, _ = one.open(0)
    index.add_page(page(range(200)))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        one.save(index, 60)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert list(tmp_path.iterdir()) == []
    one.save(index, 60)
    assert [path.name for path in tmp_path.iterdir()] == ["0.checkpoint"]
    one.close(index)


def test_a_database_that_cannot_be_opened_gives_way(tmp_path: Path) -> None:
    saved(tmp_path, budget=5)
    (tmp_path / "0.rocksdb" / "CURRENT").write_text("garbage")
    index, loaded = store(tmp_path, budget=5).load(0)

    assert "0.rocksdb" in loaded.reason
    assert (loaded.position, names_in(index)) == (0, {})
    index.close()


@pytest.mark.parametrize(
    "use", [names_in, lambda index: list(index.chunks())], ids=["found", "walked through"]
)
def test_a_damaged_table_costs_one_start_and_not_every_one(tmp_path: Path, use) -> None:
    one = store(tmp_path, budget=5)
    index, _ = one.open(0)
    index.add_page(page(range(2000)))
    one.save(index, 40)
    one.close(index)
    (table,) = (tmp_path / "0.rocksdb").glob("*.sst")
    table.write_bytes(b"\xff" * 200 + table.read_bytes()[200:])
    index, loaded = store(tmp_path, budget=5).load(0)
    assert loaded.position == 40
    with pytest.raises(UnusableStoreError, match="restored from the monitor"):
        use(index)
    index.close()
    index, loaded = store(tmp_path, budget=5).load(0)

    assert "failed while it was in use" in loaded.reason
    assert (loaded.position, names_in(index)) == (0, {})
    index.close()


@pytest.mark.parametrize("budget", [10**6, 5], ids=["memory", "disk"])
def test_ranges_of_another_version_are_left_to_the_monitor(tmp_path: Path, budget: int, monkeypatch) -> None:
    one = store(tmp_path, budget=budget)
    index, _ = one.open(0)
    index.add_page(page(range(10)))
    index.ranges.restore(RangeEntry("w", b"i" * 16, 1, "orders", b"s", b"i", [1, 2], [], [], [], 0))
    with monkeypatch.context() as later:
        later.setattr(ranges, "encode_value", lambda entry: b"\xc3\x01" + bytes(8) + encode_value(entry)[10:])
        one.save(index, 40)
    one.close(index)

    index, loaded = store(tmp_path, budget=budget).load(0)
    assert "another version" in loaded.reason
    assert (loaded.position, names_in(index)) == (0, {})
    index.close()


def test_a_block_of_a_kind_that_is_not_known_is_left_to_the_monitor(tmp_path: Path) -> None:
    path = saved(tmp_path)
    with path.open("ab") as file:
        file.write(checkpoint._block(9, b"later"))
    one = store(tmp_path)
    index, loaded = one.load(0)

    assert "cannot be read" in loaded.reason
    assert (loaded.position, names_in(index)) == (0, {})

    index.add_page(page([7]))
    one.save(index, 45)
    one.close(index)
    index, loaded = store(tmp_path).load(0)
    assert (loaded.reason, loaded.position, names_in(index)) == ("", 45, {7: 14})


def test_a_move_to_disk_without_a_save_falls_back_to_the_file(tmp_path: Path) -> None:
    saved(tmp_path)
    one = store(tmp_path, budget=25)
    index, _ = one.open(0)
    index.add_page(page(range(100, 150)))
    assert index.is_on_disk
    index.close()
    index, loaded = store(tmp_path).load(0)

    assert (names_in(index), loaded.position, index.is_on_disk) == (EXPECTED, 50, False)
    assert "no whole header" in loaded.reason


@contextmanager
def closed_to_us(directory: Path) -> Iterator[None]:
    """A directory as another account has left it; root, who may look everywhere, is somebody else meanwhile."""
    us = os.geteuid()
    directory.chmod(0)
    try:
        if us == 0:
            os.seteuid(65534)
        yield
    finally:
        os.seteuid(us)
        directory.chmod(0o700)


def test_a_directory_that_may_not_be_searched_costs_a_reading_of_the_monitor(tmp_path: Path) -> None:
    """A worker ended with a traceback at each of its starts."""
    with closed_to_us(tmp_path), capture_logs() as said:
        ours = store(tmp_path)
        index, loaded = ours.load(0)
        ours.save(index, 10)

    assert loaded.position == 0
    assert "cannot be read: Permission denied" in loaded.reason
    assert {line["reason"] for line in said} == {"Permission denied"}


@pytest.mark.parametrize("other", [{"topic_id": b"N" * 16}, {"route": "move"}], ids=["cluster", "route"])
def test_two_relays_in_one_directory_read_nothing_of_each_other(tmp_path: Path, other) -> None:
    """Their blocks are of the same sizes, so that what one appends may lie exactly where the other one's ends."""
    one, another = store(tmp_path), store(tmp_path, **other)
    ours, _ = one.open(0)
    one.save(ours, 10)
    theirs, _ = another.open(0)
    another.save(theirs, 10)
    with capture_logs() as said:
        for i in range(2):
            ours.add_page(page([i]))
            one.save(ours, 100 * (i + 1))
            read, loaded = store(tmp_path, **other).load(0)
            assert loaded.position in {10, 0}
            assert not names_in(read)

    assert [line["reason"] for line in said if line["event"] == "checkpoint not written"] == [
        "another relay has written there; give each relay its own [relay] state directory"
    ]
    read, loaded = store(tmp_path).load(0)
    assert (names_in(read), loaded.position) == ({0: 0, 1: 2}, 200)


def test_a_database_in_use_is_not_removed(tmp_path: Path) -> None:
    saved(tmp_path, budget=5)
    holder, _ = store(tmp_path, budget=5).open(0)
    with pytest.raises(Stopped, match="in use"):
        store(tmp_path, budget=5).open(0)

    assert names_in(holder) == EXPECTED
    holder.close()


@pytest.mark.parametrize("said", ["Read-only file system (os error 30)", "No space left on device (os error 28)"])
def test_a_database_on_a_disk_that_takes_nothing_is_waited_for(tmp_path: Path, said: str, monkeypatch) -> None:
    saved(tmp_path, budget=5)

    def refuse(*_: object) -> None:
        raise RuntimeError(said)

    with monkeypatch.context() as disk:
        disk.setattr(rows_on_disk, "Rdict", SimpleNamespace(list_cf=refuse))
        with pytest.raises(Unreachable, match="make room there"):
            store(tmp_path, budget=5).load(0)
    index, loaded = store(tmp_path, budget=5).load(0)

    assert (names_in(index), loaded.position, loaded.reason) == (EXPECTED, 50, ""), "it was not taken for a broken one"
    index.close()


def test_an_index_that_finds_no_place_on_disk_stays_whole_until_there_is_one(tmp_path: Path) -> None:
    state = tmp_path / "state"
    one = store(state, budget=5)
    index, _ = one.open(0)
    state.rmdir()
    state.write_text("in the way")

    for count in (10, 20):
        with pytest.raises(Unreachable, match="cannot be written"):
            index.add_page(page(range(count)))
        assert names_in(index) == {i: i * 2 for i in range(count)}
    state.unlink()
    index.add_page(page(range(30)))

    assert index.is_on_disk
    assert names_in(index) == {i: i * 2 for i in range(30)}
    index.close()


def test_an_outdated_checkpoint_that_cannot_be_removed_is_passed_over(tmp_path: Path) -> None:
    path = saved(tmp_path)
    path.rename(tmp_path / "kept")
    path.mkdir()
    (path / "in the way").touch()

    one = store(tmp_path)
    index, loaded = one.load(0)
    one._files[0].delete()

    assert (loaded.position, names_in(index)) == (0, {})


def test_a_useless_database_that_cannot_be_removed_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0.rocksdb").mkdir()
    (tmp_path / "0.rocksdb" / "RELAY-BROKEN").touch()

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr("relay.monitor.checkpoint.shutil.rmtree", refuse)
        with pytest.raises(Unreachable, match=r"cannot be removed \(Read-only file system\)"):
            store(tmp_path).load(0)

    index, _ = store(tmp_path).load(0)
    assert not index.is_on_disk


@pytest.mark.parametrize(
    ("budget", "what"),
    [(25, "relay.monitor.checkpoint._staleness"), (15, "relay.monitor.rows_on_disk.DiskRows._open")],
    ids=["the monitor's leader is away", "no place on disk"],
)
def test_an_index_that_is_opened_in_vain_counts_for_nothing(tmp_path: Path, budget: int, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker tries again for as long as it takes: what all its tries had counted moved indexes to disk that had room in memory."""
    saved(tmp_path)
    one = store(tmp_path, budget=budget)

    def away(*_: object) -> None:
        raise Unreachable("away")

    with monkeypatch.context() as patch:
        patch.setattr(what, away)
        for _ in range(3):
            with pytest.raises(Unreachable, match="away"):
                one.load(0)

    assert one._budget.used == 0
    index, loaded = one.load(0)
    assert (index.is_on_disk, loaded.position, names_in(index)) == (budget < len(EXPECTED), 50, EXPECTED)
    one.close(index)
