"""The topic of decisions: written by one driver at a time, fenced by its writer's id; read by whoever holds messages.

A decision's transaction is the only one of its producer instance, so no request of an earlier transaction can end it
(KAFKA-17754); what its commit's answer leaves unknown is found out by reading again under a new, fenced instance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from confluent_kafka import KafkaException

from relay.capture.decisions import (
    NO_PREVIOUS,
    UnitDecision,
    UnitDecisions,
    decode_decision,
    encode_decision,
    standing,
    unit_in_key,
    unit_of_writer,
)
from relay.kafka import settings
from relay.kafka.failures import is_denied, kafka_error, sentence
from relay.kafka.reading import PartitionReader
from relay.kafka.settings import TimingLike
from relay.kafka.transactions import TransactionalInstance
from relay.message.errors import ConfigError, InDoubt, RecordRefused, Stopped, Unreachable
from relay.message.record import LogPartition, Record, of_other_version
from relay.message.schemas import OtherVersion
from relay.world import clock, randomness
from relay.world.crash import crash_point

TRIES: Final = 8
PAUSE_S: Final = 0.5
FIRST_WINDOW: Final = 500
WINDOW_GROWTH: Final = 8
DEADLINE_S: Final = 30.0
_END_WAIT_MS: Final = 5
"""How long a broker may keep the answer that tells the end of what is decided: a driver waits for it twice a batch."""


def decisions_partition(relay: str) -> LogPartition:
    """Return where a relay's decisions are: one partition, whose order is the order of the decisions."""
    return LogPartition(f"{relay}.decisions", 0)


def writer_id(relay: str, writer: str) -> str:
    """Return the transactional id under which one writer decides, so that a successor fences it."""
    return f"{relay}.decide.{writer}"


class Unread(NamedTuple):
    """What another version wrote of a unit: the key names that, and the rest cannot be read."""

    unit: str
    why: Stopped


