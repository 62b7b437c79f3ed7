"""Sealed transactions under a stray EndTxn: refused, or seen as a begin without a seal; never silent loss.

The stray is a late copy of an EndTxn that the client repeated by itself (see test_stray_endtxn.py). In an epoch that
holds commits only it is a COMMIT; an ABORT can arrive only if an instance were kept after an abort, which is tried
here too. Each test of the guard has its counterpart with ``_seal`` taken out, where the anomaly must appear.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException

from relay.chaos.frame_proxy import Caught, end_txn
from relay.config.timing import Timing
from relay.delivery.topic.sealed import SealedProducer, SealedWork
from relay.kafka import settings
from relay.kafka.group import GroupConsumer
from relay.kafka.transactions import TransactionalInstance
from relay.message.envelope import OUT_DIGEST, Headers
from relay.message.errors import RelayError
from relay.message.identity import content_digest, digest
from relay.message.record import Appended, LogMessage, LogPartition
from relay.monitor.entries import Begin, InputRange, Page, Seal, decode, pages
from tests.contracts.kafka_contract import FENCED
from tests.frame_matches import produce_to
from tests.integration.conftest import Proxied
from tests.routes import read_all, wait_for

TIMING = Timing(transaction_timeout=15, socket_timeout=2, session_timeout=10)
TIMEOUT_S = 15.0
MOMENTS = ("begun", "outputs", "written", "offsets", "sealed")
"""Where the stray lands: after the begin entry; after outputs; after entries; after offsets; after the seal."""


class Watched(TransactionalInstance):
    """The real instance with a hook at each moment at which everything before it has been acknowledged."""

    def __init__(
        self, settings: dict[str, object], transactional_id: str, monitor: str, timeout_s: float
    ) -> None:
        super().__init__(settings, transactional_id, timeout_s)
        self.monitor = monitor
        self.at: dict[str, Callable[[], None]] = {}

    def produce(
        self,
        partition: LogPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
        timestamp_ms: int = 0,
    ) -> None:
        entry = decode(key, value) if partition.topic == self.monitor else None
        if isinstance(entry, Page):
            self._reach("outputs", flush=True)
        elif entry is None:
            self._reach("begun", flush=True)
        super().produce(partition, key, value, headers, timestamp_ms)

    def produce_all(self, partition: LogPartition, records: Iterable[Appended]) -> None:
        self._reach("begun", flush=True)
        super().produce_all(partition, records)

    def send_offsets(self, *arguments: object) -> None:
        self._reach("written")
        super().send_offsets(*arguments)  # type: ignore[arg-type]
        self._reach("offsets")

    def commit(self) -> None:
        self._reach("sealed")
        super().commit()

    def _reach(self, moment: str, *, flush: bool = False) -> None:
        action = self.at.pop(moment, None)
        if action is not None:
            if flush:
                self.flush()
            action()


@dataclass(frozen=True)
class Seen:
    """What a read_committed reader and the group find of transaction ``n``."""

    outputs: int
    entries: int
    begun: bool
    sealed: bool
    moved: bool


class Bench:
    """A sealed producer on real topics: a log, an output with two partitions, a monitor, a group with a member."""

    MESSAGES = 6

    def __init__(self, at: Proxied) -> None:
        self.at = at
        self.log, self.out, self.monitor = at.topic("log"), at.topic("out", 2), at.topic("monitor")
        self.kafka = {"bootstrap.servers": at.kafka}
        self.transactional_id = f"sealed-{uuid4().hex[:8]}"
        self.group = GroupConsumer(settings.consumer(self.kafka, TIMING, self.log), [self.log], lambda: None)
        wait_for(lambda: self.group.consume(1, 0.1) or self.group.assigned, what="the assignment")

    def instance(self, timeout_s: float = TIMEOUT_S) -> Watched:
        """Make an instance; it fences the one before."""
        made = settings.producer(self.kafka, TIMING, self.transactional_id)
        tx = Watched(made, self.transactional_id, self.monitor, timeout_s)
        tx.init()
        return tx

    def sealed(self, tx: Watched) -> SealedProducer:
        """Make a sealed producer on an instance."""
        return SealedProducer(tx, "worker", self.monitor, {LogPartition(self.out, p): 0 for p in range(2)})

    def work(self, producer: SealedProducer) -> SealedWork:
        """The producer's next transaction: some messages, half of them to each output partition."""
        n = producer.n + 1
        first, end = (n - 1) * self.MESSAGES, n * self.MESSAGES
        messages = [self._message(offset) for offset in range(first, end)]
        found = pages(messages, worker="worker", instance=producer.instance, n=n)
        source = LogPartition(self.log, 0)
        return SealedWork(
            positions={source: end},
            membership=self.group.membership(),
            inputs=[InputRange(self.log, 0, first, end)],
            outputs={
                LogPartition(self.out, p): here for p in range(2) if (here := [m for m in messages if m.offset % 2 == p])
            },
            pages=[(0, page) for page in found],
            claims={0},
        )

    def hold(self, *, committed: bool) -> Caught:
        """Keep the next EndTxn back and reset its connection: the client repeats it at once, without a word."""
        return self.at.proxy.hold(end_txn(committed=committed, transactional_id=self.transactional_id), reset=True)

    def arrive(self, held: Caught) -> int:
        """Let the kept EndTxn reach the broker and do its work; return the broker's error code."""
        code = held.release_end_txn()
        self.wait()
        return code

    def wait(self) -> None:
        """Wait until every transaction has its markers."""
        self.at.wait_for_markers(self.out, 2)
        self.at.wait_for_markers(self.monitor)

    def seen(self, producer: SealedProducer, n: int) -> Seen:
        """Fence the instance, as recovery does, and look."""
        self.instance().discard()
        self.wait()
        ours = [one for one in self._monitored() if one.instance == producer.instance and one.n == n]
        wanted = {self._message((n - 1) * self.MESSAGES + i).digest for i in range(self.MESSAGES)}
        outputs = [dict(m.headers())[OUT_DIGEST] for m in read_all(self.at.kafka, self.out, 2)]
        found = [one for one in outputs if bytes.fromhex(one.decode()) in wanted]
        assert len(set(found)) == len(found), "an output shows twice"
        position, _ = self.group.committed([LogPartition(self.log, 0)]).get(LogPartition(self.log, 0), (0, ""))
        return Seen(
            outputs=len(found),
            entries=sum(one.rows for one in ours if isinstance(one, Page)),
            begun=any(isinstance(one, Begin) for one in ours),
            sealed=any(isinstance(one, Seal) for one in ours),
            moved=position == n * self.MESSAGES,
        )

    def close(self) -> None:
        self.group.close()

    def _message(self, offset: int) -> LogMessage:
        value = f"m-{offset}".encode()
        identity = digest(b"c", self.log.encode(), value)
        content = content_digest(b"k", value)
        return LogMessage(self.log, 0, offset, b"k", value, [], identity, content, b"", None, 0)

    def _monitored(self) -> list[Begin | Page | Seal]:
        found = [decode(m.key(), m.value()) for m in read_all(self.at.kafka, self.monitor, 1)]
        return [one for one in found if isinstance(one, Begin | Page | Seal)]


