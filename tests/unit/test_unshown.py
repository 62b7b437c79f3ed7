"""A commit whose marker an output never got: what an abort takes there is written again, and strangers hold nobody up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from zlib import crc32

import pytest
from structlog.testing import capture_logs

from relay.delivery.batch import Batch
from relay.delivery.topic import sealed, sightings, unshown
from relay.delivery.topic.route import TopicDelivery
from relay.delivery.topic.sealed import SealedProducer
from relay.delivery.topic.sightings import HANGS_AFTER_S, TRANSACTIONS_MAX, Committed, Sightings
from relay.message.envelope import DEAD_CODE, OUT_DIGEST
from relay.message.errors import InDoubt, MessageRejected, RecordRefused, Retriable, Stopped, Unreachable
from relay.message.record import LogMessage, LogPartition, Record
from relay.monitor.entries import Begin, OutputStart, decode
from tests.unit.memory_kafka import LETTERS, MemoryKafka, MemoryReader, Unit
from tests.unit.test_recovery_again import (
    COUNT,
    LOG,
    MESSAGES,
    MONITOR,
    OUT,
    Killed,
    Process,
    delivered,
    killed_at,
    message,
    view,
    work,
)
from tests.unit.test_recovery_beside_others import Isolated, StableReader, recover_for_good

DEAD = LogPartition("dead", 0)
FAULT = MessageRejected("decode", "no_id", "it has no id")


class LeftOut(Isolated):
    """Places of ``left_out`` never hear of commits; what is open there then is ended with the id's next end there."""

    def __init__(self) -> None:
        super().__init__()
        self.left_out: set[LogPartition] = set()
        self._hanging: dict[tuple[str, LogPartition], list[Unit]] = defaultdict(list)

    def end(self, transactional_id: str, *, commit: bool) -> None:
        unit = self.open.get(transactional_id)
        super().end(transactional_id, commit=commit)
        for place, records in self.logs.items() if unit is not None else ():
            mine = [one for one in records if one.unit is unit]
            if mine and commit and place in self.left_out:
                left = Unit()
                for one in mine:
                    one.unit = left
                self._hanging[transactional_id, place].append(left)
            elif mine:
                for hung in self._hanging.pop((transactional_id, place), ()):
                    hung.committed = commit

    def late_request(self) -> None:
        """A late copy of a request opens an empty transaction, whose timeout aborts what hangs."""
        hung, self._hanging = self._hanging, defaultdict(list)
        for units in hung.values():
            for unit in units:
                unit.committed = False


class Away(LeftOut):
    """An output whose leader goes away: nobody says where it ends."""

    is_away = False
    place = OUT

    def reader(self, *, committed: bool, meanwhile: Callable[[], object] = bool) -> MemoryReader:
        return AwayReader(self, committed, meanwhile)


class AwayReader(StableReader):
    _kafka: Away

    def ends(self, places: Collection[LogPartition], _wait_s: float | None = None) -> dict[LogPartition, int]:
        if self._kafka.place in places and self._kafka.is_away:
            raise Unreachable("no leader")
        return super().ends(places)


class Worker:
    """A worker's process on a log of ``count`` messages; those of ``bad`` cannot be read."""

    def __init__(
        self, kafka: MemoryKafka, count: int = 6, bad: Collection[int] = (), keeps_all: bool = True, outputs: int = 1,
        output_id: bytes = b"",
    ) -> None:  # fmt: skip
        self.kafka = kafka
        self.messages = [message(n)._replace(fault=FAULT if n in bad else None) for n in range(count)]
        if LOG not in kafka.logs:
            log = kafka.transaction("publisher")
            log.init()
            for n in range(count):
                log.produce(LOG, b"k", b"%d" % n)
            log.commit()
        self.delivery = TopicDelivery(
            kafka, route="main", group_id="g", transactional_id="w", monitor_topic="monitor", topic="out",
            topic_partitions=outputs, letters=LETTERS, stop_on_dead=False, derive=self.derive,
            keeps_all=keeps_all, output_id=output_id,
        )  # fmt: skip

    def derive(self, record: Record, _topic: str, _partition: int) -> LogMessage | None:
        return self.messages[record.offset() or 0]

    def recover(self) -> None:
        self.delivery.recover(
            [LOG], [view()], self.kafka, lambda stored, *_: {p: at or 0 for p, at in stored.items()}, {"log": b"id"}
        )

    def recover_for_good(self) -> None:
        for _ in range(5):
            with suppress(Retriable):
                return self.recover()
        raise AssertionError("it looks again without end")

    def submit(self, first: int, end: int) -> None:
        self.delivery.submit(Batch(1, self.messages[first:end], {LOG: first}, {LOG: end}, {LOG: end}, b"member"))


