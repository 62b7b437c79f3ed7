"""Guards of the protocol, each removable by name: with one gone, the simulator must find what it guards against.

``with without(name)`` runs what is in the block without it. Each removal is the smallest change that
takes the guard away and leaves everything else as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import relay.delivery.topic.route as topic_module
import relay.run.worker as worker_module
from relay.delivery import evidence_reading
from relay.delivery.topic import recovery as topic_recovery
from relay.delivery.topic.carrying import Carrying
from relay.delivery.topic.hanging import HangingTransactions
from relay.delivery.topic.recovery import TopicRecovery
from relay.delivery.topic.route import TopicDelivery
from relay.delivery.topic.sealed import SealedProducer, SealedWork
from relay.delivery.topic.sightings import Sightings, Watch
from relay.delivery.topic.unshown import Shown
from relay.kafka.group import GroupConsumer
from relay.kafka.transactions import TransactionalInstance
from relay.log.holds import PartitionHolds
from relay.message.errors import TwinDetected
from relay.monitor.entries import Entry, Page, Proof, Seal, encode
from relay.monitor.evidence import Evidence
from relay.monitor.rows_on_disk import DiskRows
from relay.run.twins import Twins
from relay.run.worker import RouteWorker
from relay.world import randomness
from tests.simulation.broker_transactions import Transactions
from tests.simulation.database_removals import DATABASE_REMOVALS
from tests.simulation.installation import StandIn, replaced
from tests.simulation.log_removals import LOG_REMOVALS
from tests.simulation.putting_removals import PUTTING_REMOVALS
from tests.simulation.queue_removals import QUEUE_REMOVALS
from tests.simulation.redrive_removals import REDRIVE_REMOVALS
from tests.simulation.scheduler import World

Change = StandIn
"""What stands in a guard's place while it is removed."""


def no_seal() -> list[Change]:
    """Entries count as soon as they show, and nothing is settled."""
    return [
        (SealedProducer, "_seal", lambda self, touched: None),
        (Evidence, "add", _trusting(Evidence.add)),
        (Evidence, "unsealed", lambda self: []),
    ]


def unsealed_trusted() -> list[Change]:
    """Seals are written, but entries count without them; nothing is settled."""
    return [(Evidence, "add", _trusting(Evidence.add)), (Evidence, "unsealed", lambda self: [])]


def _trusting(add: Callable[..., None]) -> Callable[..., None]:
    def trusting(self: Evidence, offset: int, entry: Entry) -> None:
        if isinstance(entry, Page) and entry.proof is Proof.SEALED:
            self.on_rows(entry)
        else:
            add(self, offset, entry)

    return trusting


def no_verification() -> list[Change]:
    """The broker does not verify partitions (before 3.6, or switched off)."""
    return [(Transactions, "verify", lambda self, *_: 0)]


def one_client_for_all() -> list[Change]:
    """Where partitions are not verified, transactions share a client, and so an epoch, all the same."""

    def begin(self: TransactionalInstance) -> None:
        self._producer.begin_transaction()

    return [(TransactionalInstance, "begin", begin)]


def ordinary_settle_seal() -> list[Change]:
    """A settlement writes an ordinary seal."""

    def made(worker: str, instance: bytes, n: int) -> Seal:
        return Seal(worker, instance, n)

    from relay.monitor import recovery  # noqa: PLC0415

    return [(topic_recovery, "SettleSeal", made), (recovery, "SettleSeal", made)]


def no_void_entries() -> list[Change]:
    """A settlement takes no entry back; only its seal says that the entries of the torn transaction are false."""
    from relay.monitor import recovery  # noqa: PLC0415

    settled = recovery.settle

    def without_voids(*args: Any, **names: Any) -> recovery.Settlement:
        done = settled(*args, **names)
        return replace(done, pages=[page for page in done.pages if page.proof is not Proof.VOID])

    return [(topic_recovery, "settle", without_voids), (recovery, "settle", without_voids)]


def false_entries_left() -> list[Change]:
    """A settlement neither takes false entries back nor writes a seal of its own kind."""
    return [*ordinary_settle_seal(), *no_void_entries()]