@pytest.fixture
def bench(proxied: Proxied) -> Iterator[Bench]:
    made = Bench(proxied)
    yield made
    made.close()


@pytest.fixture
def without_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation: the transaction goes on to its commit without a seal."""
    monkeypatch.setattr(SealedProducer, "_seal", lambda self, touched: None)


def stray_commit(bench: Bench, moment: str) -> tuple[bool, Seen]:
    """Run transaction 1, whose COMMIT the client repeats, then 2, into which the first copy falls at ``moment``."""
    tx = bench.instance()
    producer = bench.sealed(tx)
    held = bench.hold(committed=True)
    producer.run(bench.work(producer))
    assert held.is_caught
    bench.wait()
    done = run(bench, producer, tx, held, moment)
    return done, bench.seen(producer, 2)


def stray_abort(bench: Bench, moment: str) -> tuple[bool, Seen]:
    """Abort a transaction, *keep* the instance, and let the repeated ABORT fall into sealed transaction 1."""
    tx = bench.instance()
    held = aborted(bench, tx)
    producer = bench.sealed(tx)
    done = run(bench, producer, tx, held, moment)
    return done, bench.seen(producer, 1)


def aborted(bench: Bench, tx: Watched) -> Caught:
    """Abort a transaction of something else; return the kept EndTxn."""
    held = bench.hold(committed=False)
    tx.begin()
    tx.produce(LogPartition(bench.out, 0), b"k", b"aborted")
    tx.flush()
    tx._producer.abort_transaction(TIMEOUT_S)
    assert held.is_caught
    bench.wait()
    return held


def run(bench: Bench, producer: SealedProducer, tx: Watched, held: Caught, moment: str) -> bool:
    """Run the next transaction with the stray at ``moment``; tell whether every call returned OK."""
    landed: list[int] = []
    tx.at[moment] = lambda: landed.append(bench.arrive(held))
    try:
        producer.run(bench.work(producer))
    except (KafkaException, RelayError):
        return False  # in doubt: the caller looks
    finally:
        tx.discard()
        assert landed == [0], "the stray must have ended the transaction at its moment"
    return True


def fault(done: bool, seen: Seen) -> str:
    """Name what is wrong, if anything: what was reported done must be there, what was not must be seen as open."""
    whole = seen.outputs == seen.entries == Bench.MESSAGES and seen.moved
    if done:
        return "" if whole else "silent loss"
    if seen.sealed and not whole:
        return "a seal over missing records"
    if (seen.outputs or seen.entries or seen.moved) and not seen.begun:
        return "effects without a begin"
    return ""


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_stray_commit_is_refused_or_leaves_a_begin_without_a_seal(bench: Bench, moment: str) -> None:
    done, seen = stray_commit(bench, moment)
    assert fault(done, seen) == ""
    assert seen.begun
    # Only after the seal nothing is left that a COMMIT could cut off; our own commit finds it done.
    assert done is seen.sealed is (moment == "sealed")
    halves = {"begun": (0, 0), "outputs": (Bench.MESSAGES, 0)}
    assert (seen.outputs, seen.entries) == halves.get(moment, (Bench.MESSAGES, Bench.MESSAGES))
    assert seen.moved is (moment in ("offsets", "sealed"))


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_stray_abort_in_a_kept_instance_is_refused(bench: Bench, moment: str) -> None:
    done, seen = stray_abort(bench, moment)
    assert not done
    assert seen == Seen(outputs=0, entries=0, begun=False, sealed=False, moved=False)


@pytest.mark.parametrize("moment", ["written"])
def test_without_the_seal_the_same_stray_abort_loses_in_silence(
    bench: Bench, without_seal: None, moment: str
) -> None:
    done, seen = stray_abort(bench, moment)
    assert fault(done, seen) == "silent loss"
    assert seen == Seen(outputs=0, entries=0, begun=False, sealed=False, moved=True)


def test_after_an_abort_the_instance_is_discarded_and_the_late_copy_fenced(bench: Bench) -> None:
    first = bench.instance()
    held = aborted(bench, first)
    first.discard()
    tx = bench.instance()
    producer = bench.sealed(tx)
    landed: list[int] = []
    tx.at["written"] = lambda: landed.append(held.release_end_txn())
    producer.run(bench.work(producer))
    assert landed[0] in FENCED
    seen = bench.seen(producer, 1)
    assert seen == Seen(outputs=Bench.MESSAGES, entries=Bench.MESSAGES, begun=True, sealed=True, moved=True)


def test_a_client_that_blocks_after_a_reset_is_left_at_the_deadline(bench: Bench) -> None:
    """librdkafka #5456: after a reset of the broker's connection the offsets may never go out, nor time out."""
    deadline_s = 3.0
    tx = bench.instance(deadline_s)
    producer = bench.sealed(tx)
    producer.run(bench.work(producer))
    rule = bench.at.proxy.drop_answer(produce_to(bench.out), reset=True)
    raised: list[Exception] = []

    def second() -> None:
        try:
            producer.run(bench.work(producer))
        except (KafkaException, RelayError) as error:
            raised.append(error)  # in doubt: looked at below

    thread = threading.Thread(target=second, daemon=True)
    thread.start()
    thread.join(2 * deadline_s)
    assert not thread.is_alive(), "the worker would stand still"
    assert rule.is_caught
    seen = bench.seen(producer, 2)
    assert fault(not raised, seen) == ""
    assert seen.outputs == (0 if raised else Bench.MESSAGES)