def lost_at_the_end(bad: Collection[int] = ()) -> LeftOut:
    """A worker's last transaction hangs in output and dead letters, and the worker is gone."""
    kafka = LeftOut()
    worker = Worker(kafka, bad=bad)
    worker.recover()
    worker.submit(0, 3)
    kafka.left_out = {OUT, DEAD}
    worker.submit(3, 6)
    kafka.left_out = set()
    return kafka


def letters(kafka: MemoryKafka) -> list[tuple[int, str]]:
    return [(int(one.key() or b"", 16), (dict(one.headers())[DEAD_CODE] or b"").decode()) for one in kafka.visible(DEAD)]


def begins(kafka: MemoryKafka) -> list[Begin]:
    entries = [decode(one.key(), one.value()) for one in kafka.logs[MONITOR]]
    return [entry for entry in entries if isinstance(entry, Begin)]


def stranger(kafka: MemoryKafka) -> None:
    other = kafka.transaction("stranger")
    other.init()
    other.begin()
    other.produce(OUT, None, b"of a stranger")


def delivered_to(kafka: MemoryKafka, number: int) -> list[int]:
    return [int(dict(one.headers())[OUT_DIGEST], 16) for one in kafka.visible(LogPartition("out", number))]


def test_what_hangs_is_aborted_and_written_again() -> None:
    kafka = lost_at_the_end()
    assert delivered(kafka) == [0, 1, 2]
    position, _ = kafka.group[LOG]

    Worker(kafka).recover_for_good()

    assert delivered(kafka) == list(range(6))
    assert kafka.group[LOG][0] == position
    Worker(kafka).recover_for_good()
    assert delivered(kafka) == list(range(6)), "and once only"


def test_what_has_left_the_log_meanwhile_is_a_dead_letter() -> None:
    kafka = lost_at_the_end()
    kafka.low[LOG] = 5

    Worker(kafka).recover_for_good()

    assert delivered(kafka) == [0, 1, 2, 5]
    assert letters(kafka) == [(3, "output_lost"), (4, "output_lost")]


def test_a_letter_that_is_lost_with_its_message_says_so() -> None:
    kafka = lost_at_the_end(bad={4, 5})
    kafka.low[LOG] = 5

    Worker(kafka, bad={5}).recover_for_good()

    assert delivered(kafka) == [0, 1, 2]
    assert sorted(letters(kafka)) == [(3, "output_lost"), (4, "letter_lost"), (5, "no_id")]


def test_a_letter_whose_cause_nobody_knows_any_more_is_written_again() -> None:
    kafka = lost_at_the_end(bad={4})

    Worker(kafka).recover_for_good()  # the broker had refused it

    assert letters(kafka) == [(4, "letter_lost")]
    assert delivered(kafka) == [0, 1, 2, 3, 5]


def test_what_the_output_does_not_take_any_more_stops_with_a_remedy() -> None:
    kafka = lost_at_the_end()

    def refuse(_: str, place: LogPartition, __: bytes | None) -> None:
        if place == OUT:
            raise RecordRefused("INVALID_TIMESTAMP: out of range")

    heir = Worker(kafka)
    with pytest.raises(Retriable):
        heir.recover()  # ends what hangs
    kafka.appending = refuse

    with pytest.raises(Stopped, match="what a recovery writes is refused"):
        heir.recover()


def test_what_left_the_output_is_believed() -> None:
    kafka = lost_at_the_end()
    kafka.low[OUT] = 4

    with capture_logs() as lines:
        Worker(kafka).recover_for_good()

    assert delivered(kafka) == []
    assert [line["messages"] for line in lines if "may have left" in line["event"]] == [3]


def test_what_left_the_output_is_believed_although_its_lane_goes_to_another_partition_by_now() -> None:
    """Nothing hung: the route stood still, retention took the output, and partitions were added to it."""
    kafka = LeftOut()
    worker = Worker(kafka)
    worker.recover()
    worker.submit(0, 6)
    kafka.low[OUT] = 6

    Worker(kafka, outputs=4).recover()

    assert [delivered_to(kafka, number) for number in range(4)] == 4 * [[]]


