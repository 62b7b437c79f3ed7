"""A program for the tests' warm Spark: the audit job, under which every topic grows as soon as it knows what there is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relay.config.loading import load
from relay.jobs.monitors import Monitor, Monitors
from relay.kafka.topics import Topics
from spark import audit
from tests.integration.audit_site import PARTITIONS, Site, digest


def main(arguments: Sequence[str]) -> int:
    """Let a message be delivered, and another one die, in partitions that are added behind the job's back."""
    path, log, output = arguments
    config = load(Path(path))
    site = Site(config, config.kafka["bootstrap.servers"], log, output)
    read = Monitors.small

    def grow_and_read(monitors: Monitors, *arguments: Any) -> Monitor:
        Monitors.small = read  # type: ignore[method-assign]
        with Topics(config.kafka, config.timing) as topics:
            for name in (log, output, config.deadletter_topic):
                topics.grow(name, PARTITIONS + 1)
        for number, name in ((1, log), (2, log), (1, output)):
            site.write(name, number, partition=PARTITIONS)
        site.dead(digest(2), partition=PARTITIONS)
        site.stand_at(0, 0, 2)
        return read(monitors, *arguments)

    Monitors.small = grow_and_read  # type: ignore[assignment, method-assign]
    try:
        return audit.main([path, "--json"])
    finally:  # others run in this process
        Monitors.small = read  # type: ignore[method-assign]
