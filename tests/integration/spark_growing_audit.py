"""A Spark program of the tests: the audit job, under which every topic grows as soon as it knows what there is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from relay.config.loading import load
from relay.jobs.monitors import Monitor, Monitors
from relay.kafka.topics import Topics
from spark import audit
from tests.integration.audit_site import PARTITIONS, Site, digest


def main(path: str, log: str, output: str) -> int:
    """Let a message be delivered, and another one die, in partitions that are added behind the job's back."""
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
    return audit.main([path, "--json"])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
