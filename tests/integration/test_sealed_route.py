"""A topic route with stray EndTxns end to end: log, worker process, broker behind the proxy, output.

The stray is a late copy of the worker's own COMMIT, which librdkafka repeated by itself after a reset. Whatever it
cuts off, every id arrives once and in order. With the seal taken out the same strays lose and repeat messages.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from relay.chaos.frame_proxy import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    TXN_OFFSET_COMMIT,
    Caught,
    Match,
    Request,
    api,
    end_txn,
)
from tests.frame_matches import ADD_OFFSETS_TO_TXN, produce_to
from tests.integration.conftest import Proxied
from tests.routes import Route, ce, ids, per_source, publish, read_all, wait_for

TIMING = """
transaction_timeout = "6s"
socket_timeout = "1500ms"
session_timeout = "6s"
resend_after = "2s"
idle_in_transaction = "5s"
statement_timeout = "5s"
"""
CHUNK = 30
LOADING = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)


class Proxy:
    """A route whose worker reaches the broker through the proxy, and the strays of that worker."""

    def __init__(self, at: Proxied, directory: Path, partitions: int) -> None:
        self.at = at
        self.partitions = partitions
        self.log, self.out = at.topic("log", partitions), at.topic("out", partitions)
        self.route = Route(directory, at.kafka, self.log, f'{{ topic = "{self.out}" }}', timing=TIMING)
        self.route.migrate()
        self.monitor = f"{self.route.name}.main.monitor"
        self.published = 0

    def publish(self, count: int = CHUNK) -> None:
        """Append messages, numbered on, to the partitions in turn; the source is the partition."""
        fresh = range(self.published, self.published + count)
        self.published += count
        parts = self.partitions
        publish(self.at.kafka, self.log, [(n % parts, ce(f"/{n % parts}", f"m-{n}"), b"x") for n in fresh])

    def hold_commit(self) -> Caught:
        """Keep the worker's next COMMIT back; its connection is reset, and it is repeated at once."""
        return self.at.proxy.hold(end_txn(committed=True, transactional_id=self.route.name), reset=True)

    def wait_until_committed(self, deadline_s: float = 20) -> None:
        """Wait until the group's offsets are at the log's end."""
        consumer = Consumer({"bootstrap.servers": self.at.kafka, "group.id": f"{self.route.name}.main"})
        wanted = [TopicPartition(self.log, p) for p in range(self.partitions)]

        def arrived() -> bool:
            try:
                found = consumer.committed(wanted, timeout=10)
            except KafkaException as error:
                if error.args[0].code() in LOADING:  # retry: a fresh broker is still loading its groups
                    return False
                raise
            return sum(max(0, one.offset) for one in found) == self.published

        try:
            wait_for(arrived, deadline_s, f"the end of the log: {self.route.said()}")
        finally:
            consumer.close()

    def settle(self) -> None:
        """Wait for the markers of every transaction."""
        self.at.wait_for_markers(self.out, self.partitions)
        self.at.wait_for_markers(self.monitor, self.partitions)

    def end(self, topic: str, isolation: str) -> int:
        """The end of partition 0 for a reader of this isolation level."""
        consumer = Consumer({"bootstrap.servers": self.at.kafka, "group.id": "end", "isolation.level": isolation})
        _, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
        consumer.close()
        return int(high)

    def found(self) -> tuple[list[str], list[str], bool]:
        """Ids lost, ids repeated, and whether each source's order was kept, for a read_committed reader."""
        records = read_all(self.at.kafka, self.out, self.partitions)
        return (*self.account(ids(records)), all(n == sorted(n) for n in per_source(records).values()))

    def account(self, read: list[str]) -> tuple[list[str], list[str]]:
        """Ids lost and ids repeated among those read."""
        counts = Counter(read)
        return (
            [f"m-{n}" for n in range(self.published) if f"m-{n}" not in counts],
            [one for one, count in counts.items() if count > 1],
        )


def nth(match: Match, count: int) -> Match:
    """Match the ``count``-th request that ``match`` finds."""
    left = [count]

    def matches(request: Request) -> bool:
        left[0] -= match(request)
        return left[0] == 0

    return matches


