"""The transaction coordinator as every librdkafka client meets it: transactions of version 1.

An epoch lives as long as its producer instance, so the coordinator cannot tell a late EndTxn of one transaction from
the EndTxn of the next (KAFKA-17754). EndTxn is answered once the decision is stored; the markers follow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from typing import Final, NamedTuple

from confluent_kafka import KafkaError

from tests.simulation.broker import NONE, Topics
from tests.simulation.broker_groups import Groups, OffsetsOf
from tests.simulation.scheduler import World

REAP_PERIOD_S: Final = 2.0
"""How often the coordinator looks for transactions that have timed out (the broker's default is 10 s)."""


class State(Enum):
    """Of a transactional id."""

    EMPTY = "empty"
    ONGOING = "ongoing"
    PREPARE_COMMIT = "prepare commit"
    PREPARE_ABORT = "prepare abort"
    COMPLETE_COMMIT = "complete commit"
    COMPLETE_ABORT = "complete abort"


_PREPARED: Final = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
Place = object
"""A LogPartition, or OffsetsOf a group: the places a transaction can write to."""


class Identity(NamedTuple):
    """What InitProducerId gives."""

    producer_id: int
    epoch: int


class Entry:
    """What the coordinator knows of one transactional id."""

    __slots__ = ("epoch", "places", "producer_id", "started_at", "state", "timeout_s")

    def __init__(self, producer_id: int, timeout_s: float) -> None:
        self.producer_id = producer_id
        self.epoch = -1
        self.timeout_s = timeout_s
        self.state = State.EMPTY
        self.places: set[Place] = set()
        self.started_at = 0.0


class Transactions:
    """The coordinator; ``marker_delay`` draws how long a marker takes to one place."""

    def __init__(self, world: World, topics: Topics, groups: Groups, marker_delay: Callable[[], float]) -> None:
        self.entries: dict[str, Entry] = {}
        self.verification = True
        self.leaderless: dict[bool, set[Place]] = {False: set(), True: set()}
        """What aborts (False) and commits (True) leave out, since it has no leader now (seen with Kafka 4.3.0)."""
        self._world = world
        self._topics = topics
        self._groups = groups
        self._marker_delay = marker_delay
        self._producer_ids = 1000
        world.at(REAP_PERIOD_S, self._reap)

    def init(self, transactional_id: str | None, timeout_s: float) -> tuple[int, Identity | None]:
        """InitProducerId: fence the predecessor, abort its transaction, give a new epoch."""
        if transactional_id is None:
            self._producer_ids += 1
            return NONE, Identity(self._producer_ids, 0)
        entry = self.entries.get(transactional_id)
        if entry is None:
            self._producer_ids += 1
            entry = self.entries[transactional_id] = Entry(self._producer_ids, timeout_s)
        if entry.state in _PREPARED:
            return KafkaError.CONCURRENT_TRANSACTIONS, None
        if entry.state is State.ONGOING:
            self._fence(transactional_id, entry)
            return KafkaError.CONCURRENT_TRANSACTIONS, None
        entry.epoch += 1
        entry.timeout_s = timeout_s
        entry.state = State.EMPTY
        entry.places = set()
        return NONE, Identity(entry.producer_id, entry.epoch)

    def add(self, transactional_id: str, producer_id: int, epoch: int, places: Collection[Place]) -> int:
        """AddPartitionsToTxn and AddOffsetsToTxn: the first one opens the transaction."""
        entry, refused = self._entry(transactional_id, producer_id, epoch)
        if entry is None:
            return refused
        if entry.state in _PREPARED:
            return KafkaError.CONCURRENT_TRANSACTIONS
        if entry.state is not State.ONGOING:
            entry.state = State.ONGOING
            entry.places = set()
            entry.started_at = self._world.now
        entry.places.update(places)
        return NONE

    def verify(self, transactional_id: str, producer_id: int, epoch: int, place: Place) -> int:
        """Partition verification (KIP-890 part 1): may this producer append here, in a transaction that is open?"""
        if not self.verification:
            return NONE
        entry, refused = self._entry(transactional_id, producer_id, epoch)
        if entry is None:
            return refused
        if entry.state in _PREPARED:
            return KafkaError.CONCURRENT_TRANSACTIONS
        if entry.state is not State.ONGOING or place not in entry.places:
            return KafkaError.INVALID_TXN_STATE
        return NONE

    def end(self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool) -> int:
        """EndTxn: of whatever transaction is open now; a repeat of what is complete succeeds."""
        entry, refused = self._entry(transactional_id, producer_id, epoch)
        if entry is None:
            return refused
        if entry.state is State.ONGOING:
            self._prepare(transactional_id, entry, commit=commit)
            return NONE
        if entry.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT):
            return NONE
        if entry.state is (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT):
            return KafkaError.CONCURRENT_TRANSACTIONS
        return KafkaError.INVALID_TXN_STATE

    def _entry(self, transactional_id: str, producer_id: int, epoch: int) -> tuple[Entry | None, int]:
        entry = self.entries.get(transactional_id)
        if entry is None or entry.producer_id != producer_id:
            return None, KafkaError.INVALID_PRODUCER_ID_MAPPING
        if entry.epoch != epoch:
            return None, KafkaError.INVALID_PRODUCER_EPOCH
        return entry, NONE

    def _fence(self, transactional_id: str, entry: Entry) -> None:
        """Abort under an epoch that nobody is given."""
        entry.epoch += 1
        self._prepare(transactional_id, entry, commit=False)

    def _prepare(self, transactional_id: str, entry: Entry, *, commit: bool) -> None:
        entry.state = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
        self._world.trace("coordinator", transactional_id, entry.epoch, entry.state.value, len(entry.places))
        waiting = entry.places - self.leaderless[commit]
        for place in entry.places - waiting if commit else ():
            if not isinstance(place, OffsetsOf):
                self._topics.partition(place).leave_out(entry.producer_id)  # type: ignore[arg-type]
        if not waiting:
            self._complete(transactional_id, entry, commit=commit)
        for place in sorted(waiting, key=str):
            self._world.at(self._marker_delay(), self._mark, transactional_id, entry, place, commit, waiting)

    def _mark(self, transactional_id: str, entry: Entry, place: Place, commit: bool, waiting: set[Place]) -> None:
        if isinstance(place, OffsetsOf):
            self._groups.end_transaction(place.group, entry.producer_id, entry.epoch, commit=commit)
        else:
            self._topics.partition(place).end_transaction(entry.producer_id, entry.epoch, commit=commit)  # type: ignore[arg-type]
        waiting.discard(place)
        if not waiting:
            self._complete(transactional_id, entry, commit=commit)

    def _complete(self, transactional_id: str, entry: Entry, *, commit: bool) -> None:
        entry.state = State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT
        entry.places = set()
        self._world.trace("coordinator", transactional_id, entry.epoch, entry.state.value)

    def _reap(self) -> None:
        """Abort what has been open for longer than its producer's timeout; that fences the producer."""
        for transactional_id, entry in self.entries.items():
            if entry.state is State.ONGOING and self._world.now > entry.started_at + entry.timeout_s:
                self._world.trace("coordinator", transactional_id, "timed out")
                self._fence(transactional_id, entry)
        self._world.at(REAP_PERIOD_S, self._reap)
