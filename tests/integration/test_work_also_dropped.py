"""What a killed worker left prepared in a further database is finished by the next one, whose handler does not name it any more."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from relay.message.errors import Unreachable
from relay.queue.attempts import AttemptName, PreparedTransactions
from relay.queue.message import Audience, Group, NewMessage, Ticket
from relay.queue.port import Holder
from relay.queue.settings import QueueSettings
from relay.queue.stores import open_store
from relay.resources.prepared import EffectTransaction, PreparedEffects
from relay.work.backoff import Backoff
from relay.work.stores import Deciding, Stores
from relay.work.upkeep import PREPARED_S, UNNAMED_S, Upkeep
from relay.world import schedule
from relay.world.crash import EXIT_STATUS
from tests.integration.work_site import APP, lent_site

BOTH = """
from relay import subscriber

@subscriber("orders", resource="shop", also=["other"])
def book(message, db, other):
    db.execute("insert into effect (lane, number, attempt) values (%s, %s, %s)",
               (message.lane.decode(), int(message.value), message.taken.ticket.attempt))
    other.execute("insert into entry values (1)")
"""


@pytest.mark.parametrize(
    ("crash", "is_decided"), [("prepared.prepared", False), ("prepared.finishing", True)]
)
def test_it_is_finished_by_the_outcome_that_stands(
    crash: str, is_decided: bool, tmp_path: Path, postgres: str, kafka: str, kafka_admin: AdminClient
) -> None:
    """Prepared for ever it would keep its locks, and hold back what vacuum removes."""
    extra = f'[resources.other]\nurl = "{postgres}"'
    with (
        lent_site(tmp_path, kafka, kafka_admin, postgres, extra=extra) as site,
        psycopg.connect(postgres, autocommit=True) as direct,
    ):
        direct.execute("create table entry (number integer)")
        prepared = PreparedEffects(site.name, "other", direct)
        site.put([0])
        assert site.finish(site.app(BOTH), env={"RELAY_CRASH_AT": crash}) == EXIT_STATUS
        assert len(prepared.pending()) == 1

        assert site.finish(site.app(APP)) == 0

        assert prepared.pending() == []
        assert direct.execute("select count(*) from entry").fetchall() == [(int(is_decided),)]
        site.check([0])
        assert (
            b"finished prepared writes in a database that the handler does not name" in site.said.read_bytes()
        )


class Asked:
    """The database that is not named any more, away at first."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.is_away = True
        self.times = 0

    def open(self, lent: ExitStack) -> PreparedTransactions:
        self.times += 1
        if self.is_away:
            raise Unreachable("resources.other: the database does not answer")
        connection = lent.enter_context(psycopg.connect(self._url, autocommit=True))
        return PreparedEffects("shop", "other", connection)

    def prepare(self, attempt: str) -> None:
        connection = psycopg.connect(self._url)
        EffectTransaction("shop", "other", attempt, connection).prepare()
        connection.close()


def test_it_is_asked_seldom_and_what_is_under_way_or_another_queues_is_let_be(
    tmp_path: Path, postgres: str
) -> None:
    settings = QueueSettings("orders", Audience((Group("ledger", ("ledger",)),)))
    store = open_store(settings, f"sqlite:///{tmp_path}/q.db")
    stores = Stores({"orders": schedule.lock()}, lambda _: store)
    living = Holder(b"a living worker-", "ledger", 0, None)
    store.enter(living)
    store.put([NewMessage("p", "1", b"v")], 1)
    (taken,) = store.take("ledger", living.id, 1, 1)
    own = AttemptName("queue:orders", "orders", store.uuid, "ledger", taken.ticket).encode()
    others = AttemptName("queue:else", "else", "uuid", "ledger", Ticket(1, 1)).encode()
    asked = Asked(postgres)
    for attempt in (own, others):
        asked.prepare(attempt)
    beside = stores.beside("orders")
    upkeep = Upkeep(
        "orders",
        beside,
        partial(Deciding, beside, {}),
        living,
        tmp_path,
        60.0,
        Backoff(),
        unnamed={"other": asked.open},
    )
    with capture_logs() as lines:
        upkeep.once(1.0)
        upkeep.once(UNNAMED_S)
        assert asked.times == 1, "one that is away is needed by nobody here"

        asked.is_away = False
        upkeep.once(1.0 + UNNAMED_S)
        assert asked.times == 2
        store.free("ledger", [taken.ticket], 2)
        upkeep.once(1.0 + UNNAMED_S + PREPARED_S)
        upkeep.once(1.0 + UNNAMED_S + 2 * PREPARED_S)
        upkeep.once(1.0 + UNNAMED_S + 3 * PREPARED_S)

    assert asked.times == 4
    with ExitStack() as lent:
        assert asked.open(lent).pending() == [others]
    assert [(line["log_level"], line.get("rolled_back")) for line in lines] == [("info", 1)]
    stores.close()