class DecisionWriter:
    """Decides for the units of one writer. Raises Unreachable, ConfigError, InDoubt, Stopped."""

    def __init__(self, kafka: Mapping[str, str], timing: TimingLike, relay: str) -> None:
        self._kafka = kafka
        self._timing = timing
        self._relay = relay
        self._partition = decisions_partition(relay)
        self._connected: TransactionalInstance | None = None

    def connect(self, writer: str) -> None:
        """Connect, in the background, the instance with which the first ``decide`` for this writer fences.

        Nothing is fenced yet. A client that has just been made may take half a second to its first answer.
        """
        self._connected = self._instance(writer_id(self._relay, writer))

    def decide(self, wanted: UnitDecision, *, is_streams: bool = False) -> UnitDecision:
        """Write ``wanted`` unless its unit, or its run, is decided already; return the decision that stands.

        ``is_streams``: the batch is numbered by a streaming query, which runs none again but its last (ConfigError).

        1. Fence the writer's predecessor and end what it left open. 2. Take the high watermark, then read what the
        writer has decided. 3. If nothing stands, append and commit. An unknown answer, or another driver's fencing,
        starts again at 1: whoever decides first is right for both.
        """
        last: Exception | None = None
        for attempt in range(TRIES):
            if attempt:
                clock.sleep(PAUSE_S * (attempt + randomness.jitter()))
            try:
                return self._decide_once(wanted, is_streams=is_streams)
            except RecordRefused as refused:
                raise ConfigError(
                    f"the decision of unit {wanted.unit.name} does not fit into {self._partition.topic} ({refused}); raise "
                    "its max.message.bytes, or write with fewer tasks (coalesce)"
                ) from refused
            except KafkaException as failure:
                error = kafka_error(failure)
                if error is not None and is_denied(error):
                    raise ConfigError(
                        f"unit {wanted.unit.name} cannot be decided: {sentence(failure)}; correct the right or the credential"
                    ) from failure
                last = failure  # In doubt: found out by the next reading, under a fenced instance.
            except (InDoubt, Unreachable) as failure:
                last = failure  # In doubt, or not even begun: the same.
        raise InDoubt(
            f"whether unit {wanted.unit.name} is decided is unknown after {TRIES} tries ({sentence(last or InDoubt())}); run "
            "it again when the brokers answer: it finds out first"
        ) from last

    def _decide_once(self, wanted: UnitDecision, *, is_streams: bool) -> UnitDecision:
        name = writer_id(self._relay, wanted.unit.writer)
        instance, self._connected = self._connected, None
        if instance is None or instance.transactional_id != name:
            instance = self._instance(name)
        try:
            instance.init()
            crash_point("decide.fenced")
            previous, known = self._known(wanted)
            stands = _standing(known, wanted, is_streams=is_streams)
            if stands is not None:
                return stands
            written = replace(wanted, previous=previous, at=clock.wall_ms())
            instance.begin()
            instance.produce(self._partition, *encode_decision(written))
            instance.flush()
            crash_point("decide.written")
            instance.commit()
            crash_point("decide.committed")
            return written
        finally:
            instance.discard()

    def _instance(self, name: str) -> TransactionalInstance:
        given = settings.producer(self._kafka, self._timing, name, log_level=0)
        return TransactionalInstance(given, name, self._timing.transaction_timeout)

    def known(self, wanted: UnitDecision, *, is_streams: bool = False) -> UnitDecision | None:
        """Return the decision that stands, without fencing anybody: a hint, since one may be under way.

        Raises Unreachable if the brokers do not answer after some tries: a partition that was just made, or whose
        leader has just changed, has none for a moment. ConfigError as ``decide``, so that no row is written in vain.
        """
        for attempt in range(TRIES):
            try:
                return _standing(self._known(wanted)[1], wanted, is_streams=is_streams)
            except Unreachable:
                # Retry: nothing but reading.
                if attempt == TRIES - 1:
                    raise
                clock.sleep(PAUSE_S * (attempt + randomness.jitter()))
        raise AssertionError("returned or raised above")

    def _known(self, wanted: UnitDecision) -> tuple[int, list[UnitDecision]]:
        """Return the offset of the writer's latest decision, and its decisions back to one behind which none is of this unit.

        That is the commit of an earlier batch. A run of one may be closed at any time, and a named write may have the query's name.
        """
        over = {"log_level": 0, "fetch.wait.max.ms": _END_WAIT_MS}
        given = settings.consumer(self._kafka, self._timing, writer_id(self._relay, "reader"), **over)

        def reader(*, committed: bool) -> PartitionReader:
            return PartitionReader(
                given, committed=committed, clock=clock.monotonic, deadline_s=DEADLINE_S, batch=1
            )

        with reader(committed=False) as uncommitted:
            low, high = uncommitted.watermarks(self._partition)
        with reader(committed=True) as committed:
            latest = self._latest(committed, low, high, wanted.unit.writer)
            offset, found = NO_PREVIOUS if latest is None else latest[0], []
            while latest is not None:
                at, decision = latest
                if isinstance(decision, Unread):
                    self._pass(decision, wanted)
                    latest = self._latest(committed, low, at, wanted.unit.writer)
                    continue
                found.append(decision)
                ends = decision.committed and not decision.unit.is_named and decision.unit.ordinal < wanted.unit.ordinal
                if ends or decision.previous < low:
                    break
                latest = next(iter(self._read(committed, decision.previous, decision.previous + 1)), None)
            return offset, found

    def _pass(self, unread: Unread, wanted: UnitDecision) -> None:
        """Raise Stopped unless what another version wrote is of an earlier batch, or of the write that has the query's name."""
        unit = unit_of_writer(unread.unit, wanted.unit.writer)
        if unit is None or unit.name == wanted.unit.name or (not unit.is_named and unit.ordinal >= wanted.unit.ordinal):
            raise unread.why

    def _latest(
        self, reader: PartitionReader, low: int, high: int, writer: str
    ) -> tuple[int, UnitDecision | Unread] | None:
        """Look backwards in growing windows: a writer at work has decided a short while ago."""
        window, end = FIRST_WINDOW, high
        while end > low:
            first = max(low, end - window)
            mine = [one for one in self._read(reader, first, end) if _is_of(one[1], writer)]
            if mine:
                return mine[-1]
            end, window = first, window * WINDOW_GROWTH
        return None

    def _read(self, reader: PartitionReader, first: int, end: int) -> list[tuple[int, UnitDecision | Unread]]:
        return [
            (record.offset(), decision)
            for records in reader.read({self._partition: (first, end)})
            for record in records
            if (decision := _decoded(record)) is not None
        ]


