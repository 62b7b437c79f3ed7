"""A queue in a database: the port as a whole, over a session with SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from relay.queue.settings import QueueSettings
from relay.queue.stores.sql_moving import Moving
from relay.queue.stores.sql_publishing import Publishing
from relay.queue.stores.sql_session import Session
from relay.queue.stores.sql_subscribing import Subscribing
from relay.queue.stores.sql_viewing import Viewing


class SqlQueue(Publishing, Subscribing, Viewing, Moving):
    """The `QueueStore` over a database. A session that is bound to an open transaction lets that one decide.

    Such a queue must be known to the database already (`relay migrate`, or opened once on a connection of its own).
    """

    shared = True

    def __init__(self, settings: QueueSettings, session: Session) -> None:
        super().__init__(settings, session)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make what is called inside one unit."""
        with self.session.unit():
            yield