def after(first: Match, then: Match) -> Match:
    """Match what ``then`` finds once ``first`` has found something."""
    passed: list[bool] = []

    def matches(request: Request) -> bool:
        if first(request):
            passed.append(True)
        return bool(passed) and then(request)

    return matches


def add_partition(topic: str) -> Match:
    """Match the AddPartitionsToTxn that names ``topic``."""
    return lambda request: request.api_key == ADD_PARTITIONS_TO_TXN and topic.encode() in request.body


MOMENTS: dict[str, Callable[[Proxy], Match]] = {
    "begun": lambda p: add_partition(p.out),
    "written": lambda p: api(ADD_OFFSETS_TO_TXN),
    "offsets": lambda p: after(api(TXN_OFFSET_COMMIT), produce_to(p.monitor)),
    "sealed": lambda p: api(END_TXN),
}
"""The request before which the stray lands."""


@pytest.fixture
def single(proxied: Proxied, tmp_path: Path) -> Iterator[Proxy]:
    made = Proxy(proxied, tmp_path, 1)
    yield made
    made.route.stop()


def started(single: Proxy) -> Caught:
    """Start the worker, let it deliver a chunk, then another one whose COMMIT is kept back; return that."""
    single.publish()
    single.route.start()
    single.wait_until_committed()
    held = single.hold_commit()
    single.publish()
    held.wait(30)
    single.wait_until_committed()
    single.settle()
    return held


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_stray_commit_before_any_step_changes_nothing(single: Proxy, moment: str) -> None:
    held = started(single)
    landed: list[int] = []

    def land(_: Request) -> None:
        landed.append(held.release_end_txn())
        single.settle()

    rule = single.at.proxy.before(MOMENTS[moment](single), land)
    single.publish()
    rule.wait(30)
    if moment != "sealed":  # after the seal nothing is cut off, and the worker's own COMMIT finds it done
        wait_for(lambda: '"event":"settled"' in single.route.said(), what="a settlement")
    single.wait_until_committed()
    single.settle()
    assert landed == [0], "the stray must have ended a transaction"
    assert single.found() == ([], [], True)
    assert ('"event":"recovering"' in single.route.said()) is (moment != "sealed"), single.route.said()


def torn(single: Proxy, kept: str, shown: str) -> None:
    """Let a stray COMMIT publish what goes to ``shown`` while the Produce to ``kept`` is still under way."""
    held = started(single)
    # Of the monitor's two requests in a transaction the first one is the begin entry, the second one the entries.
    match = nth(produce_to(kept), 2) if kept == single.monitor else produce_to(kept)
    least = single.end(shown, "read_uncommitted") + (2 if shown == single.monitor else CHUNK)
    late = single.at.proxy.hold(match)
    single.publish()
    late.wait(30)
    wait_for(lambda: single.end(shown, "read_uncommitted") >= least, 30, f"what goes to {shown}")
    kept_end = single.end(kept, "read_uncommitted")
    assert held.release_end_txn() == 0
    single.settle()
    assert single.end(shown, "read_committed") > least, "the stray must have published a prefix"
    assert kept != single.out or single.end(kept, "read_uncommitted") <= kept_end + 1, "its marker at most"
    late.release()
    single.wait_until_committed()
    single.settle()


def test_entries_shown_without_their_outputs_are_taken_back(single: Proxy) -> None:
    torn(single, kept=single.out, shown=single.monitor)
    assert single.found() == ([], [], True)


def test_outputs_shown_without_their_entries_are_not_repeated(single: Proxy) -> None:
    torn(single, kept=single.monitor, shown=single.out)
    assert single.found() == ([], [], True)


def test_without_the_seal_entries_shown_without_outputs_lose_messages(single: Proxy) -> None:
    single.route.module = "tests.integration.worker_without_seal"
    torn(single, kept=single.out, shown=single.monitor)
    lost, repeated, _ = single.found()
    assert (lost, repeated) == ([f"m-{n}" for n in range(2 * CHUNK, 3 * CHUNK)], [])


def test_without_the_seal_outputs_shown_without_entries_are_repeated(single: Proxy) -> None:
    single.route.module = "tests.integration.worker_without_seal"
    torn(single, kept=single.monitor, shown=single.out)
    lost, repeated, _ = single.found()
    assert (lost, sorted(repeated)) == ([], sorted(f"m-{n}" for n in range(2 * CHUNK, 3 * CHUNK)))