def test_an_output_whose_older_values_may_go_is_believed() -> None:
    """What compaction took, and a newer value stands for, would come back behind that."""
    kafka = lost_at_the_end()

    with capture_logs() as lines:
        Worker(kafka, keeps_all=False).recover_for_good()

    assert delivered(kafka) == [0, 1, 2]
    assert [line["messages"] for line in lines if "may have left" in line["event"]] == [3]


def test_an_output_that_is_another_topic_by_now_is_not_filled_with_what_the_former_had() -> None:
    kafka = lost_at_the_end()
    kafka.logs[OUT] = []

    Worker(kafka).recover_for_good()

    assert delivered(kafka) == []


def test_what_lies_too_far_back_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unshown, "READ_MAX", 2)
    kafka = lost_at_the_end()

    Worker(kafka).recover_for_good()

    assert delivered(kafka) == [0, 1, 2]


def test_an_earlier_version_has_not_said_what_it_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sightings, "closed", -1)
    kafka = lost_at_the_end()
    monkeypatch.undo()

    Worker(kafka).recover_for_good()

    assert delivered(kafka) == [0, 1, 2], "it is taken for shown"


def test_a_quiet_worker_finds_what_hangs_of_its_own() -> None:
    kafka = LeftOut()
    worker = Worker(kafka)
    worker.recover()
    kafka.left_out = {OUT}
    worker.submit(0, 6)
    kafka.left_out = set()

    worker.delivery.tend(1.0)
    worker.delivery.tend(HANGS_AFTER_S)
    with pytest.raises(InDoubt, match="hangs in out"):
        worker.delivery.tend(HANGS_AFTER_S + 1.0)
    worker.recover_for_good()

    assert delivered(kafka) == list(range(6))


def test_a_strangers_long_transaction_stops_no_worker_and_hides_nothing_for_good() -> None:
    kafka = LeftOut()
    count = 3 * TRANSACTIONS_MAX
    worker = Worker(kafka, count)
    worker.recover()
    stranger(kafka)

    with capture_logs() as lines:
        for n in range(count):
            worker.submit(n, n + 1)
            worker.delivery.tend(n * HANGS_AFTER_S)
        Worker(kafka, count).recover()  # at once, and by itself

    told = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert len(told) == 3, told
    assert max(len(one.unseen) for one in begins(kafka)) == 1
    assert worker.delivery.counts.recoveries == 1
    kafka.end("stranger", commit=False)
    assert delivered(kafka) == list(range(count))
    Worker(kafka, count).recover()
    assert delivered(kafka) == list(range(count))


def test_what_hangs_behind_a_stranger_is_believed_and_left_to_the_next_commit() -> None:
    kafka = LeftOut()
    worker = Worker(kafka)
    worker.recover()
    worker.submit(0, 3)
    stranger(kafka)
    kafka.left_out = {OUT}
    worker.submit(3, 5)
    kafka.left_out = set()
    heir = Worker(kafka)

    heir.recover()
    heir.submit(5, 6)

    kafka.end("stranger", commit=False)
    assert delivered(kafka) == list(range(6))


def test_an_output_that_does_not_answer_holds_nothing_up() -> None:
    kafka = Away()
    worker = Worker(kafka)
    worker.recover()
    kafka.is_away = True

    worker.submit(0, 3)
    worker.submit(3, 6)
    worker.delivery.tend(HANGS_AFTER_S)

    assert delivered(kafka) == list(range(6))
    assert [one.closed for one in begins(kafka)] == [0, 1, 1]


def test_nothing_is_begun_before_the_monitor_shows_the_last_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sightings, "MONITOR_WAIT_S", 0.01)
    kafka = LeftOut()
    worker = Worker(kafka)
    worker.recover()
    kafka.left_out = {MONITOR}

    with pytest.raises(InDoubt, match="still open in monitor"):
        worker.submit(0, 3)
    kafka.left_out = set()
    worker.recover_for_good()

    assert delivered(kafka) == [0, 1, 2]
    assert kafka.group[LOG][0] == 3


