"""A process of the document's customer database module: from one queue to another, with a ledger in a further database.

``python -m tests.integration.queue_site DIRECTORY LEDGER`` recovers what earlier runs left, then works until nothing is left
to take. Inbound and outbound are SQLite files, the attempt is decided where the parent is, the ledger's writes are prepared.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import psycopg

from relay.queue.attempts import AttemptAborted, AttemptName, accept_children, commit_here, put_children
from relay.queue.message import Audience, Group, NewMessage, Parent, Taken
from relay.queue.port import Holder, QueueStore
from relay.queue.recovery import Recovery
from relay.queue.settings import QueueSettings
from relay.queue.stores import open_store
from relay.resources.prepared import EffectTransaction, PreparedEffects

NOW = 1_000_000
SUBSCRIBER = "customer"


def open_queues(directory: Path) -> dict[str, QueueStore]:
    inbound = QueueSettings("inbound", Audience((Group(SUBSCRIBER, (SUBSCRIBER,)),)))
    outbound = QueueSettings("outbound", Audience((Group("approval", ("approval",)),)))
    return {
        settings.name: open_store(settings, f"sqlite:///{directory / settings.name}.db") for settings in (inbound, outbound)
    }


def recover(queues: dict[str, QueueStore], ledger: psycopg.Connection) -> None:
    """Every earlier run is dead: there is one process at a time."""
    run = Recovery(queues, {f"queue:{name}": store for name, store in queues.items()})
    for holder in queues["inbound"].holders():
        run.holder("inbound", holder, NOW)
    run.children("outbound", NOW)
    run.prepared("ledger", PreparedEffects("site", "ledger", ledger), NOW)


def process(queues: dict[str, QueueStore], taken: Taken, ledger: psycopg.Connection) -> None:
    inbound = queues["inbound"]
    attempt = AttemptName("queue:inbound", "inbound", inbound.uuid, SUBSCRIBER, taken.ticket).encode()
    child = NewMessage("/customer", f"of-{taken.id}", taken.value)
    parent = Parent("inbound", taken.ticket.handle, SUBSCRIBER)
    put = put_children(attempt, [parent], {"outbound": [child]}, queues, NOW)
    effect = EffectTransaction("site", "ledger", attempt, ledger)
    ledger.execute("insert into ledger (sale) values (%s)", (taken.id,))
    effect.prepare()
    with inbound.transaction():
        if not all(inbound.finish(SUBSCRIBER, [taken.ticket], NOW)):
            raise AttemptAborted(attempt)
        commit_here(inbound, attempt, NOW)
    effect.finish()
    accept_children(put, queues, NOW)


def main(directory: Path, url: str) -> None:
    queues = open_queues(directory)
    with closing(psycopg.connect(url, autocommit=True)) as outside:
        recover(queues, outside)
    me = uuid4().bytes
    queues["inbound"].enter(Holder(me, SUBSCRIBER, 0, None))
    with closing(psycopg.connect(url)) as ledger:
        while found := queues["inbound"].take(SUBSCRIBER, me, 1, NOW):
            process(queues, found[0], ledger)
    queues["inbound"].leave(me)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
