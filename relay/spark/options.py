"""The options of ``format("relay")``: named as those of Spark's Kafka sink, checked whole before any row is written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from relay.config.timing import Timing
from relay.kafka.settings import may_be_shown, refusals
from relay.kafka.topics import VISIBLE_S, Topics
from relay.message.errors import ConfigError

KAFKA_PREFIX: Final = "kafka."
TIMEOUT_S: Final = 120.0
"""How long a task waits for its rows to be acknowledged; no database holds locks meanwhile."""
_BATCH_NAME: Final = re.compile(r"/[0-9]+$")
_OWN: Final = frozenset(
    {"relay", "topic", "source", "type", "unit", "contenttype", "timeout", "allowplaintext"}
)
_OF_SPARK: Final = frozenset({"checkpointlocation", "path", "queryname", "outputmode"})


@dataclass(frozen=True)
class WriteOptions:
    """Where to write, and what each row is called that does not say so itself. Printing it hides what is secret."""

    relay: str
    kafka: Mapping[str, str]
    topic: str | None = None
    source: str | None = None
    type: str = "relay.message"
    unit: str | None = None
    content_type: str | None = None
    timeout_s: float = TIMEOUT_S

    def __repr__(self) -> str:
        return f"WriteOptions(relay={self.relay!r}, topic={self.topic!r}, unit={self.unit!r})"

    @property
    def decisions_topic(self) -> str:
        """Where the units of this relay are decided."""
        return f"{self.relay}.decisions"


def read_options(given: Mapping[str, str]) -> WriteOptions:
    """Return the options; ConfigError names the first that is unknown, missing or refused, with the remedy."""
    options = {key.lower(): value for key, value in given.items()}
    kafka = {
        key.removeprefix(KAFKA_PREFIX): value
        for key, value in options.items()
        if key.startswith(KAFKA_PREFIX)
    }
    for key in options:
        if key not in _OWN | _OF_SPARK and not key.startswith(KAFKA_PREFIX):
            raise ConfigError(
                f'option("{key}", ..): format("relay") has no such option; it has relay, topic, source, type, unit, '
                "contentType, timeout, allowPlaintext and kafka.* (names of librdkafka)"
            )
    if not options.get("relay"):
        raise ConfigError(
            'option("relay", NAME) is missing: give the name of the relay, [relay] name in its configuration'
        )
    if _BATCH_NAME.search(options.get("unit", "")):
        raise ConfigError(
            f'option("unit", "{options["unit"]}"): a name that ends in a slash and a number is that of a query\'s batch; '
            "choose another"
        )
    check_kafka(kafka, allow_plaintext=options.get("allowplaintext", "false").lower() == "true")
    return WriteOptions(
        relay=options["relay"],
        kafka=kafka,
        topic=options.get("topic") or None,
        source=options.get("source") or None,
        type=options.get("type") or WriteOptions.type,
        unit=options.get("unit") or None,
        content_type=options.get("contenttype") or None,
        timeout_s=_seconds(options.get("timeout")),
    )


def check_kafka(kafka: Mapping[str, str], *, allow_plaintext: bool = False) -> None:
    """Raise ConfigError for the first client setting that the relay refuses."""
    for refusal in refusals(kafka, allow_plaintext=allow_plaintext):
        value = f" = {kafka.get(refusal.key, '')}" if may_be_shown(refusal.key) else ""
        raise ConfigError(f"kafka.{refusal.key}{value}: {refusal.problem}; {refusal.remedy}")


def check_sink(sink: Mapping[str, str]) -> None:
    """Raise ConfigError for a setting of Spark's sink by which rows that it has reported may be lost, lie on other brokers, or change places.

    A row with a key lies where the sink's own partitioner puts the key: only there its repeat is known.
    """
    needed = {
        "kafka.bootstrap.servers": (),
        "kafka.acks": ("all", "-1"),
        "kafka.enable.idempotence": ("true",),
        "kafka.partitioner.class": (),
        "kafka.partitioner.ignore.keys": ("false",),
    }
    for name, value in sink.items():
        allowed = needed.get(name.lower())
        if allowed is not None and str(value).lower() not in allowed:
            raise ConfigError(f"sink {name} = {value}: rows that count could be lost, or change places; leave it out")


def no_relay(relay: str) -> ConfigError:
    """Return what to raise where the topic of a relay's decisions does not exist."""
    return ConfigError(
        f"topic {relay}.decisions does not exist: there is no relay {relay!r} on these brokers; run `relay migrate`, or correct the relay's name"
    )


def check_topics(options: WriteOptions, names: Iterable[str]) -> dict[str, int]:
    """Return the partition count of each topic; ConfigError for one that is absent or compacted, Unreachable."""
    wanted = sorted({*names, options.decisions_topic})
    with Topics(options.kafka, Timing()) as topics:
        facts = topics.describe(wanted, wait_s=VISIBLE_S)
    if options.decisions_topic not in facts:
        raise no_relay(options.relay)
    for name in wanted:
        if name not in facts:
            raise ConfigError(f"topic {name!r} does not exist; create it before writing to it")
        if "compact" in facts[name].settings.get("cleanup.policy", "delete"):
            raise ConfigError(
                f"topic {name}: compaction could drop a committed message in favour of an aborted one; set "
                "cleanup.policy=delete"
            )
    return {name: facts[name].partitions for name in wanted}


def _seconds(text: str | None) -> float:
    try:
        seconds = TIMEOUT_S if text is None else float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 3600:
        raise ConfigError(f'option("timeout", "{text}"): give seconds from 1 to 3600')
    return seconds