def no_claim() -> list[Change]:
    """The first transaction of an instance begins nothing in the partitions it owns."""
    run = SealedProducer.run

    def unclaimed(self: SealedProducer, work: SealedWork) -> None:
        run(self, replace(work, claims=set()))

    return [(SealedProducer, "run", unclaimed)]


def begin_not_flushed() -> list[Change]:
    """The begin entry is on its way when the outputs follow."""
    write = SealedProducer._write_begin

    class Unflushed:
        def __init__(self, transaction: Any) -> None:
            self._transaction = transaction

        def __getattr__(self, name: str) -> Any:
            return (lambda: None) if name == "flush" else getattr(self._transaction, name)

    def begin(self: SealedProducer, work: SealedWork, touched: list[int]) -> None:
        if self.n == 1:
            write(self, work, touched)
            return
        transaction, known = self._tx, dict(self._begin_offsets)
        self._tx = Unflushed(transaction)  # type: ignore[assignment]
        try:
            write(self, work, touched)
        finally:
            self._tx = transaction
            self._begin_offsets.update(known)

    return [(SealedProducer, "_write_begin", begin)]


def offsets_before_flush() -> list[Change]:
    """Offsets enter the transaction before the outputs are acknowledged, and the plain protocol's proof is believed."""

    def run(self: SealedProducer, work: SealedWork) -> None:
        self.n += 1
        touched = sorted(work.claims | {p for p, _ in work.pages} | {p for p, _ in work.dead_pages} | {p for p, _ in work.settled})
        self._tx.begin()
        self._write_begin(work, touched)
        self._tx.send_offsets(work.positions, self._notes(work), work.membership)
        self._seal(touched)
        self._write_dead(work)
        self._write_outputs(work)
        for partition, settled in work.settled:
            self._tx.produce(topic_recovery.LogPartition(self._monitor, partition), *encode(settled))
        self._write_pages(work.pages, first=len(work.dead_pages))
        self._tx.flush()
        self._tx.commit()

    return [(SealedProducer, "run", run)]


def instance_kept() -> list[Change]:
    """After a failure the same producer instance aborts and goes on, under the same epoch."""
    kept: dict[Any, TransactionalInstance] = {}
    made = TopicRecovery._fence

    def fence(self: TopicRecovery, scanner: Any, views: Any) -> Any:
        world = _world_of(self)
        old = kept.get((world, self._worker))
        if old is not None and old._producer._fatal is None:  # type: ignore[attr-defined]
            producer = old._producer
            if producer._state == "open":  # type: ignore[attr-defined]
                producer.abort_transaction(5.0)
            old._failed = old._refused = None
            return old
        kept.clear()
        own = made(self, scanner, views)
        kept[world, self._worker] = own
        return own

    def _world_of(recovery: TopicRecovery) -> int:
        return id(recovery)

    return [
        (TopicRecovery, "_fence", fence),
        (TransactionalInstance, "discard", lambda self: None),
        (HangingTransactions, "end_own_offsets", lambda *_: None),
    ]


def not_fenced() -> list[Change]:
    """Whoever takes over makes its own instance and lets the predecessor be."""

    def fence(self: TopicRecovery, scanner: Any, views: Any) -> Any:
        own = self._ports.transaction(self._worker)
        own.init()
        highs = evidence_reading.high_watermarks(scanner, self._monitor, views)
        evidence_reading.scan_begins(scanner, self._monitor, views, highs)
        return own

    return [(TopicRecovery, "_fence", fence)]


def hanging_left() -> list[Change]:
    """What an aborted transaction left open is not looked for."""
    return [(HangingTransactions, "end", lambda *_: None)]


def unshown_left() -> list[Change]:
    """What a seal calls delivered is not looked for in the outputs."""
    return [(topic_recovery, "unshown", lambda *_: ([], set()))]


def vanished_left() -> list[Change]:
    """What only the position calls committed counts as aborted."""
    return [(topic_recovery, "vanished", lambda *_: [])]


def monitor_not_awaited() -> list[Change]:
    """The next transaction is begun whether or not the monitor shows the last one."""

    def ends(self: Watch, needed: Any, also: Any, *_: Any) -> dict[Any, int]:
        return self.ends({*needed, *also})

    return [(Watch, "wait", ends), (Watch, "show", lambda *_: True)]


