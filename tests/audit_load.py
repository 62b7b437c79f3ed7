"""A route that has delivered very many messages, as its topics would show it, written by plain producers.

Running the relay over them would take longer than the audit that is measured. Records are those that the relay
writes: captures with their committed markers in the log, outputs with the relay's headers, pages between begins and
seals in the monitor. What is missing are the control records of Kafka transactions.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Producer

from relay.message import identity
from relay.message.schemas import codec
from relay.monitor.entries import (
    DEAD,
    DELIVERED,
    PAGE_ROWS,
    SKIPPED,
    Begin,
    InputRange,
    Page,
    Proof,
    Seal,
    encode,
)

PER_CAPTURE: Final = 100
"""Messages of one capture; its marker follows them."""
PER_TRANSACTION: Final = 8 * PAGE_ROWS
LANES: Final = 50
"""Publishers of each partition."""
PHANTOM: Final = 10**12
Headers = list[tuple[str, bytes]]


@dataclass(frozen=True)
class Faults:
    """Which message of partition 0 has which fate, by its number there; each fault stands once."""

    forgotten: int
    """Passed by the position, in no page and without effect: lost."""
    entered: int
    """In a page, without effect: lost."""
    twice: int
    late: int
    """Delivered after the next one of its lane."""
    altered: int
    dead: int
    skipped: int

    @classmethod
    def among(cls, count: int) -> Faults:
        """Spread the faults over ``count`` messages."""
        return cls(*(count * place // 8 for place in range(1, 8)))

    @property
    def without_effect(self) -> frozenset[int]:
        """Messages that have no output."""
        return frozenset((self.forgotten, self.entered, self.dead, self.skipped))

    def outcome(self, number: int) -> int:
        """Return what the monitor says of a message."""
        return DEAD if number == self.dead else SKIPPED if number == self.skipped else DELIVERED


@dataclass(frozen=True)
class Load:
    """Where and how much; every part of it is a function of the numbers, so that parts are written side by side."""

    kafka: str
    log: str
    output: str
    monitor: str
    partitions: int
    each: int
    """Messages of one partition, a multiple of PER_CAPTURE."""

    @property
    def faults(self) -> Faults:
        """What is wrong, all of it in partition 0."""
        return Faults.among(self.each)

    @property
    def log_end(self) -> int:
        """The log's high watermark in each partition: messages and markers."""
        return self.each + self.each // PER_CAPTURE

    def write(self) -> None:
        """Write log, outputs and monitor with two processes."""
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(2, context) as pool:
            work = [
                pool.submit(part, self, partition)
                for partition in range(self.partitions)
                for part in (write_log, write_outputs, write_pages)
            ]
            for one in work:
                one.result()


def write_log(load: Load, partition: int) -> None:
    """Write one partition of the log: captures, each followed by its marker."""
    with_headers = _Writer(load.kafka, load.log, partition)
    for first in range(0, load.each, PER_CAPTURE):
        nonce = b"n" + partition.to_bytes(7, "big") + first.to_bytes(8, "big")
        capture = identity.capture_id(nonce)
        named = [("ce_relaycapture", capture.hex().encode()), ("ce_relayresource", b"elsewhere/1")]
        for number in range(first, first + PER_CAPTURE):
            with_headers.write(_key(number), _value(number), _attributes(partition, number) + named)
        marker = {"capture": capture, "outcome": "COMMITTED", "nonce": nonce, "incarnation": None, "closes": []}
        of_marker = [("ce_type", b"relay.outcome"), ("ce_relaycapture", capture.hex().encode())]
        with_headers.write(capture, codec("outcome").encode(marker), of_marker)
    with_headers.end()


