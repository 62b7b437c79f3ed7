"""Topic routes: every batch is one sealed Kafka transaction of outputs, monitor entries and offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NoReturn

import structlog

from relay.delivery.batch import Batch, Counts
from relay.delivery.deadletter import DeadRecord, Letters
from relay.delivery.evidence_reading import MonitorView
from relay.delivery.lane_outputs import LaneOutputs
from relay.delivery.numbering import HORIZON_S, RangeUpkeep, accept, closings, judged, written
from relay.delivery.ports import Book, Group, KafkaPorts, Starts
from relay.delivery.sifting import sift
from relay.delivery.topic.carrying import Carrying
from relay.delivery.topic.narrowing import Narrowing
from relay.delivery.topic.recovery import TopicRecovery
from relay.delivery.topic.sealed import SealedProducer, SealedWork
from relay.delivery.topic.told import Persons, split
from relay.delivery.topic.unshown import Derive
from relay.delivery.topic.written_again import WrittenAgain
from relay.message.errors import Fenced, InDoubt, MessageRejected, RecordRefused, Retriable, Stopped
from relay.message.record import LogMessage, LogPartition
from relay.monitor.entries import DEAD, InputRange, Page, pages
from relay.monitor.ranges import Closings, RangeEntry, RangeLimits, Ranges
from relay.monitor.resolution import Resolution

log = structlog.get_logger("relay.topic")
READ_AT_ONCE: Final = 500
"""Few enough that what records become still lies in the processor's cache when it is used."""
CLAIMS_PER_HORIZON: Final = 4
LOOK_S: Final = 1.0
"""Between batches outputs are asked for so often, while some were not seen closed."""
NEWS_AFTER_S: Final = 30.0
"""A quiet route, or partition, says that its outputs were seen closed: a recovery would else read what others have written since."""
IDLE_S: Final = 5.0
"""A route without a batch for so long writes the ranges that are due in a transaction of their own."""


