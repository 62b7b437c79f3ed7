"""Recovery of a worker whose predecessors left everything in doubt, against a plain read of the same records.

Ten dead workers have each left one transaction of the largest allowed batch torn: its outputs and entries are visible
(but for one of the ten, whose outputs are not there), its seal is missing, and the committed positions lie below. The
time counted against the target is the processor time of the recovering process beyond that of the plain reader.
"""

from __future__ import annotations

import gc
import json
import resource
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from relay.bench.turns import PARTITIONS, lent_topic
from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.config.routes import TopicDestination
from relay.config.timing import Timing
from relay.delivery.deadletter import Letters
from relay.delivery.topic.recovery import TopicRecovery
from relay.kafka.group import GroupConsumer
from relay.kafka.plain.clients import append, consume_plainly
from relay.kafka.topics import Topics
from relay.message.envelope import OUT_DIGEST, OUT_INSTANCE, OUT_N, Headers
from relay.message.errors import CheckFailed
from relay.message.record import LogPartition
from relay.monitor.checkpoint import CheckpointStore
from relay.monitor.entries import PAGE_ROWS, Begin, InputRange, OutputStart, Page, Proof, encode
from relay.monitor.index import Budget
from relay.run import memory
from relay.run.assembly import INDEX_ENTRIES_IN_MEMORY, RoutePorts
from relay.run.process import GC_THRESHOLDS
from relay.run.views import ViewKeeper
from relay.setup.migrate import migrate
from relay.world import clock

DEAD_WORKERS: Final = 10
WITHOUT_OUTPUTS: Final = 3
"""The number of the one whose outputs an abort has taken away while its entries stayed."""
PAYLOAD_BYTES: Final = 100
ROUTE: Final = "bench"
_JOIN_S: Final = 30.0
_MEBI: Final = 1 << 20
_Written = dict[LogPartition, int]


@dataclass
class Cost:
    """What one process has spent: wall clock and processor seconds, and the most memory it ever had, in MiB."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    idle_mib: float = 0.0
    settled: int = 0
    index: int = 0


def run(kafka: str, messages: int = 1_000_000) -> dict[str, Any]:
    """Build what is in doubt, recover it in a process of its own, read it in another; return the row of `relay bench`.

    ``value`` is messages recovered per second of recovery's wall clock, ``reference`` the plain read's pace.
    """
    topics = Topics({"bootstrap.servers": kafka}, Timing())
    with lent_topic(topics, "log") as log, lent_topic(topics, "out") as out, tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "relay.toml"
        path.write_text(
            f'[relay]\nname = "bench{uuid4().hex[:8]}"\ninstance = "bench"\nstate = "{directory}/state"\n'
            f'[kafka]\n"bootstrap.servers" = "{kafka}"\n'
            f'[routes.{ROUTE}]\nfrom = ["{log}"]\nto = {{ topic = "{out}" }}\n'
        )
        config = load(path)
        migrate(config)
        monitor = config.monitor_topic(ROUTE)
        try:
            written = _leave_in_doubt(kafka, messages, log, out, monitor)
            plain = _measured("read", str(path), json.dumps([[*place, count] for place, count in written.items()]))
            ours = _measured("recover", str(path), "[]")
        finally:
            topics.delete([monitor, config.deadletter_topic, config.control_topic, config.inquiries_topic, config.decisions_topic])
    shown = messages - messages // DEAD_WORKERS
    if (ours.settled, ours.index) != (DEAD_WORKERS, shown):
        raise CheckFailed(f"recovery settled {ours.settled} transactions and found {ours.index} of {shown} messages")
    return {
        "name": "recovery",
        "value": round(messages / ours.wall_s),
        "unit": "messages/s",
        "reference": round(messages / plain.wall_s),
        "ratio": round(plain.wall_s / ours.wall_s, 3),
        "recovery_s": round(ours.wall_s, 2),
        "plain_read_s": round(plain.wall_s, 2),
        "cpu_beyond_reading_s": round(ours.cpu_s - plain.cpu_s, 2),
        "cpu_ratio": round(ours.cpu_s / plain.cpu_s, 2),
        "peak_mib": round(ours.peak_mib),
        "idle_mib": round(ours.idle_mib),
    }


def _leave_in_doubt(kafka: str, messages: int, log: str, out: str, monitor: str) -> _Written:
    """Write what the dead workers left; return how many records lie in each partition."""
    written: _Written = {}
    count = messages // DEAD_WORKERS
    for number in range(PARTITIONS):
        target, entries = LogPartition(out, number), LogPartition(monitor, number)
        outputs: list[Iterator[tuple[bytes, bytes, Headers]]] = []
        begins: list[Iterator[tuple[bytes, bytes]]] = []
        for worker in range(number, DEAD_WORKERS, PARTITIONS):
            digests, instance = secrets.token_bytes(16 * count), secrets.token_bytes(16)
            inputs = [InputRange(log, number, worker * count, (worker + 1) * count)]
            starts = [OutputStart(*target, len(outputs) * count)]
            begins.append(_entries(Begin(f"dead.{worker}", f"dead.{worker}", instance, 1, -1, inputs, starts), digests))
            if worker != WITHOUT_OUTPUTS:
                outputs.append(_outputs(digests, instance))
        written[target] = append(kafka, target, chain.from_iterable(outputs))[0]
        written[entries] = append(kafka, entries, chain.from_iterable(begins))[0]
    return written


def _outputs(digests: bytes, instance: bytes) -> Iterator[tuple[bytes, bytes, Headers]]:
    payload = secrets.token_bytes(PAYLOAD_BYTES)
    marks = [(OUT_INSTANCE, instance.hex().encode()), (OUT_N, b"1")]
    for start in range(0, len(digests), 16):
        digest = digests[start : start + 16]
        ids = [("ce_id", digest[:8].hex().encode()), ("ce_source", b"/bench"), ("ce_type", b"bench")]
        yield b"/bench", payload, [*ids, *marks, (OUT_DIGEST, digest.hex().encode())]


def _entries(begin: Begin, digests: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield a begin and its pages; the seal never came."""
    yield encode(begin)
    (source,) = begin.inputs
    for number, first in enumerate(range(source.first, source.next, PAGE_ROWS)):
        offsets = range(first, min(first + PAGE_ROWS, source.next))
        place = 16 * (first - source.first)
        page = Page(
            begin.worker, begin.instance, 1, Proof.SEALED, None, source.topic, source.partition,
            digests[place : place + 16 * len(offsets)], bytes(8 * len(offsets)), list(offsets), bytes(len(offsets)),
        )  # fmt: skip
        yield encode(page, number)


