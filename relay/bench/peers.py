"""The processes beside the measured one: a reader that notes when messages show, and the outbox's poller."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

import psycopg

from relay.capture.message import partition_of
from relay.kafka.appender import Appender, Receipt, Record
from relay.kafka.settings import DefaultTiming, consumer
from relay.kafka.tail import tail
from relay.message import envelope
from relay.message.record import LogPartition
from relay.world import clock, schedule

PARTITIONS: Final = 4
MARKER_KEY_BYTES: Final = 16
_PROMPT: Final = {"fetch.wait.max.ms": 5, "fetch.min.bytes": 65_536}
"""One fetch per 5 ms at most, on both sides: a fetch per record would measure the reader."""
_POLL_ROWS: Final = 500
_POLL_PAUSE_S: Final = 0.005
_ACK_S: Final = 10.0
_START_S: Final = 10.0

TAKE: Final = """delete from relay_bench_outbox where id in (
    select id from relay_bench_outbox order by id limit %s for update skip locked
) returning id, topic, key, type, created_at, payload"""


@contextmanager
def beside(*arguments: str) -> Iterator[dict[bytes, float]]:
    """Run a process beside this one; yields what it prints: key -> monotonic time of showing."""
    command = [sys.executable, "-m", "relay.bench.peers", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout
    seen: dict[bytes, float] = {}
    ready = threading.Event()

    def gather() -> None:
        output.readline()
        ready.set()
        for line in output:
            key, _, at = line.partition(" ")
            seen.setdefault(bytes.fromhex(key), float(at))

    gathering = schedule.start_thread("bench-peer", gather)
    try:
        if not ready.wait(_START_S) or process.poll() is not None:
            raise RuntimeError(f"{arguments[0]} did not start")
        yield seen
    finally:
        process.terminate()
        process.wait()
        gathering.join()
        output.close()


def read(kafka: str, topic: str) -> None:
    """Print the key of each record that decides (a marker, or an outbox message) and when it was seen."""
    settings = consumer({"bootstrap.servers": kafka}, DefaultTiming(), "relay-bench", **_PROMPT)
    partitions = [LogPartition(topic, partition) for partition in range(PARTITIONS)]
    print("ready", flush=True)
    for batch in tail(settings, partitions):
        seen = clock.monotonic()
        keys = [key.hex() for record in batch if (key := record.key()) and len(key) == MARKER_KEY_BYTES]
        print("".join(f"{key} {seen:.6f}\n" for key in keys), end="", flush=True)


def poll(kafka: str, postgres: str) -> None:
    """Move outbox rows to the topic: delete a batch, append it, commit when it is acknowledged."""
    appender = Appender({"bootstrap.servers": kafka}, DefaultTiming())
    with psycopg.connect(postgres) as connection:
        print("ready", flush=True)
        while True:
            rows = connection.execute(TAKE, (_POLL_ROWS,)).fetchall()
            if rows:
                receipt = Receipt(len(rows))
                appender.append([_message(*row) for row in sorted(rows)], receipt, clock.monotonic() + _ACK_S)
                if not receipt.wait(_ACK_S) or receipt.failure is not None:
                    sys.exit("the poller's messages were not acknowledged")
            connection.commit()
            if not rows:
                clock.sleep(_POLL_PAUSE_S)


def _message(number: int, topic: str, key: str, kind: str, created_at: datetime, payload: bytes) -> Record:
    """Return the same CloudEvent that a capture appends, under the row's number as key: the reader asks for it."""
    headers = [
        (envelope.SPECVERSION, b"1.0"),
        (envelope.SOURCE, b"/bench"),
        (envelope.ID, b"%d" % number),
        (envelope.TYPE, kind.encode()),
        (envelope.TIME, created_at.isoformat().encode()),
        (envelope.CONTENT_TYPE, b"application/octet-stream"),
    ]
    partition = partition_of(key.encode(), PARTITIONS)
    return Record(topic, partition, number.to_bytes(MARKER_KEY_BYTES, "big"), payload, headers)


if __name__ == "__main__":
    if sys.argv[1] == "read":
        read(*sys.argv[2:])
    else:
        poll(*sys.argv[2:])
