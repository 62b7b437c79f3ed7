"""A route set up for the auditor: topics, configuration, and plain clients that plant what it must find."""

from __future__ import annotations

from confluent_kafka import Producer

from relay.audit.checker import MUST_BE_ZERO
from relay.audit.verify import RouteReport, verify
from relay.config.model import RelayConfig
from relay.kafka.topics import Topics
from relay.message import identity
from relay.message.schemas import codec
from relay.monitor.entries import Begin, Page, Seal, encode
from tests import routes

TOPIC_ROUTE = 'to = {{ topic = "{output}" }}'
TABLE_ROUTE = (
    'to = {{ table = "ledger", resource = "shop", columns = {{ id = "ce:id", source = "ce:source" }} }}'
)
PARTITIONS = 2


class Site:
    """A relay with one route, written to and read from by plain clients."""

    def __init__(self, config: RelayConfig, kafka: str, log: str, output: str) -> None:
        self.config, self.kafka, self.log, self.output = config, kafka, log, output
        self.producer = Producer({"bootstrap.servers": kafka, **routes.IN_ORDER})
        facts = Topics(config.kafka, config.timing).describe([log], settings=False)
        self.topic_id = facts[log].topic_id
        self.monitor = config.monitor_topic("main")

    def write(self, topic: str, number: int, *, partition: int = 0, source: str = "/a", value: str | None = None,
              **headers: str) -> None:  # fmt: skip
        fields = {"ce_specversion": "1.0", "ce_id": f"m{number}", "ce_source": source, **headers}
        self.producer.produce(
            topic, key=b"k", value=(value or f'{{"n": {number}}}').encode(), partition=partition,
            headers=[(name, text.encode()) for name, text in fields.items()],
        )  # fmt: skip
        assert self.producer.flush(30) == 0

    def has_partitions(self, topic: str, count: int) -> bool:
        """Ask through the producer that writes: what it has not heard of it refuses to write to."""
        return len(self.producer.list_topics(topic, 5).topics[topic].partitions) == count

    def mark(self, capture: bytes, nonce: bytes | None) -> None:
        record = {
            "capture": capture,
            "outcome": "COMMITTED" if nonce else "ABORTED",
            "nonce": nonce,
            "incarnation": None,
            "closes": [],
        }
        self.producer.produce(
            self.log, key=capture, value=codec("outcome").encode(record), partition=0,
            headers={"ce_type": b"relay.outcome", "ce_relaycapture": capture.hex().encode()},
        )  # fmt: skip
        assert self.producer.flush(30) == 0

    def dead(
        self, digest: bytes, route: str = "main", code: str = "refused", replay: int = 0, *, partition: int = 0
    ) -> None:
        facts = {"route": route, "code": code, "replay_count": str(replay)}
        self.producer.produce(
            self.config.deadletter_topic, key=digest.hex(), value=b"{}", partition=partition,
            headers={f"__relay.errors.{name}": fact.encode() for name, fact in facts.items()},
        )  # fmt: skip
        assert self.producer.flush(30) == 0

    def record(self, *entries: Page | Begin | Seal) -> None:
        for number, entry in enumerate(entries):
            key, value = encode(entry, number)
            self.producer.produce(self.monitor, key=key, value=value, partition=0)
        assert self.producer.flush(30) == 0

    def stand_at(self, *positions: int) -> None:
        routes.stand_at(self.kafka, self.config.group_id("main"), self.log, positions)

    def audit(self, *, allow_lag: bool = False) -> RouteReport:
        (report,) = verify(self.config, (), allow_lag=allow_lag)
        return report


def wrong(report: RouteReport) -> dict[str, int]:
    names = (*MUST_BE_ZERO, "unseen")
    return {name: getattr(report.findings, name) for name in names if getattr(report.findings, name)}


def offender(report: RouteReport, kind: str) -> tuple[str, str, str]:
    found = next(offence for offence in report.offences if offence.kind == kind)
    return found.place, found.id, found.source


def digest(number: int, source: str = "/a") -> bytes:
    return identity.cloudevents({"ce_id": b"m%d" % number, "ce_source": source.encode()}, b"", None) or b""
