"""A control topic, in memory, that says one thing: a queue's uuid; and a route into a queue that goes by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from relay.config.loading import load
from relay.delivery.queue.effects import HeldPublishers
from relay.queue.desired import encode_uuid
from relay.queue.port import QueueStore
from relay.resources import open_resource
from relay.run.following import DesiredFollower
from relay.run.queue_cursor import queue_cursor
from relay.run.queues import open_at, queue_of
from relay.setup.queue_tables import create_tables
from relay.transfer.cursor import TableCursor


class RecordedQueue:
    """What the control topic would say: the queue's uuid, once."""

    def __init__(self, queue: str, uuid: str) -> None:
        self._left = [encode_uuid(queue, uuid)]

    def records(self) -> list[tuple[bytes, bytes | None]]:
        """Return what nobody was told yet."""
        found, self._left = self._left, []
        return list(found)

    to_end = records

    def close(self) -> None:
        """Nothing is held."""


@contextmanager
def cursor_into_queue(folder: Path, url: str, publishers: HeldPublishers) -> Iterator[tuple[TableCursor, QueueStore]]:
    """Give the cursor of a route from ``orders`` into the queue ``credit``, which lies in the database at ``url``, and the queue."""
    path = folder / "relay.toml"
    path.write_text(
        '[relay]\nname = "shop"\ninstance = "a"\n[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n'
        f'[resources.shop]\nurl = "{url}"\n[queues.credit]\nstore = "shop"\nsubscribers = {{ clerk = {{}} }}\n'
        '[routes.main]\nfrom = ["orders"]\nto = { queue = "credit" }\n'
    )
    config = load(path)
    open_resource("shop", url).create_tables()
    create_tables(config, queue_of(config, "credit"), "shop")
    with closing(open_at(config, queue_of(config, "credit"), "shop")) as store:
        follower = DesiredFollower(RecordedQueue("credit", store.uuid))
        with closing(queue_cursor(config, config.routes["main"], follower, publishers, lambda: {"orders": bytes(16)})) as cursor:
            yield cursor, store