def write_outputs(load: Load, partition: int) -> None:
    """Write one partition of the destination, with the faults in the first."""
    faults = load.faults if partition == 0 else None
    writer = _Writer(load.kafka, load.output, partition)
    for number in _delivered(load.each, faults):
        value = b"spoilt" if faults and number == faults.altered else _value(number)
        n = number // PER_TRANSACTION
        marks = [("relay_instance", _instance(partition).hex().encode()), ("relay_n", b"%d" % n),
                 ("relay_digest", digest_of(partition, number).hex().encode())]  # fmt: skip
        writer.write(_key(number), value, _attributes(partition, number) + marks)
    writer.end()


def write_pages(load: Load, partition: int) -> None:
    """Write what the monitor says of one partition: begin, pages and seal of each transaction."""
    faults = load.faults if partition == 0 else None
    writer = _Writer(load.kafka, load.monitor, 0)
    instance = _instance(partition)
    for n, first in enumerate(range(0, load.each, PER_TRANSACTION)):
        end = min(first + PER_TRANSACTION, load.each)
        ranges = [InputRange(load.log, partition, _offset(first), _offset(end))]
        records: list[tuple[Begin | Page | Seal, int]] = [
            (Begin("w", "t", instance, n, n - 1, ranges, []), 0),
            *((page, at) for at, page in enumerate(_pages(load, partition, n, range(first, end), faults))),
            (Seal("w", instance, n), 0),
        ]
        for entry, at in records:
            writer.write(*encode(entry, at), [])
    writer.end()


def digest_of(partition: int, number: int) -> bytes:
    """Return the identity of a message."""
    found = identity.cloudevents(dict(_attributes(partition, number)), b"", None)
    assert found is not None
    return found


class _Writer:
    """Appends to one partition in order."""

    def __init__(self, kafka: str, topic: str, partition: int) -> None:
        own = {"enable.idempotence": True, "compression.type": "lz4", "linger.ms": 50, "batch.size": 500_000}
        self._producer = Producer({"bootstrap.servers": kafka, "queue.buffering.max.messages": 200_000, **own})
        self._topic, self._partition, self._count = topic, partition, 0

    def write(self, key: bytes, value: bytes, headers: Headers) -> None:
        self._count += 1
        if self._count % 5_000 == 0:
            while len(self._producer) > 100_000:
                self._producer.poll(0.05)
        self._producer.produce(self._topic, value, key, self._partition, headers=headers)

    def end(self) -> None:
        assert self._producer.flush(120) == 0


def _delivered(each: int, faults: Faults | None) -> Iterator[int]:
    if faults is None:
        yield from range(each)
        return
    for number in range(each):
        if number == faults.late + LANES:
            yield number
            yield faults.late
        elif number not in faults.without_effect and number != faults.late:
            yield number
        if number == faults.twice:
            yield number
    yield PHANTOM


def _pages(load: Load, partition: int, n: int, numbers: range, faults: Faults | None) -> Iterator[Page]:
    for start in range(0, len(numbers), PAGE_ROWS):
        rows = [one for one in numbers[start : start + PAGE_ROWS] if faults is None or one != faults.forgotten]
        yield Page(
            "w", _instance(partition), n, Proof.SEALED, None, load.log, partition,
            digests=b"".join(digest_of(partition, one) for one in rows),
            contents=b"".join(identity.content_digest(_key(one), _value(one)) for one in rows),
            offsets=[_offset(one) for one in rows],
            outcomes=bytes(faults.outcome(one) if faults else DELIVERED for one in rows),
        )  # fmt: skip


def _instance(partition: int) -> bytes:
    return b"audited-instance"[:-1] + bytes([partition])


def _offset(number: int) -> int:
    return number + number // PER_CAPTURE


def _key(number: int) -> bytes:
    return b"account-%d" % (number % 10_000)


def _value(number: int) -> bytes:
    return b'{"n": %d, "amount": %d, "currency": "EUR", "text": "a payment as any other, for order %d"}' % (
        number, number * 7919 % 100_003, number,
    )  # fmt: skip


def _attributes(partition: int, number: int) -> Headers:
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", b"m%d" % number),
        ("ce_source", b"/publisher/%d/%d" % (partition, number % LANES)),
        ("ce_type", b"payment"),
    ]