def test_what_a_stray_commit_shows_is_found_although_the_monitor_was_left_out() -> None:
    kafka = LeftOut()
    victim = kafka.transaction("x")
    victim.init()
    producer = SealedProducer(victim, "x", "monitor", {OUT: 0})
    with killed_at("sealed.offsets"), pytest.raises(Killed):
        producer.run(work(MESSAGES[:6], 4, producer, 6))
    kafka.open["x"].offsets.clear()  # cut before the offsets were sent
    kafka.left_out = {MONITOR}
    kafka.end("x", commit=True)
    kafka.left_out = set()
    heir = Process(kafka)

    heir.deliver(recover_for_good(heir))

    assert delivered(kafka) == list(range(COUNT))


def committed(n: int, rows: int = 1) -> Committed:
    return Committed(n, {OUT: 10 * n + 5}, {OUT: 10 * n}, {0: 100 + n}, rows)


def test_begins_say_where_what_was_not_seen_closed_may_lie() -> None:
    seen = Sightings()
    for n in (1, 2, 3):
        seen.committed(committed(n))

    assert (seen.closed, seen.since(0), seen.since(1)) == (0, 101, -1)
    seen.seen({OUT: 26})
    assert (seen.closed, seen.since(0)) == (2, 103)
    assert seen.unseen() == [OutputStart("out", 0, 30)]
    seen.seen({OUT: 36})
    assert (seen.closed, seen.since(0), seen.unseen()) == (3, -1, [])


@pytest.mark.parametrize(("count", "rows"), [(10 * TRANSACTIONS_MAX, 1), (20, sightings.ROWS_MAX)])
def test_what_is_kept_in_mind_has_a_bound_and_the_last_one_is_in_it(count: int, rows: int) -> None:
    seen = Sightings()

    for n in range(1, count + 1):
        seen.committed(committed(n, rows))
        if seen.is_over():
            seen.believe()

    assert count - TRANSACTIONS_MAX <= seen.closed < count
    assert seen.since(0) == 100 + seen.closed + 1


class Busy:
    """A worker that has delivered one message to the output's second partition, where its commit hangs, and goes on with the first."""

    def __init__(self, kafka: LeftOut) -> None:
        self.kafka = kafka
        self.worker = Worker(kafka, 10 * TRANSACTIONS_MAX, outputs=2)
        lanes = {crc32(lane) % 2: lane for lane in (b"a", b"b", b"c", b"d")}
        self.worker.messages = [one._replace(lane=lanes[n == 0]) for n, one in enumerate(self.worker.messages)]
        self.worker.recover()
        kafka.left_out = {LogPartition("out", 1)}
        self.worker.submit(0, 1)
        kafka.left_out = set()
        self.sent = 1

    def go_on(self, count: int) -> None:
        for _ in range(count):
            self.sent += 1
            self.worker.submit(self.sent - 1, self.sent)


def test_a_busy_worker_finds_what_hangs_of_its_own_where_nothing_more_goes() -> None:
    busy = Busy(LeftOut())

    with pytest.raises(InDoubt, match=r"transaction 2 .* hangs in out\[1\]"):
        busy.go_on(2 * TRANSACTIONS_MAX)
    busy.worker.recover_for_good()

    assert busy.sent <= TRANSACTIONS_MAX + 1
    assert delivered_to(busy.kafka, 1) == [0]
    assert delivered_to(busy.kafka, 0) == list(range(1, busy.sent))


def test_nothing_is_believed_while_an_output_does_not_answer_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sightings, "ALONE_S", 0.0)
    monkeypatch.setattr(sealed, "UNTOLD_MAX", 3)
    kafka = Away()
    kafka.place = LogPartition("out", 1)
    busy, other = Busy(kafka), Busy(Away())
    kafka.is_away = True

    busy.go_on(2 * TRANSACTIONS_MAX)
    assert {one.closed for one in begins(kafka)[2:]} == {1}
    kafka.is_away = False
    with pytest.raises(InDoubt, match=r"hangs in out\[1\]"):
        busy.go_on(1)
    busy.worker.recover_for_good()
    assert delivered_to(kafka, 1) == [0]

    other.kafka.place, other.kafka.is_away = kafka.place, True  # type: ignore[attr-defined]
    other.go_on(4 * TRANSACTIONS_MAX)
    assert begins(other.kafka)[-1].closed > 2 * TRANSACTIONS_MAX
