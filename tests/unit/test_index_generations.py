"""An index on disk drops what has left the monitor, whole generations at once, and answers as one that never does."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rocksdict import Options, Rdict, WriteBatch

from relay.message.identity import DIGEST_BYTES
from relay.monitor import rows_on_disk
from relay.monitor.checkpoint import DISK_VERSION, VERSION, CheckpointStore
from relay.monitor.entries import NOT_DELIVERED, Proof
from relay.monitor.index import Budget, DedupIndex
from relay.monitor.rows import CHECKPOINT_FACT, TOPICS_FACT, pack, split
from relay.run.views import RENEW_PERIOD_S, SAVE_PERIOD_S, ViewKeeper
from tests.memory_index import memory_index
from tests.unit.index_on_disk import PLACE, disk_bytes, doubled, entered, hashed, offsets, on_disk
from tests.unit.memory_kafka import MemoryKafka
from tests.unit.numbered_messages import DAY, MONITOR, batch, captured, out, view
from tests.unit.test_carrying import FIRST_LOOK_S, OVERTAKING, QUARTER, held_back, plain
from tests.unit.test_checkpoint import TOPIC_ID, name, names_in, page
from tests.unit.test_numbered_delivery import TopicProcess


def test_a_generation_goes_once_all_of_it_has_left_the_monitor(tmp_path: Path) -> None:
    index = on_disk(tmp_path)
    index.ranges.is_complete_from(0)
    index.add_page(page(range(10)))
    assert index.renew(0, 100)
    index.add_page(page(range(10, 20)))
    index.add_page(page([3], topic="payments"))

    assert not index.renew(99, 150)
    assert offsets(index, range(20)) == doubled(range(20))
    assert index.ranges.complete_from == 0

    assert index.renew(100, 200)
    assert offsets(index, range(20)) == doubled(range(10, 20)) | {3: 6}
    assert index.describe(index.find([name(3)])[0] or b"").topic == "payments"
    assert index.ranges.complete_from == 100

    assert not index.renew(199, 250)
    assert index.renew(200, 300)
    assert (offsets(index, range(20)), index.ranges.complete_from) == ({}, 200)
    index.close()


def test_both_generations_are_one_index(tmp_path: Path) -> None:
    index = on_disk(tmp_path)
    index.add_page(page(range(10), replays=b"\x02" * 10))
    index.renew(0, 100)
    index.add_page(page([1], topic="payments", replays=b"\x03"))
    index.add_page(page([2]))
    index.void(page([4], proof=Proof.VOID, outcomes=bytes([NOT_DELIVERED])))

    assert offsets(index, range(10)) == {i: i * 2 for i in range(10) if i != 4}
    rows = [row for chunk in index._store.chunks() for row in (chunk[i : i + 32] for i in range(0, len(chunk), 32))]
    assert sorted(row[:16] for row in rows) == [name(i) for i in range(10) if i != 4], "each once"
    assert {row[16:] for row in rows if row[:16] == name(1)} == {index.find([name(1)])[0]}, "the later one"
    assert len(index) >= 9
    index.close()


def test_what_outruns_an_entry_stays_as_long_as_that_would(tmp_path: Path) -> None:
    index = on_disk(tmp_path)
    index.add_page(page([1, 2], replays=b"\x02\x02"))
    index.renew(0, 100)
    index.add_page(page([1], topic="payments", replays=b"\x01"))
    index.renew(100, 200)

    assert offsets(index, range(3)) == {1: 2}
    assert index.describe(index.find([name(1)])[0] or b"").topic == "orders"
    index.close()


def test_a_replay_number_goes_with_the_entries_that_bore_it(tmp_path: Path) -> None:
    index = on_disk(tmp_path)
    index.add_page(page([1, 2], replays=b"\x02\x02"))
    index.renew(0, 100)
    index.add_page(page([2], replays=b"\x02"))
    index.close()
    index = on_disk(tmp_path)
    assert [index.replay(name(i)) for i in (1, 2)] == [2, 2]

    index.renew(100, 200)
    index.close()
    index = on_disk(tmp_path)
    assert [index.replay(name(i)) for i in (1, 2)] == [0, 2]
    # Delivered once more, beyond the horizon: from here on it must be known again.
    index.add_page(page([1]))
    assert offsets(index, range(3)) == {1: 2, 2: 4}
    index.renew(200, 300)
    assert [index.replay(name(i)) for i in (1, 2)] == [0, 0]
    index.close()


def test_replay_numbers_that_an_earlier_version_wrote_are_known_beside_later_ones(tmp_path: Path) -> None:
    """It kept them under one key of each generation, the last word of a digest behind those before."""
    index = on_disk(tmp_path)
    index.renew(0, 100)
    index.close()
    for generation, written in (("default", "1:2 2:2 3:4 4:1"), ("1", "2:3 4:2 5:1 4:0")):
        left = Rdict(str(tmp_path / PLACE), Options(raw_mode=True), {"1": Options(raw_mode=True)})
        cells = [tuple(map(int, cell.split(":"))) for cell in written.split()]
        changes = WriteBatch(raw_mode=True)
        changes.put(b"replays", b"".join([name(number) + bytes([replay]) for number, replay in cells]), left.get_column_family_handle(generation))
        left.write(changes)
        left.close()
    index = on_disk(tmp_path)
    assert [index.replay(name(i)) for i in range(1, 6)] == [2, 3, 4, 0, 1]

    index.add_page(page([1, 6], replays=b"\x03\x01"))
    index.void(page([3], proof=Proof.VOID, outcomes=bytes([NOT_DELIVERED])))
    index.close()
    index = on_disk(tmp_path)
    assert [index.replay(name(i)) for i in range(1, 7)] == [3, 3, 0, 0, 1, 1]

    index.renew(100, 200)
    assert [index.replay(name(i)) for i in range(1, 7)] == [3, 3, 0, 0, 1, 1]
    index.renew(200, 300)
    assert not index.has_replays
    index.close()


def test_what_a_redrive_notes_costs_as_much_as_it_is_however_much_was_redriven_before(tmp_path: Path) -> None:
    index = on_disk(tmp_path)
    batches, at_once = 100, 200
    for first in range(0, batches * at_once, at_once):
        index._store.note_replays(b"".join([digest + b"\x01" for digest in split(hashed(range(first, first + at_once)).digests)]))

    assert disk_bytes(tmp_path) < 5 * batches * at_once * 17
    assert list(index._store.chunks()) == []
    index.know_replays()
    assert {index.replay(digest) for digest in split(hashed(range(batches * at_once)).digests)} == {1}
    index.close()


def test_the_disk_holds_two_retentions_however_long_the_process_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_on_disk, "_LOG_BYTES", 1 << 18)
    index = on_disk(tmp_path)
    step, retention, rounds = 2_000, 10_000, 30
    held, sizes = list[int](), list[int]()
    for first in range(0, rounds * retention, step):
        entries = hashed(range(first, first + step))
        index.add_page(entries)
        high = first + step
        low = max(0, high - retention)
        index.renew(low, high)
        if high % retention == 0:
            assert None not in index.find(split(hashed(range(low, high)).digests)), "what is in the monitor is found"
            held.append(sum(len(chunk) for chunk in index._store.chunks()) // 32)
            sizes.append(disk_bytes(tmp_path))
    index.close()

    assert max(held) <= 2 * retention + step
    # Files go in the background: now and then they are seen to be gone. All that was entered would be five times that.
    assert min(sizes[-10:]) < 2 * (2 * retention * 32 + (1 << 18)) < rounds * retention * 32 / 5
    assert len(Rdict.list_cf(str(tmp_path / PLACE))) <= 3, "the default one and two generations"


Step = tuple[str, list[int], int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "enter", "enter", "redrive", "void", "remove", "carry", "renew", "reopen"]),
        st.lists(st.integers(0, 11), min_size=1, max_size=6, unique=True),
        st.integers(0, 12),
    ),
    max_size=40,
)  # fmt: skip


class Model:
    """One index that never drops anything: what an entry may be, and where in the monitor it was last written.

    A replay number that has left the monitor is known or not: what it outruns may be taken or left.
    """

    def __init__(self) -> None:
        self.entries: dict[int, tuple[set[int | None], int]] = {}
        self.replays: dict[int, tuple[int, int]] = {}

    def enter(self, numbers: list[int], offset: int, replay: int, at: int, low: int) -> None:
        for number in numbers:
            highest, noted = self.replays.get(number, (0, at))
            known, _ = self.entries.get(number, ({None}, at))
            if highest <= replay:
                self.entries[number] = ({offset}, at)
                if replay:
                    self.replays[number] = (replay, at)
            elif noted < low:
                self.entries[number] = ({*known, offset}, at)
            else:
                self.entries[number] = (known, at)
                self.replays[number] = (highest, at)

    def remove(self, numbers: list[int], *, voided: bool) -> None:
        for number in numbers:
            self.entries.pop(number, None)
            if voided:
                self.replays.pop(number, None)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_nothing_that_the_monitor_holds_is_lost_and_nothing_removed_comes_back(tmp_path: Path, steps: list[Step]) -> None:
    directory = Path(mkdtemp(dir=tmp_path))
    index, model, low = on_disk(directory), Model(), 0
    for at, (what, numbers, amount) in enumerate(steps):
        if what in {"enter", "redrive"}:
            replay = amount % 3 if what == "redrive" else 0
            index.add_page(entered(numbers, at, replay))
            model.enter(numbers, at, replay, at, low)
        elif what == "void":
            index.void(page(numbers, proof=Proof.VOID, outcomes=bytes([NOT_DELIVERED]) * len(numbers)))
            model.remove(numbers, voided=True)
        elif what == "remove":
            index.remove([name(number) for number in numbers])
            model.remove(numbers, voided=False)
        elif what == "carry":
            for one in list(index.held([name(number) for number in numbers])):
                number = int.from_bytes(one.digest, "big")
                index.add_page(entered([number], one.offset, one.replay))
                model.enter([number], one.offset, one.replay, at, low)
        elif what == "renew":
            low = max(low, at - amount)
            index.renew(low, at + 1)
        else:
            index.close()
            index = on_disk(directory)
        found = offsets(index, range(12))
        for number in range(12):
            allowed, written = model.entries.get(number, ({None}, at))
            assert found.get(number) in (allowed if written >= low else {*allowed, None}), (what, number)
    walked = [chunk[i : i + 16] for chunk in index._store.chunks() for i in range(0, len(chunk), 32)]
    assert sorted(walked) == [name(number) for number in found] if steps else not walked
    index.close()


def earlier(directory: Path, numbers: range, position: int, version: int) -> None:
    """A folder as the versions before wrote it: everything in one table, with the facts."""
    facts = {"version": version, "relay": "shop", "route": "copy", "topic_id": TOPIC_ID.hex(), "partition": 0}
    database = Rdict(str(directory / PLACE), Options(raw_mode=True))
    rows, changes = pack(page(numbers), 0), WriteBatch(raw_mode=True)
    for at in range(0, len(rows), 32):
        changes.put(rows[at : at + 16], rows[at + 16 : at + 32])
    database.write(changes)
    database[TOPICS_FACT] = orjson.dumps(["orders"])
    database[CHECKPOINT_FACT] = orjson.dumps({**facts, "first": position, "position": position})
    database.close()


class Marks:
    def __init__(self) -> None:
        self.low, self.high, self.asked = 0, 10**9, 0

    def __call__(self, _partition: int) -> tuple[int, int]:
        self.asked += 1
        return self.low, self.high


def store(directory: Path, marks: Marks, budget: int = 5) -> CheckpointStore:
    return CheckpointStore(
        directory, relay="shop", route="copy", topic_id=TOPIC_ID, budget=Budget(budget), watermarks=marks
    )


@pytest.mark.parametrize("version", [VERSION, 3])
def test_an_index_of_an_earlier_version_opens_and_its_entries_go_in_time(tmp_path: Path, version: int) -> None:
    earlier(tmp_path, range(100), 40, version)
    marks = Marks()
    one = store(tmp_path, marks)
    index, loaded = one.load(0)
    assert (loaded.position, loaded.first, loaded.reason) == (40, 40, "")
    assert offsets(index, range(200)) == doubled(range(100))

    marks.high = 100
    one.save(index, 90)
    one.renew(index)
    index.add_page(page(range(100, 110)))
    assert offsets(index, range(200)) == doubled(range(110))
    marks.low, marks.high = 100, 200
    one.renew(index)
    one.save(index, 190)

    assert offsets(index, range(200)) == doubled(range(100, 110))
    one.close(index)
    left = Rdict(str(tmp_path / PLACE), Options(raw_mode=True))
    assert not [key for key, _ in left.items() if len(key) == DIGEST_BYTES], "nothing is left where the facts are"
    left.close()
    index, loaded = store(tmp_path, marks).load(0)
    assert (loaded.position, loaded.first, loaded.reason) == (190, 200, ""), "nothing is read anew"
    assert offsets(index, range(200)) == doubled(range(100, 110))
    facts = orjson.loads(index.recall(CHECKPOINT_FACT) or b"")
    assert facts["version"] == DISK_VERSION == 4, "who knows no generations, or no such replay numbers, must not take it for whole"
    index.close()


def test_an_index_that_is_opened_after_a_renewal_is_kept_until_its_older_generation_is_gone(tmp_path: Path) -> None:
    marks = Marks()
    one = store(tmp_path, marks)
    index, _ = one.open(0)
    index.add_page(page(range(10)))
    marks.high = 100
    one.save(index, 40)
    one.renew(index)
    index.add_page(page(range(10, 20)))
    one.save(index, 150)
    one.close(index)

    marks.low, marks.high = 90, 200
    index, loaded = store(tmp_path, marks).load(0)
    assert (loaded.position, loaded.reason, names_in(index)) == (150, "", doubled(range(20)))
    index.close()
    marks.low = 101
    index, loaded = store(tmp_path, marks).load(0)
    assert "aged out" in loaded.reason
    assert names_in(index) == {}
    index.close()


def test_the_monitor_is_asked_only_for_an_index_on_disk(tmp_path: Path) -> None:
    marks = Marks()
    one = store(tmp_path, marks, budget=100)
    index, _ = one.open(0)
    index.add_page(page(range(10)))
    one.save(index, 40)
    one.renew(index)
    assert (index.is_on_disk, marks.asked) == (False, 0)

    index.add_page(page(range(200)))
    one.save(index, 40)
    one.renew(index)
    assert (index.is_on_disk, marks.asked) == (True, 1)
    one.close(index)


def test_a_keeper_has_its_indexes_renewed_now_and_then_behind_a_save() -> None:
    said: list[tuple[str, float]] = []
    now = 0.0

    class Seen:
        def open(self, partition: int) -> tuple[DedupIndex, int]:
            return memory_index(partition), 0

        def save(self, index: DedupIndex, monitor_offset: int) -> None:
            said.append(("save", now))

        def renew(self, index: DedupIndex) -> None:
            said.append(("renew", now))

        def close(self, index: DedupIndex) -> None:
            index.close()

    keeper = ViewKeeper(Seen(), lambda: now)
    keeper.take({0})
    for now in (1.0, SAVE_PERIOD_S, RENEW_PERIOD_S, RENEW_PERIOD_S + 1, 2 * RENEW_PERIOD_S):
        keeper.tend(now)

    assert said == [
        ("save", SAVE_PERIOD_S),
        *[(what, RENEW_PERIOD_S * turn) for turn in (1, 2) for what in ("save", "renew")],
    ]


def test_what_is_opened_again_keeps_its_filters(tmp_path: Path) -> None:
    index = on_disk(tmp_path)
    index.renew(0, 1)
    index.close()
    on_disk(tmp_path).close()

    newest = max((tmp_path / PLACE).glob("OPTIONS-*"), key=lambda path: path.stat().st_mtime_ns)
    filters = [line.strip() for line in newest.read_text().splitlines() if "filter_policy=" in line]
    assert filters == ["filter_policy=bloomfilter"] * 2


class LongProcess(TopicProcess):
    """A worker's process whose index is on disk, and which keeps its partition."""

    def __init__(self, kafka: MemoryKafka, directory: Path) -> None:
        self.kafka, self.index = kafka, on_disk(directory)
        super().__init__(kafka, opened=lambda number: view(number, self.index))

    def renew(self) -> bool:
        return self.index.renew(self.kafka.low.get(MONITOR, 0), len(self.kafka.logs[MONITOR]))


