"""The person who redrives dead letters: some too early, to die again, all of them once their cause is mended."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from relay.delivery.deadletter import PREFIX
from relay.message.envelope import REDRIVEN
from relay.message.record import LogPartition
from relay.monitor.redrive import Order, Wanted, encode
from tests.simulation.broker import NewRecord, StoredRecord
from tests.simulation.crew import LOG, RELAY, ROUTE
from tests.simulation.evidence import MessageId
from tests.simulation.gathering import message_id
from tests.simulation.scheduler import World
from tests.simulation.site import Cluster

AGAIN_S = 5.0


class Redriver:
    """Orders through the control topic, as ``relay deadletter redrive`` does; draws from a source of its own."""

    def __init__(
        self, world: World, cluster: Cluster, seed: int, until: float, mend: Callable[[], None], *, often: float = 0.4
    ) -> None:
        self._world = world
        self._cluster = cluster
        self._rng = Random(f"redrive {seed}")
        self._until = until
        self._mended = False
        self._mend = mend
        self.is_on = self._rng.random() < often
        if not self.is_on:
            return
        world.at(self._rng.uniform(until * 0.2, until), self._mend_now)
        for _ in range(self._rng.randrange(1, 6)):
            world.at(self._rng.uniform(until * 0.1, until * 1.2), self._order, self._rng.random() < 0.3)
        world.at(until, self._order_what_is_left)

    @property
    def redriven(self) -> set[MessageId]:
        """What must have its effect at the end: everything that ever died, but for what has left the log unredriven."""
        if not self.is_on:
            return set()
        left = self._left(gone=True)
        return {message_id(one) for one in self._letters() if bytes.fromhex((one.key() or b"").decode()) not in left}

    def is_done(self) -> bool:
        """Was everything that is dead taken back?"""
        return not self.is_on or not self._left()

    def _mend_now(self) -> None:
        self._mended = True
        self._mend()

    def _order_what_is_left(self) -> None:
        if not self._mended:
            self._mend_now()
        self._order(twice=False)
        self._world.at(AGAIN_S, self._order_what_is_left)

    def _order(self, twice: bool) -> None:
        """Order all that is dead now; some persons press the key twice."""
        for _ in range(1 + twice):
            places: dict[LogPartition, list[Wanted]] = {}
            for digest, (place, offset, replay) in sorted(self._left().items()):
                places.setdefault(place, []).append(Wanted(offset, digest, replay + 1))
            for place, wanted in places.items():
                topic_id = self._cluster.topics.by_name[LOG].topic_id
                order = Order(self._rng.randbytes(16), ROUTE, place, topic_id, sorted(wanted), "a person", 0)
                key, value = encode(order)
                self._cluster.topics.by_name[f"{RELAY}.control"].partitions[0].append([NewRecord(key, value, [], 0)])
                self._world.trace("redriver", "orders", place, [one.offset for one in wanted])

    def _letters(self) -> list[StoredRecord]:
        return [one for topic in self._cluster.topics.by_name[f"{RELAY}.deadletter"].partitions for one in topic.visible()]

    def _left(self, *, gone: bool = False) -> dict[bytes, tuple[LogPartition, int, int]]:
        """Return place and number of the last redrive of each message that is dead still, and lies in the log or is gone."""
        found: dict[bytes, tuple[LogPartition, int, int]] = {}
        taken_back: set[bytes] = set()
        for record in self._letters():
            facts = {name.removeprefix(PREFIX): value for name, value in record.headers() or () if value is not None}
            digest = bytes.fromhex((record.key() or b"").decode())
            if facts["code"].decode() == REDRIVEN:
                taken_back.add(digest)
            place = LogPartition(facts["topic"].decode(), int(facts["partition"]))
            known = found.get(digest, (place, 0, -1))
            found[digest] = (place, int(facts["offset"]), max(int(facts["replay_count"]), known[2]))
        start = {place: self._cluster.topics.partition(place).start for place, _, _ in found.values()}
        return {
            digest: letter
            for digest, letter in found.items()
            if digest not in taken_back and (letter[1] < start[letter[0]]) is gone
        }
