"""An appender that nobody waits for, whose client is full while the brokers are away, takes records again once it has room."""

from __future__ import annotations

from relay.kafka.settings import DefaultTiming
from relay.kafka.unawaited import UnawaitedAppender
from relay.message.record import LogPartition
from relay.world import clock

FULL = {"bootstrap.servers": "127.0.0.1:1", "queue.buffering.max.messages": "1", "message.timeout.ms": "100"}


def test_what_timed_out_makes_room_also_where_nothing_more_was_taken() -> None:
    """It kept its place for ever, since only what was taken had reports asked for: nothing was appended any more."""
    appender = UnawaitedAppender(FULL, DefaultTiming())

    def put() -> None:
        appender.put(LogPartition("orders", 0), b"k", b"v")

    put()
    put()
    first, until = appender._producer, clock.monotonic() + 60
    while appender._producer is first and clock.monotonic() < until:
        clock.sleep(0.05)
        put()

    assert appender._producer is not first, "it is told what timed out, and takes another"
    appender.close()