def test_what_is_written_again_outlasts_the_generation_that_it_lay_in(tmp_path: Path) -> None:
    kafka = MemoryKafka()
    process = LongProcess(kafka, tmp_path)
    process.delivery.submit(held_back(OVERTAKING))
    process.delivery.tend(0.0)
    assert process.renew()
    left = len(kafka.logs[MONITOR])

    process.delivery.tend(FIRST_LOOK_S)
    process.delivery.tend(FIRST_LOOK_S + QUARTER)
    kafka.low[MONITOR] = left
    assert process.renew(), "the generation in which they were entered is gone"

    before = out(kafka)
    process.delivery.submit(held_back([plain(0), *OVERTAKING]))
    assert out(kafka) == [*before, "m-0"]
    process.index.close()


def test_a_repeat_of_what_was_dropped_is_known_by_its_number_and_no_conflict(tmp_path: Path) -> None:
    kafka = MemoryKafka()
    process = LongProcess(kafka, tmp_path)
    process.delivery.submit(batch([captured(n) for n in (1, 2, 3)], 3))
    process.delivery.tend(1.0)
    process.delivery.tend(DAY)
    process.delivery.tend(2 * DAY)
    process.renew()
    kafka.low[MONITOR] = len(kafka.logs[MONITOR])
    assert process.renew()
    assert not any(process.index.find([captured(n).digest for n in (1, 2, 3)])), "the digests are gone"

    process.delivery.submit(batch([captured(2, offset=70), captured(4)], 80, first=3))

    assert out(kafka) == ["i1-0-1", "i1-0-2", "i1-0-3", "i1-0-4"]
    assert (process.delivery.counts.duplicates, process.delivery.counts.conflicts) == (1, 0)
    process.index.close()