def _measured(what: str, *arguments: str) -> Cost:
    """Run one side in a process of its own."""
    command = [sys.executable, "-m", "relay.bench.recovery", what, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckFailed(f"the measured process to {what} failed: {done.stderr[-500:]}")
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def _read(config: RelayConfig, places: Sequence[Sequence[Any]]) -> Cost:
    """Read the same records plainly."""
    started, before = clock.monotonic(), _cpu_s()
    for topic, partition, count in places:
        consume_plainly(config.kafka["bootstrap.servers"], LogPartition(topic, partition), count)
    return Cost(clock.monotonic() - started, _cpu_s() - before, _peak_mib())


def _recover(config: RelayConfig) -> Cost:
    """Recover as a worker does when its partitions are assigned: it has no checkpoint and has never run before."""
    route = config.routes[ROUTE]
    to = route.to
    assert isinstance(to, TopicDestination)
    ports = RoutePorts(config, route)
    monitor = config.monitor_topic(ROUTE)
    with Topics(config.kafka, config.timing) as topics:
        facts = topics.describe([*route.from_, monitor], settings=False)
    group = ports.group(route.from_, lambda: None)
    notes = {name: facts[name].topic_id.hex() for name in route.from_}
    assigned = _joined(group)
    group.commit(dict.fromkeys(assigned, 0), notes, wait=True)
    store = CheckpointStore(
        config.relay.state / "fresh",
        relay=config.relay.name,
        route=ROUTE,
        topic_id=facts[monitor].topic_id,
        budget=Budget(INDEX_ENTRIES_IN_MEMORY),
    )
    views = ViewKeeper(store, clock.monotonic).take({place.partition for place in assigned})
    recovery = TopicRecovery(
        ports,
        transactional_id=config.transactional_id(ROUTE, 0),
        monitor_topic=monitor,
        outputs=[LogPartition(to.topic, number) for number in range(PARTITIONS)],
        letters=Letters(route=ROUTE, target=to.topic, group="", topic=config.deadletter_topic, partitions=0),
    )
    started, before, idle = clock.monotonic(), _cpu_s(), _peak_mib()
    found = recovery.run(
        assigned, views, group, lambda stored, *_: {place: at or 0 for place, at in stored.items()}, notes
    )
    cost = Cost(clock.monotonic() - started, _cpu_s() - before, _peak_mib(), idle, found.settled)
    cost.index = sum(len(view.index) for view in views)
    group.close()
    return cost


def _joined(group: GroupConsumer) -> list[LogPartition]:
    limit = clock.monotonic() + _JOIN_S
    while group.assigned is None:
        group.consume(1, 0.1)
        if clock.monotonic() > limit:
            raise CheckFailed(f"the group gave no partitions within {_JOIN_S:.0f} s")
    return group.assigned


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _peak_mib() -> float:
    """The most this program had in memory; getrusage would count what the parent had when it forked."""
    status = Path("/proc/self/status")
    if status.exists():
        (peak,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) / 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / _MEBI if sys.platform == "darwin" else used / 1024


def main(what: str, path: str, places: str) -> None:
    """Run one side and print what it cost as JSON."""
    config = load(Path(path))
    if what == "recover":
        # As the process of a worker does.
        memory.keep()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
    print(json.dumps(asdict(_read(config, json.loads(places)) if what == "read" else _recover(config))))


if __name__ == "__main__":
    main(*sys.argv[1:])
