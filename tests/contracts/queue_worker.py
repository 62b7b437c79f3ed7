"""A process that works on a queue without end and says what was confirmed to it, one line each; a test kills it."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson

from relay.queue.message import NewMessage
from relay.queue.port import Holder, QueueStore
from relay.queue.settings import QueueSettings
from relay.queue.stores import files_base, open_store
from tests.contracts.queue_media import NOW, subscribers

BATCH = 20
HOLDER = b"killed"


def settings_of(name: str) -> QueueSettings:
    """Return what this process and the test that watches it both open."""
    return QueueSettings(name, subscribers("ann", ("bob", "cid")))


def say(what: str, names: list[str]) -> None:
    sys.stdout.buffer.write(orjson.dumps([what, names]) + b"\n")
    sys.stdout.buffer.flush()


def work(store: QueueStore, first: int) -> None:
    for subscriber in ("ann", "bob"):
        store.enter(Holder(HOLDER + subscriber.encode(), subscriber, 0, None))
    for begin in range(first, sys.maxsize, BATCH):
        names = [f"m{number}" for number in range(begin, begin + BATCH)]
        store.put([NewMessage("shop", name, name.encode() * 20, lane=b"l") for name in names], NOW)
        say("put", names)
        for subscriber in ("ann", "bob"):
            taken = store.take(subscriber, HOLDER + subscriber.encode(), BATCH, NOW)
            tickets, got = [one.ticket for one in taken], [one.id for one in taken]
            say(f"taken {subscriber}", got)
            store.start(subscriber, tickets, NOW)
            with store.transaction():
                store.finish(subscriber, tickets, NOW)
                store.settle(f"{subscriber} {got[-1]}", committed=True, now=NOW)
            say(f"done {subscriber}", got)


if __name__ == "__main__":
    # Small bounds: journal files are written and logs follow each other while the process may die.
    files_base.JOURNAL_MESSAGES, files_base.FOLLOW_BYTES = 3 * BATCH, 20_000  # type: ignore[misc]
    work(open_store(settings_of(sys.argv[1]), sys.argv[2], state=Path(sys.argv[3])), int(sys.argv[4]))
