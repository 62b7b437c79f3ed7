"""What persons want: written into the control topic by commands, followed by each process within a fraction of a second."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from relay.config.model import RelayConfig
from relay.kafka import settings
from relay.kafka.control import ControlTopic
from relay.kafka.following import Following
from relay.queue.desired import Desired
from relay.world import clock

PERIOD_S: Final = 0.2
"""Well under the second within which workers obey."""
DEADLINE_S: Final = 30.0


class Records(Protocol):
    """A compacted topic, read from its beginning and followed."""

    def records(self) -> Iterable[tuple[bytes, bytes | None]]:
        """Return what came since the last call; the first call returns all there is."""

    def close(self) -> None:
        """Leave."""


class WholeRecords(Records, Protocol):
    """One of which all can be told that was written by now."""

    def to_end(self) -> Iterable[tuple[bytes, bytes | None]]:
        """Return all that was written since the last call."""


class DesiredFollower:
    """For one thread, which calls `now` as often as it likes."""

    def __init__(self, records: WholeRecords) -> None:
        self._records = records
        self._desired = Desired()
        self._read_at = float("-inf")

    def now(self) -> Desired:
        """Return what is wanted; the same object each time. Raises Unreachable if it was never read."""
        if clock.monotonic() - self._read_at >= PERIOD_S:
            for key, value in self._records.records():
                self._desired.add(key, value)
            self._read_at = clock.monotonic()
        return self._desired

    def latest(self) -> Desired:
        """Return what is wanted with all that was said before this call; the same object. Raises Unreachable."""
        for key, value in self._records.to_end():
            self._desired.add(key, value)
        self._read_at = clock.monotonic()
        return self._desired

    def close(self) -> None:
        """Stop following."""
        self._records.close()


def control_records(config: RelayConfig, *, watched: bool = True) -> Following:
    """Follow the relay's control topic; nothing is read before its records are asked for, all the time if it is ``watched``."""
    return Following(_reader(config), config.control_topic, deadline_s=DEADLINE_S, watched=watched)


def control_topic(config: RelayConfig) -> ControlTopic:
    """Open the relay's control topic for a command, to read and to write."""
    made = settings.producer(config.kafka, config.timing, log_level=0)
    return ControlTopic(_reader(config), made, config.control_topic, clock.monotonic, DEADLINE_S)


def follow(config: RelayConfig) -> DesiredFollower:
    """Follow what persons want; nothing is read before `DesiredFollower.now` is called."""
    return DesiredFollower(control_records(config))


def _reader(config: RelayConfig) -> dict[str, object]:
    return settings.consumer(config.kafka, config.timing, f"{config.relay.name}.control.reader", log_level=0)