def _standing(known: list[UnitDecision], wanted: UnitDecision, *, is_streams: bool) -> UnitDecision | None:
    """Return the decision that stands; ConfigError for a batch that is not decided, and comes behind a later one that is.

    Batches that came in any order would be looked for in vain, and decided twice. One that a stream comes back to is refused although it
    is decided: its checkpoint went back, so that Spark has put other rows into it, which would count for written.
    """
    stands = standing(known, wanted.unit, wanted.run)
    if (stands is None or is_streams) and wanted.committed and not wanted.unit.is_named:
        later = [one.unit.ordinal for one in known if one.committed and one.unit.ordinal > wanted.unit.ordinal]
        if later:
            query, number = wanted.unit.writer, wanted.unit.ordinal
            raise ConfigError(
                f"batch {number} of {query} comes behind batch {max(later)}, which is decided: a query's batches are decided in their "
                "order; bring its checkpoint back, or give it another name"
            )
    return stands


def _is_of(decision: UnitDecision | Unread, writer: str) -> bool:
    if isinstance(decision, Unread):
        return unit_of_writer(decision.unit, writer) is not None
    return decision.unit.writer == writer


def _decoded(record: Record) -> UnitDecision | Unread | None:
    """Return the decision that a record holds; None for anything else. Raises Stopped if another version's names no unit."""
    try:
        return decode_decision(record.value())
    except OtherVersion as error:
        why, unit = of_other_version(record.topic(), record.partition(), record.offset()), unit_in_key(record.key())
        if unit is None:
            raise why from error
        return Unread(unit, why)


class DecisionLog:
    """Reads every decision once, in order, up to the high watermark of the moment. For one thread."""

    def __init__(self, open_reader: Callable[[bool], PartitionReader], relay: str) -> None:
        self._open = open_reader
        self._partition = decisions_partition(relay)
        self._readers: tuple[PartitionReader, PartitionReader] | None = None
        self._read_to = 0
        self._last: tuple[int, bytes | None] | None = None
        self._decisions = UnitDecisions()

    def decisions(self) -> UnitDecisions:
        """Return what is decided now. Raises Unreachable, Stuck while a decision is still being made, or Stopped for another version's
        whose key names no unit."""
        if self._readers is None:
            self._readers = (self._open(False), self._open(True))
        uncommitted, committed = self._readers
        low, high = uncommitted.watermarks(self._partition)
        if high < self._read_to or not self._read_on(committed, low, high):
            # Kafka went back to an older state: what was decided since is undecided again, and may be decided otherwise.
            self._read_to, self._last, self._decisions = 0, None, UnitDecisions()
            self._read_on(committed, low, high)
        self._read_to = max(self._read_to, high)
        self._decisions.forget_below(low)
        return self._decisions

    def _read_on(self, committed: PartitionReader, low: int, high: int) -> bool:
        """Take what came; False if the last record that was read is another one by now: the topic was cut, and has grown again.

        The end alone does not tell that: whoever holds no message of a unit does not ask for hours.
        """
        first = max(low, self._read_to)
        known = self._last if self._last is not None and self._last[0] >= low and first < high else None
        for records in committed.read({self._partition: (first if known is None else known[0], high)}):
            for record in records:
                found = record.offset(), record.value()
                if known is not None:
                    if found != known:
                        return False
                    known = None
                    continue
                decision = _decoded(record)
                if isinstance(decision, Unread):
                    self._decisions.add_unread(decision.unit, str(decision.why), record.offset())
                elif decision is not None:
                    self._decisions.add(decision, record.offset())
                self._read_to, self._last = record.offset() + 1, found
        return known is None

    def close(self) -> None:
        """Leave."""
        for reader in self._readers or ():
            reader.close()
        self._readers = None
