"""Workers killed at a named step: the kill is proven, the cursor is held against the effects, and then all is audited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from relay.audit.checker import MUST_BE_ZERO
from relay.audit.verify import verify
from relay.config.loading import load
from relay.monitor.entries import Begin, decode
from relay.monitor.evidence import Evidence
from tests.routes import Route, TopicRoute, ce, publish, read_all

PARTITIONS: Final = 2
SMALL_BATCHES: Final = "batch = { messages = 40 }"


def name(n: int) -> str:
    """The id of message ``n``, whose source is its partition."""
    return f"m-{n}"


def publish_range(route: Route, first: int, count: int) -> None:
    """Append messages ``first`` and following to the partitions in turn."""
    numbers = range(first, first + count)
    publish(route.kafka, route.log, [(n % PARTITIONS, ce(f"/{n % PARTITIONS}", name(n)), b'{"n": %d}' % n) for n in numbers])


def stored(route: Route) -> dict[int, int]:
    """The group's offsets; what an open transaction would store does not count."""
    consumer = Consumer(
        {"bootstrap.servers": route.kafka, "group.id": load(route.path).group_id("main"), "isolation.level": "read_uncommitted"}
    )
    found = consumer.committed([TopicPartition(route.log, p) for p in range(PARTITIONS)], timeout=10)
    consumer.close()
    return {one.partition: max(0, one.offset) for one in found}


def assert_cursor_is_safe(positions: dict[int, int], effects: Iterable[int]) -> None:
    """Whatever lies below a stored position has its effect: message n lies at offset n // PARTITIONS."""
    there = set(effects)
    passed = {offset * PARTITIONS + partition for partition, end in positions.items() for offset in range(end)}
    assert passed <= there, f"passed without effect: {sorted(passed - there)[:10]}"


def assert_audited(route: Route, captured: int, delivered: int | None = None) -> None:
    """`relay verify` finds nothing wrong, and as many messages as there must be."""
    (report,) = verify(load(route.path), ("main",))
    wrong = {kind: count for kind in (*MUST_BE_ZERO, "unseen") if (count := getattr(report.findings, kind))}
    assert report.ok, (wrong, report.offences[:5])
    found = (report.findings.captured, report.findings.delivered)
    wanted = (captured, captured if delivered is None else delivered)
    assert found == wanted, f"(captured, delivered) = {found}, not {wanted}"


def assert_each_once(effects: Iterable[int], count: int) -> None:
    """Every message up to ``count`` has one effect, and nothing else has."""
    times = Counter(effects)
    lost = [n for n in range(count) if n not in times]
    repeated = [n for n, often in times.items() if often > 1]
    assert (lost, repeated, len(times)) == ([], [], count), f"lost {lost}, repeated {repeated}, {len(times)} of {count}"


def in_order(found: Iterable[tuple[str, int]]) -> bool:
    """Does each source's numbers only grow, in the order given?"""
    last: dict[str, int] = {}
    for source, number in found:
        if number <= last.get(source, -1):
            return False
        last[source] = number
    return True


# Topic routes.


def outputs(route: TopicRoute) -> list[tuple[str, int]]:
    """(source, number) of what a read_committed reader finds, in its order."""
    fields = [dict(record.headers()) for record in route.outputs()]
    return [(one["ce_source"].decode(), int(one["ce_id"].decode().rpartition("-")[2])) for one in fields]


def assert_safe_now(route: TopicRoute) -> None:
    """Positions first: what is stored after them only adds outputs."""
    positions = stored(route)
    assert_cursor_is_safe(positions, (number for _, number in outputs(route)))


def assert_once_in_order(route: TopicRoute, count: int) -> None:
    found = outputs(route)
    assert_each_once((number for _, number in found), count)
    assert in_order(found), found
    assert_audited(route, count)
    open_ones = unended(route)
    assert not open_ones, open_ones


def unended(route: TopicRoute) -> list[Begin]:
    """Transactions of which the monitor does not say how they ended."""
    topic = load(route.path).monitor_topic("main")
    folds = [Evidence() for _ in range(PARTITIONS)]
    for record in read_all(route.kafka, topic, PARTITIONS):
        entry = decode(record.key(), record.value())
        if entry is not None:
            folds[record.partition()].add(record.offset(), entry)
    return [begin for fold in folds for begin in fold.unsealed()]