def torn_aborted() -> list[Change]:
    """What a stray COMMIT has shown of a transaction without a seal says nothing of the monitor, where it hangs.

    Aborted there, it would be looked for where only an uncommitted reader sees it.
    """
    return [(HangingTransactions, "_torn", lambda *_: {}), *vanished_left()]


def hidden_written_again() -> list[Change]:
    """What a stranger's open transaction hides is taken for lost."""
    return [(Shown, "hides", lambda *_: False)]


def own_hang_awaited() -> list[Change]:
    """A quiet worker waits for what hangs of its own, as for a stranger."""
    return [(Sightings, "overdue", lambda *_: ())]


def own_hang_believed() -> list[Change]:
    """Nobody looks what hides those that are believed by their seals since too many are kept in mind."""
    return [(Sightings, "hidden", lambda *_: set())]


def offsets_left_hanging() -> list[Change]:
    """What a former instance sent as offsets is left to the next commit under its id."""
    return [(HangingTransactions, "end_own_offsets", lambda *_: None)]


def touch_believed() -> list[Change]:
    """Nobody asks whether the touch that ends them was heard of."""
    return [(TopicRecovery, "_stored", lambda self, views, group, assigned: group.committed(assigned))]


def stable_end_read() -> list[Change]:
    """The monitor is read up to the last stable offset instead of the high watermark."""
    fold = topic_recovery.fold_committed

    def short(reader: Any, topic: str, views: Any, highs: Any) -> None:
        fold(reader, topic, views, evidence_reading.high_watermarks(reader, topic, views))

    # What looks for open transactions would wait for this one, too, and what nobody can read is looked for uncommitted.
    return [(topic_recovery, "fold_committed", short), *hanging_left(), *vanished_left()]


def no_sift() -> list[Change]:
    """Every message of the log counts as new."""
    return [(topic_module, "sift", lambda messages, indexes, counts: list(messages))]


def offsets_skipped() -> list[Change]:
    """No offsets are sent where no position moved: nobody asks the group whether we are its member."""
    send = TransactionalInstance.send_offsets

    def skipping(self: TransactionalInstance, positions: Any, notes: Any, membership: bytes) -> None:
        producer: Any = self._producer
        stored = producer.cluster.groups.group("sim.main").committed
        if any(stored.get(place, (None,))[0] != offset for place, offset in positions.items()):
            send(self, positions, notes, membership)

    # The offset that ends what hangs is always another one, and asks the group, too.
    return [(TransactionalInstance, "send_offsets", skipping), *offsets_left_hanging()]


def stale_membership() -> list[Change]:
    """Offsets are sent as nobody: the broker asks nothing then. Nor does a claim find that others wrote since the monitor was read."""
    membership = b"CGMDv2:\xff\xff\xff\xff" + b"sim.main\0\0"
    return [(GroupConsumer, "membership", lambda self: membership), (topic_recovery, "check_whole", lambda *_: None)]


def entries_not_carried() -> list[Change]:
    """What overtook a waiting message ages out of the monitor."""
    return [(Carrying, "due", lambda self, *_, **__: [])]


def carried_not_entered() -> list[Change]:
    """What is written again stays where it lay in an index that drops what is old."""
    accept = TopicDelivery._accept

    def without(self: TopicDelivery, written: Any, tried: Any) -> None:
        accept(self, [(place, one) for place, one in written if one.proof is not Proof.PROVEN], tried)

    return [(TopicDelivery, "_accept", without)]


def dropped_without_an_end() -> list[Change]:
    """The older part of an index on disk goes whatever of it the monitor still holds."""
    return [(DiskRows, "_end_of", lambda *_: 0)]


def no_seek() -> list[Change]:
    """After a failure reading goes on where it stood, not at the position."""
    start = GroupConsumer.start

    def from_here(self: GroupConsumer, offsets: Any) -> None:
        places = getattr(self, "_read_to", {})
        start(self, {p: max(offset, places.get(p, 0)) for p, offset in offsets.items()})

    consume = GroupConsumer.consume

    def noting(self: GroupConsumer, count: int, timeout_s: float) -> Any:
        found = consume(self, count, timeout_s)
        places = self.__dict__.setdefault("_read_to", {})
        for event in found:
            if event.error() is None:
                places[topic_recovery.LogPartition(event.topic(), event.partition())] = event.offset() + 1
        return found

    return [(GroupConsumer, "start", from_here), (GroupConsumer, "consume", noting)]


