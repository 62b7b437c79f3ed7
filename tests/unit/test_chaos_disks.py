"""A full disk is the kernel's own refusal, it ends when it should, and what a worker keeps on it is whole afterwards."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from relay.chaos.disks import IMAGES, Disk, NotPermitted, mount
from relay.world import schedule
from tests.unit.test_checkpoint import names_in, page, store

MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    try:
        made = Disk.mounted(tmp_path / "image.ext4", tmp_path / "place", 16 * MIB)
    except NotPermitted as reason:
        pytest.skip(f"not permitted here: {reason}")
    yield made
    made.close()


def refused(write: Callable[[], object]) -> int | None:
    try:
        write()
    except OSError as error:
        return error.errno
    return None


def test_a_full_disk_takes_nothing_and_a_freed_one_does(disk: Disk) -> None:
    file = disk.place / "file"

    disk.fill()
    assert refused(lambda: file.write_bytes(b"x")) == errno.ENOSPC

    disk.free()
    assert refused(lambda: file.write_bytes(b"x" * MIB)) is None


def test_it_stays_full_when_others_make_room(disk: Disk) -> None:
    (disk.place / "old").write_bytes(b"x" * 4 * MIB)
    stopping, tried = schedule.event(), list[int | None]()

    def make_room() -> None:
        (disk.place / "old").unlink()
        disk.fill()  # as the next round does
        tried.append(refused(lambda: (disk.place / "new").write_bytes(b"x" * MIB)))
        stopping.set()

    thread = schedule.start_thread("room", make_room)
    disk.keep_full(60, stopping)
    thread.join(10)

    assert tried == [errno.ENOSPC]
    assert refused(lambda: (disk.place / "new").write_bytes(b"x" * MIB)) is None


def test_it_is_unmounted_in_the_end_and_takes_only_what_was_written(disk: Disk) -> None:
    disk.fill()

    disk.close()

    assert not disk.place.is_mount()
    assert list(disk.place.iterdir()) == []
    assert (disk.place.parent / "image.ext4").stat().st_blocks * 512 < 8 * MIB


def test_where_it_is_not_permitted_nothing_is_left_and_people_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    disks = mount(tmp_path, {"state": (tmp_path / "state", MIB)})

    assert disks.by_name == {}
    assert "not permitted here (only root may mount file systems)" in disks.told
    assert "a limit on its files' size" in disks.told
    assert not (tmp_path / IMAGES).exists()


def test_a_checkpoint_that_finds_no_room_is_said_and_costs_nothing_once_there_is_some(disk: Disk) -> None:
    one = store(disk.place / "route")
    index, _ = one.open(0)
    index.add_page(page(range(10)))
    one.save(index, 40)
    disk.fill()

    index.add_page(page(range(10, 200)))
    with capture_logs() as logs:
        one.save(index, 60)

    assert [line["event"] for line in logs] == ["checkpoint not written"]
    assert "No space left" in logs[0]["reason"]
    # A worker killed now finds what was whole before: it reads more of the monitor, and nothing wrong.
    found, position = store(disk.place / "route").open(0)
    assert (names_in(found), position) == ({n: n * 2 for n in range(10)}, 40)
    disk.free()
    one.save(index, 80)
    found, position = store(disk.place / "route").open(0)
    assert (names_in(found), position) == ({n: n * 2 for n in range(200)}, 80)


def test_a_worker_that_starts_when_the_disk_is_full_does_without_a_checkpoint(disk: Disk) -> None:
    directory = disk.place / "route" / "0"
    disk.fill()
    with capture_logs() as logs:
        one = store(directory)
        index, position = one.open(0)
        index.add_page(page(range(10)))
        one.save(index, 40)
    assert (position, [line["event"] for line in logs]) == (0, ["no place for checkpoints", "checkpoint not written"])

    disk.free()
    one.save(index, 60)

    found, position = store(directory).open(0)
    assert (names_in(found), position) == ({n: n * 2 for n in range(10)}, 60)
