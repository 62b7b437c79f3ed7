"""The deduplication index behaves the same in memory and on disk, and when it moves between them."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import pytest
from rocksdict import Rdict

from relay.message.errors import Stopped
from relay.message.record import LogPartition
from relay.monitor import rows_on_disk
from relay.monitor.entries import Page, Proof
from relay.monitor.index import Budget, Change, DedupIndex, Kind, open_index
from relay.monitor.rows import MemoryRows
from relay.monitor.rows_on_disk import DiskRows
from tests.memory_index import memory_index

PARTITION = 3


def digest(name: object) -> bytes:
    return blake2b(repr(name).encode(), digest_size=16).digest()


def content(name: object) -> bytes:
    return blake2b(repr(name).encode(), digest_size=8).digest()


def page(
    offsets: list[int],
    *,
    topic: str = "orders",
    outcomes: bytes | None = None,
    replays: bytes = b"",
    proof: Proof = Proof.SEALED,
    names: list[object] | None = None,
) -> Page:
    return Page(
        "w", b"i" * 16, 1, proof, None, topic, PARTITION,
        digests=b"".join(map(digest, names or offsets)),
        contents=b"".join(map(content, names or offsets)),
        offsets=offsets,
        outcomes=bytes(len(offsets)) if outcomes is None else outcomes,
        replays=replays,
    )  # fmt: skip


Opener = Callable[[], DedupIndex]


@pytest.fixture(params=["memory", "disk", "moved"])
def opened(request: pytest.FixtureRequest, tmp_path: Path):
    """An empty index; the one that moves does so at its third entry."""
    index = {
        "memory": lambda: DedupIndex(PARTITION, MemoryRows()),
        "disk": lambda: DedupIndex(PARTITION, DiskRows(tmp_path / "disk")),
        "moved": lambda: open_index(tmp_path, PARTITION, Budget(2)),
    }[request.param]()
    yield index
    index.close()


def found(index: DedupIndex, names: list[object]) -> dict[object, tuple[bytes, str, int]]:
    values = index.find([digest(name) for name in names])
    return {
        name: tuple(index.describe(value))
        for name, value in zip(names, values, strict=True)
        if value is not None
    }


def test_finds_what_pages_entered_and_nothing_else(opened: DedupIndex) -> None:
    opened.add_page(page([5, 6]))
    opened.add_page(page([70000, (1 << 55) - 2], topic="payments"))

    assert found(opened, [5, 6, 7, 70000, (1 << 55) - 2]) == {
        5: (content(5), "orders", 5),
        6: (content(6), "orders", 6),
        70000: (content(70000), "payments", 70000),
        (1 << 55) - 2: (content((1 << 55) - 2), "payments", (1 << 55) - 2),
    }
    assert opened.find([]) == []
    assert len(opened) >= 4
    assert all(len(value) == 16 for value in opened.find([digest(5)]) if value)


def test_an_unknown_offset_is_told_apart_from_every_offset(opened: DedupIndex) -> None:
    opened.add_page(page([-1, 0]))

    assert found(opened, [-1, 0]) == {-1: (content(-1), "orders", -1), 0: (content(0), "orders", 0)}


def test_an_offset_beyond_55_bits_is_refused_instead_of_cut(opened: DedupIndex) -> None:
    with pytest.raises(ValueError, match="55 bits"):
        opened.add_page(page([1 << 55]))


def test_the_later_entry_wins(opened: DedupIndex) -> None:
    opened.add_page(page([1], names=["a"]))
    opened.add_page(page([2], names=["a"], topic="payments"))

    assert found(opened, ["a"]) == {"a": (content("a"), "payments", 2)}


def test_the_higher_replay_number_wins_over_the_later_entry(opened: DedupIndex) -> None:
    opened.add_page(page([1, 2], names=["a", "b"], replays=b"\x02\x00"))
    opened.add_page(page([3, 4], names=["a", "b"], replays=b"\x01\x01"))
    opened.add_page(page([5, 6], names=["a", "b"]))

    assert {name: offset for name, (_, _, offset) in found(opened, ["a", "b"]).items()} == {"a": 1, "b": 4}


def test_the_higher_replay_number_wins_in_one_page_too(opened: DedupIndex) -> None:
    opened.add_page(page([1, 2, 3], names=["a", "a", "a"], replays=b"\x01\x02\x01"))

    assert found(opened, ["a"])["a"][2] == 2
    assert opened.replay(digest("a")) == 2


def test_void_takes_an_entry_back_or_to_its_older_outcome(opened: DedupIndex) -> None:
    opened.add_page(page([1, 2, 3], names=["a", "b", "c"], replays=b"\x00\x01\x00"))
    opened.void(page([1, 2], names=["a", "b"], outcomes=b"\xff\x01", proof=Proof.VOID))

    assert set(found(opened, ["a", "b", "c"])) == {"b", "c"}

    # The voided replay number is forgotten too: an entry without one counts again.
    opened.add_page(page([9], names=["b"]))

    assert found(opened, ["b"])["b"][2] == 9


def test_remove_passes_over_unknown_digests(opened: DedupIndex) -> None:
    opened.add_page(page([1, 2]))
    opened.remove([digest(1), digest("never seen")])

    assert set(found(opened, [1, 2])) == {2}


def test_keep_below_drops_what_the_destination_does_not_hold(opened: DedupIndex) -> None:
    opened.add_page(page([8, 9, 10, 11, -1]))
    opened.add_page(page([100, 101], topic="payments"))
    opened.add_page(page([500], topic="unknown to the database"))

    dropped = opened.keep_below(
        {
            LogPartition("orders", PARTITION): 10,
            LogPartition("payments", PARTITION): 200,
            LogPartition("unknown to the database", PARTITION): 0,
        }
    )

    assert dropped == 4
    assert set(found(opened, [8, 9, 10, 11, -1, 100, 101, 500])) == {8, 9, 100, 101}


def test_keep_below_keeps_what_came_from_a_topic_that_is_read_no_more(opened: DedupIndex) -> None:
    opened.add_page(page([8, 9, 10]))
    opened.add_page(page([100, -1], topic="left the route"))

    assert opened.keep_below({LogPartition("orders", PARTITION): 10}) == 1
    assert set(found(opened, [8, 9, 10, 100, -1])) == {8, 9, 100, -1}


def test_many_topics_have_numbers_up_to_a_limit_that_is_named(opened: DedupIndex) -> None:
    for i in range(255):
        opened.add_page(page([i], topic=f"topic-{i}"))

    assert found(opened, [0, 254]) == {0: (content(0), "topic-0", 0), 254: (content(254), "topic-254", 254)}
    with pytest.raises(Stopped, match="255 log topics"):
        opened.add_page(page([1], topic="one more"))


def test_its_changes_build_an_equal_index(opened: DedupIndex) -> None:
    opened.add_page(page([1, 2, 3], replays=b"\x00\x07\x00"))
    opened.remove([digest(3)])
    copy = memory_index(PARTITION)
    assert copy.adopt(opened.topics)
    for change in opened.chunks():
        copy.apply(change)
    copy.add_page(page([90, 20], names=[1, 2]))

    assert found(copy, [1, 2, 3]) == {1: (content(1), "orders", 90), 2: (content(2), "orders", 2)}


def test_topic_numbers_that_contradict_are_refused() -> None:
    index = memory_index(0)
    index.add_page(page([1]))
    index.add_page(page([2]))

    assert not index.adopt(["payments"])
    assert index.adopt(["orders", "payments"])
    assert index.topics == ["orders", "payments"]


def test_the_journal_holds_changes_once_and_in_order() -> None:
    index = memory_index(0)
    index.add_page(page([1]))
    index.keep_journal()
    index.add_page(page([2]))
    index.remove([digest(2)])

    assert [change.kind for change in index.take_journal()] == [Kind.ENTERED, Kind.REMOVED]
    assert index.take_journal() == []


def test_a_shared_budget_moves_the_index_that_grows_and_is_given_back(tmp_path: Path) -> None:
    budget = Budget(10)
    first, second = (open_index(tmp_path, partition, budget) for partition in (0, 1))
    first.add_page(page(list(range(7))))
    assert (first.is_on_disk, budget.used) == (False, 7)

    second.add_page(page(list(range(100, 108)), replays=b"\x03" * 8))

    assert (first.is_on_disk, second.is_on_disk, budget.used) == (False, True, 7)
    assert len(found(second, list(range(100, 108)))) == 8

    second.close()
    again = open_index(tmp_path, 1, budget)
    again.add_page(page([999], names=[100]))

    assert again.is_on_disk
    assert found(again, [100, 107]) == {
        100: (content(100), "orders", 100),
        107: (content(107), "orders", 107),
    }
    first.close()
    again.close()
    assert budget.used == 0


def test_a_cleared_index_is_empty_and_can_be_used_again(opened: DedupIndex) -> None:
    opened.add_page(page([1, 2, 3], replays=b"\x01\x01\x01"))
    opened.clear()

    assert found(opened, [1, 2, 3]) == {}
    assert list(opened.chunks()) == []
    opened.add_page(page([4], names=[1], topic="payments"))
    assert found(opened, [1]) == {1: (content(1), "payments", 4)}


def test_a_directory_in_use_is_named(tmp_path: Path) -> None:
    one = DiskRows(tmp_path / "x")
    with pytest.raises(Stopped, match="in use by another process"):
        DiskRows(tmp_path / "x")
    one.close()


def test_a_library_that_finds_nothing_is_refused_before_every_repeat_passes_for_new(tmp_path: Path, monkeypatch) -> None:
    class Blind:
        def __init__(self, *given: object) -> None:
            self._database = Rdict(*given)

        def get(self, key: object) -> object:
            return [None] * len(key) if isinstance(key, list) else None

        def __getattr__(self, name: str) -> object:
            return getattr(self._database, name)

    with monkeypatch.context() as patch:
        patch.setattr(rows_on_disk, "Rdict", Blind)
        with pytest.raises(Stopped, match="does not find what was just written there: rocksdict"):
            DiskRows(tmp_path / "x")
    DiskRows(tmp_path / "x").close()


def test_applying_changes_twice_changes_nothing() -> None:
    index = memory_index(0)
    index.keep_journal()
    index.add_page(page([1, 2], replays=b"\x01\x00"))
    index.void(page([1], outcomes=b"\xff", proof=Proof.VOID))
    changes: list[Change] = index.take_journal()
    before = sorted(change.data for change in index.chunks())
    for change in changes:
        index.apply(change)

    assert sorted(change.data for change in index.chunks()) == before