SCHEDULE = (*MOMENTS, *MOMENTS, *MOMENTS, *("kept", "answer lost") * 3, *["connection reset"] * 4, *["killed"] * 2)
"""The rounds of the random test, in an order of the seed's; a kept stray arrives in a later round."""
ANSWERS = (END_TXN, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT)
ROUND_S = 20.0


class Nemesis:
    """Rounds of faults under load; ``happened`` counts those that met a request."""

    def __init__(self, at: Proxy, seed: int) -> None:
        self.happened: Counter[str] = Counter()
        self._at = at
        self._random = random.Random(seed)
        self._kept: list[Caught] = []
        self._worker = at.route.start()

    def run(self) -> None:
        """Run every round; at the end all that was kept has arrived, and the worker runs undisturbed."""
        for fault in self._random.sample(SCHEDULE, len(SCHEDULE)):
            self._round(fault)
            if self._kept and self._random.random() < 0.4:
                self._arrive(self._kept.pop(0))
        for held in self._kept:
            self._arrive(held)

    def _round(self, fault: str) -> None:
        if fault == "killed":
            self._kill()
        elif fault in ("answer lost", "connection reset"):
            any_of = [api(self._random.choice(ANSWERS)), produce_to(self._at.out), produce_to(self._at.monitor)]
            rule = self._at.at.proxy.drop_answer(self._random.choice(any_of), reset=fault == "connection reset")
            self._meet(rule, fault)
        else:
            held = self._at.hold_commit()
            if not self._meet(held, "kept"):
                return
            if fault == "kept" or not self._meet(self._before(fault, held), fault):
                self._kept.append(held)

    def _before(self, moment: str, held: Caught) -> Caught:
        return self._at.at.proxy.before(MOMENTS[moment](self._at), lambda _: self._arrive(held))

    def _meet(self, rule: Caught, name: str) -> bool:
        """Publish until the rule has met a request; false if none came."""
        self._at.publish(self._random.randint(1, CHUNK))
        try:
            rule.wait(ROUND_S)
        except TimeoutError:
            self._at.at.proxy.cancel(rule)
            return False
        self.happened[name] += 1
        return True

    def _arrive(self, held: Caught) -> None:
        self.happened["arrived" if held.release_end_txn() == 0 else "fenced"] += 1

    def _kill(self) -> None:
        self._at.publish()
        time.sleep(self._random.random() * 0.1)  # not to wait for anything: the moment of the kill
        self._worker.kill()
        self._worker.wait(10)
        self._worker = self._at.route.start()
        self.happened["killed"] += 1


class ConcurrentReader:
    """Reads the output while it is written, read_committed, as a consumer of it would."""

    def __init__(self, at: Proxy) -> None:
        self.read: list[Message] = []
        self._at = at
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> list[Message]:
        """Wait until it has read as many records as were published, or for a while, and return them."""
        limit = time.monotonic() + ROUND_S
        while len(self.read) < self._at.published and time.monotonic() < limit:
            time.sleep(0.05)
        self._stopping.set()
        self._thread.join(10)
        return self.read

    def _run(self) -> None:
        consumer = Consumer({"bootstrap.servers": self._at.at.kafka, "group.id": f"r-{uuid4().hex}"})
        consumer.assign([TopicPartition(self._at.out, p, 0) for p in range(self._at.partitions)])
        while not self._stopping.is_set():
            self.read += [one for one in consumer.consume(1000, 0.1) if one.error() is None]
        consumer.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_strays_lost_answers_resets_and_kills_leave_each_id_once_in_order(
    proxied: Proxied, tmp_path: Path, seed: int
) -> None:
    at = Proxy(proxied, tmp_path, 3)
    try:
        reader = ConcurrentReader(at)
        nemesis = Nemesis(at, seed)
        nemesis.run()
        at.wait_until_committed(60)
        at.settle()
        assert at.found() == ([], [], True)
        read = reader.finish()
        assert at.account(ids(read)) == ([], [])
        assert all(numbers == sorted(numbers) for numbers in per_source(read).values())
        assert nemesis.happened["arrived"] >= len(MOMENTS), nemesis.happened
        assert "settled" in at.route.said(), "no stray cut a transaction off"
    finally:
        at.route.stop()
