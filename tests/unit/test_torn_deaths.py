"""A dead letter that a stray COMMIT shows without its entry: the message died, and may be redriven."""

from __future__ import annotations

import pytest

from relay.delivery.batch import Batch
from relay.message.envelope import Headers
from relay.message.errors import MessageRejected
from relay.message.record import LogPartition
from relay.monitor.entries import DEAD as DIED
from relay.monitor.entries import Page, Proof, encode
from relay.monitor.redrive import Do, Wanted, decide
from tests.unit.memory_kafka import MemoryKafka, MemoryTransaction
from tests.unit.test_recovery_again import DEAD, LOG, MONITOR, Killed, Process, message

REFUSED = message(1)._replace(fault=MessageRejected("apply", "refused", "no"))


class Torn(MemoryKafka):
    """Lets no page of entries arrive while ``is_cut``: the process dies, and a stray COMMIT ends its transaction."""

    is_cut = False

    def transaction(self, transactional_id: str) -> MemoryTransaction:
        return Cut(self, transactional_id)


class Cut(MemoryTransaction):
    def produce(
        self,
        partition: LogPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
        timestamp_ms: int = 0,
    ) -> None:
        assert isinstance(self._kafka, Torn)
        if self._kafka.is_cut and partition == MONITOR and (key or b"").startswith(b"e"):
            self._kafka.is_cut = False
            self._kafka.end(self.transactional_id, commit=True)
            raise Killed
        super().produce(partition, key, value, headers, timestamp_ms)


def torn(batch: Batch, *, deaths: int = 0) -> Process:
    """Return the heir of a process that died with this batch; the message died so many times before."""
    kafka = Torn()
    victim = Process(kafka)
    victim.recover()
    for replay in range(deaths):
        victim.view.index.add_page(died(replay))
        kafka.transaction("earlier").init()
        earlier = kafka.transaction("earlier")
        earlier.init()
        earlier.produce(MONITOR, *encode(died(replay), replay))
        earlier.commit()
    kafka.is_cut = True
    with pytest.raises(Killed):
        victim.delivery.submit(batch)
    assert len(kafka.visible(DEAD)) == 1
    heir = Process(kafka)
    heir.recover()
    return heir


def died(replay: int) -> Page:
    return Page(
        "w", b"E" * 16, 1, Proof.PROVEN, None, *LOG, REFUSED.digest, REFUSED.content, [1], bytes([DIED]), bytes([replay])
    )


def at(position: int, **replays: dict[bytes, int]) -> Batch:
    return Batch(1, [REFUSED], {LOG: position}, {LOG: 2}, {LOG: 2}, membership=b"member", **replays)


def test_a_death_without_its_entry_is_settled_as_a_death() -> None:
    (standing,) = torn(at(1)).view.index.standings([REFUSED.digest])
    assert decide(Wanted(1, REFUSED.digest, 1), standing) == (Do.DELIVER, "")


def test_a_redrive_that_died_without_its_entry_is_not_settled_as_delivered() -> None:
    heir = torn(at(2, replays={REFUSED.digest: 1}), deaths=1)
    (standing,) = heir.view.index.standings([REFUSED.digest])
    assert decide(Wanted(1, REFUSED.digest, 1), standing) == (Do.DIED, "")
    assert decide(Wanted(1, REFUSED.digest, 2), standing) == (Do.DELIVER, "")