class TopicDelivery:
    """Delivers one worker's batches to a topic. Not thread-safe: the worker's one thread calls it."""

    def __init__(
        self,
        ports: KafkaPorts,
        *,
        route: str,
        group_id: str,
        transactional_id: str,
        monitor_topic: str,
        topic: str,
        topic_partitions: int,
        output_id: bytes = b"",
        letters: Letters,
        stop_on_dead: bool,
        book: Book | None = None,
        limits: RangeLimits | None = None,
        horizon_s: float = HORIZON_S,
        derive: Derive = lambda *_: None,
        keeps_all: bool = True,
        kept: Mapping[str, float] | None = None,
        now_ms: Callable[[], float] | None = None,
    ) -> None:
        self._monitor = monitor_topic
        self.counts = Counts()
        self.read_at_once = READ_AT_ONCE
        self.asked_again_s = float("inf")
        self._narrowing = Narrowing()
        self._outputs = LaneOutputs([LogPartition(topic, p) for p in range(topic_partitions)])
        self._letters = letters
        self._recovery = TopicRecovery(
            ports,
            transactional_id=transactional_id,
            monitor_topic=monitor_topic,
            outputs=self._outputs.places,
            output_id=output_id,
            group_id=group_id,
            letters=letters,
            persons=Persons(book, route),
            derive=derive,
            rewrite=WrittenAgain(transactional_id, self._outputs, letters, keeps_all=keeps_all),
            kept=kept,
            now_ms=now_ms,
        )
        self._told: list[Resolution] = []
        self._limits = limits or RangeLimits()
        self._upkeep = RangeUpkeep(ports, monitor_topic, horizon_s)
        self._carrying = Carrying(horizon_s)
        self._claims_s = horizon_s / CLAIMS_PER_HORIZON
        self._claim_at: float | None = None
        self._membership = b""
        self._positions: Mapping[LogPartition, int] = {}
        self._reached: Mapping[LogPartition, int] = {}
        self._now = self._idle_since = self._look_at = self._news_at = 0.0
        self._news: Mapping[int, int] = {}
        self._worker = transactional_id
        self._route = route
        self._stop_on_dead = stop_on_dead
        self._producer: SealedProducer | None = None
        self._views: dict[int, MonitorView] = {}
        self._in_doubt_to: dict[LogPartition, int] = {}
        self._topic_ids: Mapping[str, str] = {}
        self._condemned: dict[tuple[bytes, int], MessageRejected] = {}
        self._replays: Mapping[bytes, int] = {}

    def recover(
        self,
        assigned: Sequence[LogPartition],
        views: list[MonitorView],
        group: Group,
        starts: Starts,
        topic_ids: Mapping[str, bytes],
    ) -> dict[LogPartition, int]:
        """Recover the assigned partitions and return where to read on; see ``recovery.py``."""
        self.abandon()
        self._narrowing.keep(assigned)
        membership = group.membership()
        self._topic_ids = {topic: topic_id.hex() for topic, topic_id in topic_ids.items()}
        try:
            found = self._recovery.run(assigned, views, group, starts, self._topic_ids)
        except RecordRefused as refusal:
            raise Stopped(
                f"what a recovery writes is refused ({refusal}), since it writes again what {self._outputs.places[0].topic!r} or "
                f"{self._letters.places[0].topic!r} has lost, or settles in {self._monitor!r}; undo what was changed at these "
                "topics, max.message.bytes or message.timestamp.*.max.ms most likely"
            ) from refusal
        self._producer = found.producer
        self._views = {view.partition: view for view in views}
        for view in views:
            view.index.ranges.limits = self._limits
            view.index.ranges.mark(view.read_to, exact=True)
        self._membership, self._positions, self._reached = membership, found.starts, {}
        self._carrying.start()
        self._claim_at = None
        self._news = {}
        self._in_doubt_to = found.in_doubt_to
        self._told = found.told
        self.counts.recoveries += 1
        self.counts.settled += found.settled
        return found.starts

    def submit(self, batch: Batch) -> None:
        """Deliver a batch in one sealed transaction.

        Raises InDoubt, Fenced or a Kafka failure after which the worker must recover; nothing is assumed of what
        the batch left. A refused record narrows the next batches down to it and then makes it a dead letter.
        """
        if self._producer is None:
            raise Fenced("this worker has no producer; it must recover first")
        tried = Counts()
        self._replays = batch.replays
        fresh = batch.messages
        if not batch.replays:
            fresh = sift(batch.messages, {p: view.index for p, view in self._views.items()}, tried)
        numbers = closings(batch)
        if numbers:
            fresh = judged(fresh, numbers, self._ranges(), tried)
        work, entered = self._work(batch, fresh, tried)
        work.ranges = self._written(numbers)
        try:
            self._producer.run(work)
        except RecordRefused as refusal:
            self._narrow(fresh, refusal)
            raise InDoubt(f"a record was refused ({refusal}); the batch is tried in smaller parts") from refusal
        except Exception:
            # In doubt: recovery finds out; what it delivers again may have been too much for one transaction.
            self._narrowing.failed(len(batch.messages))
            raise
        self._accept(entered, tried)
        self._narrowing.passed(batch.messages)
        if self._condemned:
            for message in batch.messages:
                self._condemned.pop((message.digest, batch.replays.get(message.digest, 0)), None)
        accept(self._ranges(), numbers, work.ranges, self._now)
        self._membership, self._positions, self._idle_since = batch.membership, batch.positions, self._now
        if not batch.replays:
            self._reached = batch.reached

    def settled(self) -> bool:
        """A topic route is done with a batch when ``submit`` returns."""
        return True

    def wait(self, seconds: float) -> bool:  # noqa: ARG002 - the port's signature
        """Nothing is ever under way between calls."""
        return True

    def positions(self) -> None:
        """The transaction itself carries the positions."""
        return

    def listen(self) -> None:
        """It follows nobody's word."""

    def tend(self, now: float) -> None:
        """Between batches: write again what would age out of the monitor, entries and claims at any time, ranges on an idle route.

        The positions are those of the last batch, and so is the membership they are stored under: after a rebalance in
        mid-batch the broker must refuse them.
        """
        self._now = now
        self._upkeep.tend(now, self._views.values(), {place.topic for place in self._positions})
        if self._producer is None:
            return
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._producer.look(now)
        pages = self._carrying.due(
            now, self._views.values(), self._positions, self._reached,
            worker=self._worker, instance=self._producer.instance, n=self._producer.n + 1,
        )  # fmt: skip
        ranges = self._written({}) if now - self._idle_since >= IDLE_S else []
        claims = self._claims(now)
        if pages or ranges or claims:
            work = SealedWork(
                self._positions, self._membership, pages=pages, ranges=ranges, claims=claims, topic_ids=self._topic_ids
            )
            try:
                self._producer.run(work)
            except RecordRefused as refusal:
                raise Stopped(
                    f"what keeps evidence from leaving {self._monitor!r} is refused ({refusal}); undo what was changed at this topic, "
                    "max.message.bytes most likely"
                ) from refusal
            # An index on disk drops what has left the monitor; what is written again came again.
            self._accept(pages, Counts())
            accept(self._ranges(), {}, ranges, now)

    def _claims(self, now: float) -> set[int]:
        """Batches claim where something moves; whoever takes a quiet partition over must find this worker there, too.

        So it is with the news that all outputs were seen closed, where no batch brings it.
        """
        assert self._producer is not None
        if now - self._idle_since >= NEWS_AFTER_S and (news := self._producer.news):
            return set(news)
        if now >= self._news_at:
            self._news_at = now + NEWS_AFTER_S
            before, self._news = self._news, self._producer.news
            quiet = {partition for partition, n in self._news.items() if before.get(partition) == n}
            if quiet:
                return quiet
        if self._claim_at is not None and now >= self._claim_at:
            self._claim_at = now + self._claims_s
            return set(self._views)
        self._claim_at = now + self._claims_s if self._claim_at is None else self._claim_at
        return set()

    def close(self) -> None:
        """Throw the producer away; nothing is open between batches."""
        self.abandon()

    def abandon(self) -> None:
        """Throw the producer instance away: after an error, a lost assignment, or at the end."""
        if self._producer is not None:
            self._producer.discard()
            self._producer = None

    def entering(self) -> AbstractSet[bytes]:
        """None: entries are committed with the outputs."""
        return frozenset()

    @property
    def narrowed_to(self) -> int | None:
        """How many messages the next batch may have at most, while a refused record is looked for."""
        return self._narrowing.limit

    @property
    def in_doubt(self) -> Mapping[LogPartition, int]:
        """Up to where messages were attempted by someone before and are not yet proven."""
        return self._in_doubt_to

    def _work(
        self, batch: Batch, fresh: list[LogMessage], tried: Counts
    ) -> tuple[SealedWork, list[tuple[int, Page]]]:
        assert self._producer is not None
        suspicious = fresh if self._condemned else [message for message in fresh if message.fault is not None]
        bad = [(message, cause) for message in suspicious if (cause := self._fault(message)) is not None]
        if bad and self._stop_on_dead and not batch.replays:
            self._stop(fresh, *bad[0])
        good = [message for message in fresh if self._fault(message) is None] if bad else fresh
        told: dict[str, list[LogMessage]] = {}
        if self._told and not batch.replays:
            good, told = split(good, self._told)
        entered = self._pages(good, outcomes=None)
        for reference, messages in told.items():
            entered += self._pages(messages, outcomes=None, by=reference)
            tried.told += len(messages)
        dead_entered = self._pages([m for m, _ in bad], outcomes=bytes([DEAD]) * len(bad))
        # A settlement must learn of a redriven message's partition, though nothing moves there.
        redriven = {LogPartition(m.topic, m.partition) for m in fresh} if batch.replays else set()
        tried.delivered += len(good)
        work = SealedWork(
            positions=batch.positions,
            membership=batch.membership,
            inputs=[
                InputRange(p.topic, p.partition, batch.first[p], reached)
                for p, reached in batch.reached.items()
                if reached > batch.first[p] or p in redriven
            ],
            outputs=self._outputs.sort(good),
            pages=entered,
            dead=[self._dead(message, cause, tried) for message, cause in bad],
            dead_pages=dead_entered,
            taken_back=[
                self._letters.taking_back(message, batch.replays[message.digest])
                for message in (good if batch.replays else ())
            ],
            claims={p.partition for p, end in batch.positions.items() if end > batch.first[p]},
            topic_ids=self._topic_ids,
            anchors=batch.anchors,
            meanwhile=batch.meanwhile,
        )
        return work, [*entered, *dead_entered]

    def _ranges(self) -> dict[int, Ranges]:
        return {partition: view.index.ranges for partition, view in self._views.items()}

    def _written(self, numbers: Mapping[int, Closings]) -> list[tuple[int, RangeEntry]]:
        """The ranges that the next transaction writes; what it closes itself counts only once it is sealed."""
        assert self._producer is not None
        due = self._upkeep.due(self._now, self._views.values())
        if not numbers and not due:
            return []
        names: dict[str, Any] = {"worker": self._worker, "instance": self._producer.instance, "n": self._producer.n + 1}
        return written(self._ranges(), numbers, due, **names)

    def _fault(self, message: LogMessage) -> MessageRejected | None:
        return message.fault or self._condemned.get((message.digest, self._replays.get(message.digest, 0)))

    def _pages(
        self, messages: list[LogMessage], outcomes: bytes | None, by: str | None = None
    ) -> list[tuple[int, Page]]:
        """Entries of messages; those in doubt when this worker took over carry its name as the recovery's.

        ``by`` is the audit record of a person who said that they were delivered.
        """
        assert self._producer is not None
        if not messages:
            return []
        groups: list[tuple[str | None, list[LogMessage]]] = [(by and f"{self._worker}, {by}", messages)]
        if self._in_doubt_to and by is None:
            doubtful = [m for m in messages if m.offset < self._in_doubt_to.get(LogPartition(m.topic, m.partition), 0)]
            marked = {id(m) for m in doubtful}
            groups = [(self._worker, doubtful), (None, [m for m in messages if id(m) not in marked])]
        return [
            (page.partition, page)
            for recovery, group in groups
            if group
            for page in pages(
                group,
                worker=self._worker,
                instance=self._producer.instance,
                n=self._producer.n + 1,
                recovery=recovery,
                outcomes=outcomes[: len(group)] if outcomes is not None else None,
                replays=bytes(self._replays[message.digest] for message in group) if self._replays else b"",
            )
        ]

    def _dead(self, message: LogMessage, cause: MessageRejected, tried: Counts) -> DeadRecord:
        tried.died(cause.code)
        return self._letters.of(message, cause, self._replays.get(message.digest, 0))

    def _stop(self, fresh: list[LogMessage], message: LogMessage, cause: MessageRejected) -> NoReturn:
        """Deliver what lies before a message that nobody may put aside, then stop at it."""
        if len(fresh) > 1:
            self._narrowing.first(fresh[: max(1, fresh.index(message))])
            raise Retriable(f"{message!r} cannot be delivered; what lies before it comes first")
        raise Stopped(
            f"{message!r} of route {self._route!r} cannot be delivered ({cause.code}: {cause}); on_dead = \"stop\" "
            "keeps it from becoming a dead letter: mend the message's destination, or set on_dead = \"continue\""
        )

    def _narrow(self, fresh: list[LogMessage], refusal: RecordRefused) -> None:
        if len(fresh) == 1 and self._fault(fresh[0]) is not None:
            raise Stopped(
                f"the dead letter of {fresh[0]!r} is refused as well ({refusal}); raise max.message.bytes of "
                f"{self._letters.places[0].topic!r}, and \"message.max.bytes\" of [kafka] if it is set"
            )
        if len(fresh) == 1:
            tried = fresh[0].digest, self._replays.get(fresh[0].digest, 0)
            self._condemned[tried] = MessageRejected("apply", "refused", f"the broker refuses it: {refusal}")
        else:
            self._narrowing.refused(fresh)
        log.warning("narrowing", tried=len(fresh), next=self._narrowing.limit, reason=str(refusal))

    def _accept(self, written: list[tuple[int, Page]], tried: Counts) -> None:
        """The transaction committed: its entries are proven, its counts hold."""
        assert self._producer is not None
        for partition, page in written:
            view = self._views[partition]
            view.index.add_page(page)
        for view in self._views.values():
            begun = self._producer.begin_offset(view.partition)
            if begun is not None:
                view.own_begin = view.scan_from = begun
            view.written_to = max(view.written_to, self._producer.written_to(view.partition))
        self.counts.add(tried)
        self.counts.transactions += 1
