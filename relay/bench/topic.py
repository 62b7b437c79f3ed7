"""Topic to topic, exactly once with deduplication, against the plain transactional loop without it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, Final
from uuid import uuid4

from relay.bench.pace import pace
from relay.kafka.plain_loop import fill
from relay.kafka.topics import TopicPlan, Topics
from relay.run.config import load
from relay.run.migrate import migrate
from relay.run.timing import Timing

PARTITIONS: Final = 4


def run(kafka: str, messages: int = 1_500_000, rounds: int = 2) -> dict[str, Any]:
    """Measure in turns on one log of ``messages`` records of 256 bytes; return the row of `relay bench`."""
    topics = Topics({"bootstrap.servers": kafka}, Timing())
    log = f"bench-log-{uuid4().hex[:8]}"
    topics.create([TopicPlan(log, PARTITIONS, 1, {"retention.ms": "-1"})])
    fill(kafka, log, PARTITIONS, messages)
    plain: list[float] = []
    ours: list[float] = []
    try:
        for _ in range(rounds):
            plain.append(_plain(kafka, topics, log, messages))
            ours.append(_relay(kafka, topics, log, messages))
    finally:
        topics.delete([log])
    return {
        "name": "topic",
        "value": round(median(ours)),
        "unit": "messages/s",
        "reference": round(median(plain)),
        "ratio": round(median(ours) / median(plain), 3),
        "rounds": [{"relay": round(o), "plain": round(p)} for o, p in zip(ours, plain, strict=True)],
    }


def _filled(topics: Topics, topic: str) -> int:
    return sum(high for _, high in topics.watermarks(topic, list(range(PARTITIONS))).values())


def _target(topics: Topics) -> str:
    target = f"bench-out-{uuid4().hex[:8]}"
    topics.create([TopicPlan(target, PARTITIONS, 1, {})])
    return target


def _plain(kafka: str, topics: Topics, log: str, messages: int) -> float:
    target = _target(topics)
    command = [
        sys.executable,
        "-m",
        "relay.kafka.plain_loop",
        kafka,
        log,
        target,
        str(PARTITIONS),
        str(messages),
    ]
    try:
        return pace(command, lambda: _filled(topics, target), messages)
    finally:
        topics.delete([target])


def _relay(kafka: str, topics: Topics, log: str, messages: int) -> float:
    target = _target(topics)
    name = f"bench{uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "relay.toml"
        path.write_text(
            f'[relay]\nname = "{name}"\ninstance = "bench"\nstate = "{directory}/state"\n'
            f'[kafka]\n"bootstrap.servers" = "{kafka}"\n'
            f'[routes.bench]\nfrom = ["{log}"]\nto = {{ topic = "{target}" }}\n'
        )
        config = load(path)
        migrate(config)
        command = [sys.executable, "-m", "relay.run.process", str(path), "--route", "bench", "--worker", "0"]
        try:
            return pace(command, lambda: _filled(topics, target), messages)
        finally:
            topics.delete(
                [
                    target,
                    config.monitor_topic("bench"),
                    config.deadletter_topic,
                    config.control_topic,
                    config.inquiries_topic,
                ]
            )
