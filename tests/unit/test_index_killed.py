"""An index on disk that is killed, with its machine or alone, while a generation goes: it opens as it was, and goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Rdict

from relay.monitor import rows_on_disk
from relay.monitor.rows import CHECKPOINT_FACT
from relay.monitor.rows_on_disk import UnusableStoreError
from tests.unit.index_on_disk import PLACE, doubled, offsets, on_disk
from tests.unit.test_checkpoint import name, names_in, page


class Watched:
    """Says when the database was changed; a copy of its files at that moment is what a killed process leaves."""

    changed: Callable[[], None]

    def __init__(self, path: str, *given: object) -> None:
        self._database = Rdict(path, *given)

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self._database[key] = value
        self.changed()

    def __getattr__(self, called: str) -> Any:
        value = getattr(self._database, called)
        if called not in {"write", "create_column_family", "drop_column_family", "compact_range", "delete"}:
            return value

        def through(*given: Any) -> Any:
            result = value(*given)
            self.changed()
            return result

        return through

    list_cf = staticmethod(Rdict.list_cf)
    destroy = staticmethod(Rdict.destroy)


@contextmanager
def copies(directory: Path, into: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Copy the directory after each change to a database that is opened inside."""
    made: list[Path] = []

    def copy(*_: object) -> None:
        made.append(into / str(len(made)))
        shutil.copytree(directory, made[-1])

    with monkeypatch.context() as patch:
        patch.setattr(Watched, "changed", copy, raising=False)
        patch.setattr(rows_on_disk, "Rdict", Watched)
        yield made


def test_killed_at_each_step_it_opens_as_it_was_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "live").mkdir()
    with copies(tmp_path / "live", tmp_path / "copies", monkeypatch) as made:
        live = on_disk(tmp_path / "live")
        live.add_page(page(range(10)))
        killed: list[tuple[Path, int, range, range]] = []
        for round_ in range(1, 5):
            begun, high, low = len(made), round_ * 100, max(0, (round_ - 1) * 100)
            live.renew(low, high)
            # What the last round entered lies above the low watermark; all before may be gone or not.
            needed = range((round_ - 1) * 10, round_ * 10)
            killed += [(copy, high, needed, range(round_ * 10)) for copy in made[begun:]]
            live.add_page(page(range(round_ * 10, round_ * 10 + 10)))
        live.close()

    assert len(killed) == 2 + 4 + 3 + 3, "begin and say the end; empty the first one or drop another before that"
    for copy, high, needed, all_before in killed:
        index = on_disk(copy)
        found = offsets(index, all_before)
        assert found.items() >= doubled(needed).items()
        assert found.items() <= doubled(all_before).items()
        assert index.topics == ["orders"]
        # It goes on: what comes now is kept, and what was there before goes when the monitor has it no more.
        come = range(1000, 1010)
        index.add_page(page(come))
        for low in (high - 1, high - 1, high + 50, high + 50):
            index.renew(low, high + 50)
            index.add_page(page(come))
            assert low >= high or offsets(index, needed) == doubled(needed)
        assert offsets(index, come) == doubled(come)
        assert offsets(index, all_before) == {}
        assert len(Rdict.list_cf(str(copy / PLACE))) <= 3
        index.close()


def test_a_machine_that_dies_shows_a_state_that_was(tmp_path: Path) -> None:
    """The log's tail is lost: whatever the facts say is there, is there, and what was removed before them is not."""
    live = on_disk(tmp_path / "live")
    live.add_page(page(range(10)))
    live.renew(0, 100)
    sizes = []
    for turn in range(10, 40):
        live.add_page(page([turn]))
        live.remove([name(turn - 10)])
        live.remember(CHECKPOINT_FACT, b"%d" % turn)
        (written,) = (tmp_path / "live" / PLACE).glob("*.log")
        sizes.append(written.stat().st_size)
    shutil.copytree(tmp_path / "live", tmp_path / "whole")
    live.close()

    opened = 0
    for cut in range(sizes[0] - 40, sizes[-1], 97):
        copy = tmp_path / f"cut-{cut}"
        shutil.copytree(tmp_path / "whole", copy)
        with (copy / PLACE / written.name).open("r+b") as log:
            log.truncate(cut)
        try:
            index = on_disk(copy)
        except UnusableStoreError:
            continue  # it is removed, and the monitor read anew
        opened += 1
        said = int(index.recall(CHECKPOINT_FACT) or b"9")
        assert names_in(index).items() >= doubled(range(said - 9 + 1, said + 1)).items()
        assert not {i for i in names_in(index) if i <= said - 10}
        index.close()
        shutil.rmtree(copy)
    assert opened > 20
