"""A relay of one route over a log in memory and a database file, as `relay verify` reads it; what happens is written by hand."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from relay.audit.verify import RouteReport, _RouteAudit
from relay.config.loading import load
from relay.kafka.scan import Scanned
from relay.kafka.topics import TopicFacts
from relay.message.envelope import OUT_INSTANCE, OUT_N, Headers
from relay.message.identity import cloudevents, position_digest
from relay.message.record import LogPartition
from relay.message.schemas import codec
from relay.monitor.entries import DELIVERED, Entry, Page, Proof, encode
from relay.resources import open_resource
from tests.routes import ce
from tests.unit.memory_kafka import Stored, Unit

RELAY = "shop"
LOG, MORE = "orders", "bills"
DONE = Unit(committed=True)
BY_ID = 'to = { table = "ledger", resource = "shop", columns = { id = "ce:id" } }'
BY_SOURCE = 'to = { table = "ledger", resource = "shop", columns = { id = "ce:id", source = "ce:source" } }'
UPSERT = BY_SOURCE.replace("columns", 'mode = "upsert", key = ["id"], columns')
OWN_SQL = (
    'to = { resource = "shop", mode = "sql", sql = "insert into ledger (id) values (%(id)s)", columns = { id = "ce:id" } }'
)


class Cluster:
    """Topics in memory, as the audit asks for them; ``meanwhile`` is called once, when the named topic was read."""

    def __init__(self) -> None:
        self.logs: dict[str, list[Stored]] = {}
        self.low: defaultdict[str, int] = defaultdict(int)
        self.positions: dict[LogPartition, int] = {}
        self.meanwhile: tuple[str, Callable[[], object]] | None = None

    def append(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> int:
        log = self.logs.setdefault(topic, [])
        log.append(Stored(LogPartition(topic, 0), len(log), key, value, headers, DONE))
        return len(log) - 1

    def names(self) -> list[str]:
        return list(self.logs)

    def describe(self, names: Iterable[str], *, settings: bool = True) -> dict[str, TopicFacts]:
        return {name: TopicFacts(name, name.encode().ljust(16), 1, 1) for name in names if name in self.logs}

    def watermarks(self, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        return {number: (self.low[topic], len(self.logs[topic])) for number in partitions}

    def committed(self, _group: str, partitions: Iterable[LogPartition]) -> dict[LogPartition, int]:
        return {place: self.positions[place] for place in partitions if place in self.positions}

    def read(self, ranges: Mapping[LogPartition, tuple[int, int]], *_: object) -> Iterator[list[Scanned]]:
        for number, (place, (first, end)) in enumerate(ranges.items()):
            yield [Scanned(number, at, self.logs[place.topic][at]) for at in range(max(first, self.low[place.topic]), end)]  # type: ignore[arg-type]
            if self.meanwhile is not None and self.meanwhile[0] == place.topic:
                _, happens = self.meanwhile
                self.meanwhile = None
                happens()

    def one(self, place: LogPartition, offset: int) -> Any:
        return self.logs[place.topic][offset]


def marks(instance: bytes, n: int) -> Headers:
    """Return the headers by which an output names its transaction."""
    return [(OUT_INSTANCE, instance.hex().encode()), (OUT_N, str(n).encode())]


class Place:
    """A relay of one route with its database."""

    def __init__(self, folder: Path, to: str, logs: Iterable[str] = (LOG,), more: str = "") -> None:
        url = f"sqlite:///{folder}/shop.db"
        path = folder / "relay.toml"
        names = ", ".join(f'"{name}"' for name in logs)
        path.write_text(
            f'[relay]\nname = "{RELAY}"\ninstance = "a"\n[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n'
            f'[resources.shop]\nurl = "{url}"\n[routes.main]\nfrom = [{names}]\n{to}\n{more}'
        )
        self.config = load(path)
        self.cluster = Cluster()
        self.monitor = self.config.monitor_topic("main")
        for name in (*logs, "out", self.monitor, self.config.deadletter_topic, self.config.control_topic):
            self.cluster.logs[name] = []
        self.database = sqlite3.connect(folder / "shop.db", isolation_level=None)
        self.database.execute("create table ledger (id text, source text)")
        open_resource("shop", url).create_tables()

    def output(self, identifier: str, instance: bytes, n: int) -> None:
        """Append an output of a transaction."""
        self.cluster.append("out", b"k", identifier.encode(), [*ce("/a", identifier), *marks(instance, n)])

    def entered_at(self, at: int, *digests: bytes, n: int, instance: bytes = bytes(16), first: int = 0) -> None:
        """Write a transaction's page of the monitor, which the broker took at this time."""
        self.enter(*digests, first=first, n=n, instance=instance)
        self.cluster.logs[self.monitor][-1].time = (2, at)

    def write(self, identifier: str, source: str = "/a", *, topic: str = LOG, **headers: str) -> bytes:
        """Append a message; return its digest."""
        fields = ce(source, identifier, **headers)
        offset = self.cluster.append(topic, b"k", identifier.encode(), fields)
        return cloudevents(dict(fields), topic.encode(), None) or position_digest(topic.encode().ljust(16), 0, offset)

    def mark_aborted(self, capture: bytes) -> None:
        self.mark(capture, None)

    def mark(self, capture: bytes, nonce: bytes | None) -> None:
        """Write a marker, committed if a nonce is to prove it."""
        marker = {"capture": capture, "outcome": "COMMITTED" if nonce else "ABORTED", "nonce": nonce, "incarnation": None, "closes": []}
        headers = [("ce_type", b"relay.outcome"), ("ce_relaycapture", capture.hex().encode())]
        self.cluster.append(LOG, capture, codec("outcome").encode(marker), headers)

    def row(self, identifier: str | None, source: str | None = "/a") -> None:
        self.database.execute("insert into ledger values (?, ?)", (identifier, source))

    def inbox(self, digest: bytes, offset: int, outcome: int = DELIVERED, *, topic: str = LOG, route: str = "main") -> None:
        self.database.execute(
            "insert into relay_inbox (relay, route, digest, content, topic_id, partition, log_offset, outcome)"
            " values (?, ?, ?, ?, ?, 0, ?, ?)",
            (RELAY, route, digest, b"", topic.encode().ljust(16), offset, outcome),
        )

    def stand_at(self, position: int, topic: str = LOG) -> None:
        self.database.execute(
            "insert into relay_position (relay, route, topic_id, topic, partition, position, epoch, worker)"
            " values (?, 'main', ?, ?, 0, ?, 1, 'w')",
            (RELAY, topic.encode().ljust(16), topic, position),
        )
        self.cluster.positions[LogPartition(topic, 0)] = position

    def enter(self, *digests: bytes, first: int = 0, outcome: int = DELIVERED, topic: str = LOG, route: str = "main",
              n: int = 1, instance: bytes = bytes(16)) -> None:  # fmt: skip
        """Write a page of the monitor about messages from an offset on."""
        rows = len(digests)
        page = Page("w", instance, n, Proof.PROVEN, None, topic, 0, b"".join(digests), bytes(8 * rows),
                    list(range(first, first + rows)), bytes([outcome]) * rows)  # fmt: skip
        self.record(page, route)

    def record(self, entry: Entry, route: str = "main") -> None:
        """Write a record of a route's monitor."""
        self.cluster.append(self.config.monitor_topic(route), *encode(entry, len(self.cluster.logs[self.monitor])), [])

    def letter(self, digest: bytes, code: str = "refused", number: int = 0, *, route: str = "main") -> None:
        """Write a dead letter, or what takes it back."""
        facts = {"route": route, "code": code, "replay_count": str(number)}
        headers = [(f"__relay.errors.{name}", fact.encode()) for name, fact in facts.items()]
        self.cluster.append(self.config.deadletter_topic, digest.hex().encode(), None, headers)

    def started(self, offset: int, *, route: str = "main", topic_id: bytes = LOG.encode().ljust(16)) -> None:
        """Record where a route first started."""
        starts = {f"{LOG}/{topic_id.hex()}": {"0": offset}}
        self.cluster.append(self.config.control_topic, f"start/{route}".encode(), orjson.dumps({"starts": starts}), [])

    def audit(self) -> RouteReport:
        route = self.config.routes["main"]
        return _RouteAudit(self.config, route, self.cluster, self.cluster, lambda *_: None).report(allow_lag=False)  # type: ignore[arg-type]


Make = Callable[..., Place]


@contextmanager
def places(folder: Path) -> Iterator[Make]:
    """Lend what makes places, with ``Place``'s further arguments, and close their databases."""
    made: list[Place] = []

    def make(to: str, *more: Any, **options: Any) -> Place:
        made.append(Place(folder, to, *more, **options))
        return made[-1]

    yield make
    for one in made:
        one.database.close()
