"""What the measurements of routes share: one log, the relay and its references in turns, one row of numbers."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final
from uuid import uuid4

from relay.bench.pace import pace
from relay.config.loading import load
from relay.kafka.topics import TopicPlan, Topics
from relay.setup.migrate import migrate

PARTITIONS: Final = 4
RELAY: Final = "relay"
PLAIN: Final = "plain"


@contextmanager
def lent_topic(topics: Topics, kind: str) -> Iterator[str]:
    """Lend a new topic that keeps everything; it is deleted afterwards."""
    name = f"bench-{kind}-{uuid4().hex[:8]}"
    topics.create([TopicPlan(name, PARTITIONS, 1, {"retention.ms": "-1"})])
    try:
        yield name
    finally:
        topics.delete([name])


def in_turns(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Measure each side ``rounds`` times, taking turns; return messages per second by side."""
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, measure in sides.items():
            speeds[side].append(measure())
    return speeds


def row(name: str, speeds: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return the row of `relay bench`: the relay against ``plain``, and against each further side by its name."""
    middle = {side: median(values) for side, values in speeds.items()}
    found: dict[str, Any] = {
        "name": name,
        "value": round(middle[RELAY]),
        "unit": "messages/s",
        "reference": round(middle[PLAIN]),
        "ratio": round(middle[RELAY] / middle[PLAIN], 3),
    }
    for side in middle.keys() - {RELAY, PLAIN}:
        found[f"{side}_reference"] = round(middle[side])
        found[f"{side}_ratio"] = round(middle[RELAY] / middle[side], 3)
    turns = zip(*speeds.values(), strict=True)
    return {**found, "rounds": [dict(zip(speeds, map(round, turn), strict=True)) for turn in turns]}


def relay_pace(
    topics: Topics, kafka: str, route: Callable[[Path], str], filled: Callable[[], int], messages: int
) -> float:
    """Run one worker of the ``route`` (see `lent_worker`) until its destination is filled."""
    with lent_worker(topics, kafka, route) as command:
        return pace(command, filled, messages)


@contextmanager
def lent_worker(topics: Topics, kafka: str, route: Callable[[Path], str]) -> Iterator[list[str]]:
    """Lend the command of one worker; ``route`` writes the sections of resources and the route `bench`.

    It may put files into the directory it is given.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "relay.toml"
        path.write_text(
            f'[relay]\nname = "bench{uuid4().hex[:8]}"\ninstance = "bench"\nstate = "{directory}/state"\n'
            f'[kafka]\n"bootstrap.servers" = "{kafka}"\n{route(Path(directory))}'
        )
        config = load(path)
        migrate(config)
        try:
            yield [sys.executable, "-m", "relay.run.process", str(path), "--route", "bench", "--worker", "0"]
        finally:
            owned = [config.deadletter_topic, config.control_topic, config.inquiries_topic, config.decisions_topic]
            topics.delete([config.monitor_topic("bench"), *owned])