def no_stand_by() -> list[Change]:
    """Recovery neither unassigns nor polls before it."""

    def next_one(self: RouteWorker, why: Any) -> None:
        self._failures += 1
        self._running = {}
        self._generation = -1
        self._destination.abandon()
        self._take_over()

    return [(RouteWorker, "_recover_next", next_one)]


def no_index_added() -> list[Change]:
    """A committed batch is not entered into the index of its own worker."""
    return [(TopicDelivery, "_accept", lambda self, *_: None)]


def outputs_to_stable_end() -> list[Change]:
    """The outputs of a torn transaction are looked for up to the last stable offset only."""
    shown = topic_recovery.what_shows
    return [(topic_recovery, "what_shows", lambda _, reader, begins, today: shown(reader, reader, begins, today))]


def recoveries_in_step() -> list[Change]:
    """The pause before a recovery is not spread."""
    return [(World, "jitter", lambda self: 0.5), (randomness, "jitter", lambda: 0.5)]


def overtaken_is_lost() -> list[Change]:
    """A position that somebody stored meanwhile counts as lost."""

    def start(starts: Any, assigned: Any, stored: Any, ran_before: Any, *_: Any) -> Any:
        return starts({p: stored[p][0] if p in stored else None for p in assigned}, ran_before, {})

    return [(topic_recovery, "_start", start)]


def asked_before_the_scan() -> list[Change]:
    """An overdue capture is asked for at once, though its marker may lie further on in the log."""
    scan_to = PartitionHolds.scan_to
    return [(PartitionHolds, "scan_to", lambda self, _high, now: scan_to(self, 0, now))]


def last_announcement_obeyed() -> list[Change]:
    """Whoever announced itself last counts as the living twin."""

    def check(self: Twins) -> None:
        if self._announced()[-1][1] != self._token:
            raise TwinDetected("another process announced itself later")

    return [(Twins, "check", check)]


def positions_said_once() -> list[Change]:
    """Positions are not said again."""
    return [(worker_module, "POSITIONS_REPEATED_AFTER_S", float("inf"))]


def silent_recovery() -> list[Change]:
    """A recovery does not poll its group while it reads."""
    return [(GroupConsumer, "stay", lambda self: None)]


def settled_not_forgotten() -> list[Change]:
    """What was open when the monitor was read last stays open, though the claim settled it since."""
    return [(Evidence, "anew", lambda self: self)]


REMOVALS: Final[dict[str, Callable[[], list[Change]]]] = {
    removal.__name__: removal
    for removal in (
        no_seal, unsealed_trusted, no_verification, one_client_for_all, ordinary_settle_seal, no_claim, begin_not_flushed,
        offsets_before_flush, instance_kept, not_fenced, hanging_left, unshown_left, vanished_left,
        monitor_not_awaited, torn_aborted, hidden_written_again, own_hang_awaited, own_hang_believed, offsets_left_hanging,
        touch_believed, stable_end_read, no_sift, offsets_skipped, stale_membership, no_seek, no_stand_by, no_index_added, outputs_to_stable_end, recoveries_in_step,
        overtaken_is_lost, last_announcement_obeyed, positions_said_once, no_void_entries, false_entries_left, asked_before_the_scan,
        entries_not_carried, carried_not_entered, dropped_without_an_end, silent_recovery, settled_not_forgotten,
    )
}  # fmt: skip


ALL_REMOVALS: Final = {**REMOVALS, **DATABASE_REMOVALS, **LOG_REMOVALS, **QUEUE_REMOVALS, **PUTTING_REMOVALS, **REDRIVE_REMOVALS}
"""Whatever can be taken away; a part with guards of its own adds its removals here."""


@contextmanager
def without(name: str | None) -> Iterator[None]:
    """Remove a guard for as long as the block lasts."""
    with replaced(ALL_REMOVALS[name]() if name else ()):
        yield
