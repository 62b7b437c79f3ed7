"""A transaction that only stores positions has nothing in the monitor to wait for, and asks for the ends of nothing."""

from __future__ import annotations

from relay.config.timing import Timing
from relay.kafka import settings
from relay.kafka.reading import PartitionReader
from relay.run import clock


def test_the_ends_of_nothing_are_known_without_a_broker() -> None:
    """Refused by the client, it was taken for brokers that are away: the route recovered, five seconds after it was idle."""
    given = settings.consumer({"bootstrap.servers": "127.0.0.1:1"}, Timing(), "g", log_level=0)
    with PartitionReader(given, committed=True, clock=clock.monotonic, deadline_s=1.0) as reader:
        assert reader.ends([]) == {}
