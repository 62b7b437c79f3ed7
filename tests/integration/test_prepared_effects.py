"""Effects in a second database: prepared, then finished by the outcome that stands, whoever finishes and however often."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from relay.message.errors import ConfigError
from relay.queue.attempts import AttemptAborted, AttemptName, commit_here
from relay.queue.message import Audience, Group, NewMessage, Ticket
from relay.queue.port import Holder
from relay.queue.recovery import Recovered, Recovery
from relay.queue.settings import QueueSettings
from relay.resources import open_resource
from relay.resources.attempts import PostgresqlAttempts
from relay.resources.port import RowLocked
from relay.resources.prepared import EffectTransaction, PreparedEffects, prepared_name
from tests.contracts.queue_book import QueueBook

NOW = 1_000_000
WORKER = b"worker"


class Site:
    """A queue, the database that decides (its outcomes table) and a second one (the ledger); here one server's."""

    def __init__(self, url: str) -> None:
        open_resource("shop", url).create_tables()
        self.url = url
        self.direct = psycopg.connect(url, autocommit=True)
        self.direct.execute("create table ledger (id integer primary key)")
        self.direct.execute("set lock_timeout = '300ms'")
        self.queue = QueueBook(QueueSettings("sales", Audience((Group("book", ("book",)),))))
        self.queue.enter(Holder(WORKER, "book", 0, "resource:shop"))
        self.queue.put([NewMessage("/pos", "1", b"1")], NOW)
        (taken,) = self.queue.take("book", WORKER, 1, NOW)
        self.attempt = AttemptName("resource:shop", "sales", self.queue.uuid, "book", taken.ticket).encode()
        self.effects = PreparedEffects("shop", "ledger", self.direct)
        self.outcomes = PostgresqlAttempts("shop", self.direct)

    def prepare(self, number: int = 1) -> None:
        """The handler writes into the ledger, prepares, and its connection ends."""
        with closing(psycopg.connect(self.url)) as connection:
            effect = EffectTransaction("shop", "ledger", self.attempt, connection)
            effect.connection.execute("insert into ledger values (%s)", (number,))
            effect.prepare()

    def recover(self) -> Recovered:
        run = Recovery({"sales": self.queue}, {"resource:shop": self.outcomes})
        for holder in self.queue.holders():
            run.holder("sales", holder, NOW)
        return run.prepared("ledger", self.effects, NOW)

    def ledger(self) -> list[int]:
        return [number for (number,) in self.direct.execute("select id from ledger order by id")]


@pytest.fixture
def site(postgres: str) -> Iterator[Site]:
    found = Site(postgres)
    yield found
    found.direct.close()


def test_without_an_outcome_it_is_rolled_back_after_aborted_was_written(site: Site) -> None:
    site.prepare()
    assert site.effects.pending() == [site.attempt]

    assert site.recover().discarded == 1

    assert site.effects.pending() == []
    assert site.ledger() == []
    with pytest.raises(AttemptAborted):
        commit_here(site.outcomes, site.attempt, NOW)


def test_a_committed_attempt_is_finished_by_whoever_comes_and_once(site: Site) -> None:
    site.prepare()
    commit_here(site.outcomes, site.attempt, NOW)

    assert site.recover().finished == 1
    assert site.effects.finish(site.attempt, committed=True) is False
    assert site.recover() == Recovered()

    assert site.ledger() == [1]


def test_a_living_attempt_is_left_whatever_its_age(site: Site) -> None:
    site.prepare()

    done = Recovery({"sales": site.queue}, {"resource:shop": site.outcomes}).prepared("ledger", site.effects, NOW)

    assert done == Recovered()
    assert site.effects.pending() == [site.attempt]


def test_an_attempt_whose_decision_is_under_way_is_stuck_until_it_ends(site: Site) -> None:
    site.prepare()
    with psycopg.connect(site.url) as deciding:
        commit_here(PostgresqlAttempts("shop", deciding), site.attempt, NOW)

        with pytest.raises(RowLocked):
            site.outcomes.settle(site.attempt, committed=False, now=NOW)
        assert site.recover() == Recovered(), "what its worker holds is not given back, so the attempt counts as living"
        assert site.effects.pending() == [site.attempt]

    assert site.recover().finished == 1
    assert site.ledger() == [1]


def test_the_living_worker_finishes_or_gives_up_its_own(site: Site) -> None:
    with closing(psycopg.connect(site.url)) as connection:
        for number, committed in ((1, False), (2, True)):
            effect = EffectTransaction("shop", "ledger", site.attempt, connection)
            effect.connection.execute("insert into ledger values (%s)", (number,))
            effect.prepare()
            if committed:
                commit_here(site.outcomes, site.attempt, NOW)
                effect.finish()
            else:
                effect.give_up()

    assert site.ledger() == [2]
    assert site.effects.pending() == []


def test_another_relays_prepared_transactions_are_not_seen(site: Site) -> None:
    site.prepare()

    assert PreparedEffects("other", "ledger", site.direct).pending() == []
    assert PreparedEffects("shop", "other", site.direct).pending() == []


def test_what_was_not_prepared_leaves_nothing(site: Site) -> None:
    with closing(psycopg.connect(site.url)) as connection:
        effect = EffectTransaction("shop", "ledger", site.attempt, connection)
        effect.connection.execute("insert into ledger values (1)")
        effect.give_up()

    assert site.effects.pending() == []
    assert site.ledger() == []


def test_a_name_that_postgresql_would_cut_or_refuse_is_refused_before(site: Site) -> None:
    with pytest.raises(ConfigError, match="199 bytes"):
        prepared_name("r" * 64, "s" * 64, site.attempt + "x" * 20)


class Roles:
    """An application's role, and a tenant's that it may take on; both may write into the ledger."""

    def __init__(self, admin: psycopg.Connection[tuple[object, ...]]) -> None:
        self._admin = admin
        end = secrets.token_hex(4)
        self.app, self.tenant = sql.Identifier(f"app_{end}"), sql.Identifier(f"tenant_{end}")
        for text in (
            "create role {app}",
            "create role {tenant}",
            "grant {tenant} to {app}",
            "grant all on ledger to {app}, {tenant}",
        ):
            self._run(text)

    def _run(self, text: str) -> None:
        self._admin.execute(sql.SQL(text).format(app=self.app, tenant=self.tenant))

    def become_app(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        connection.execute(sql.SQL("set session authorization {}").format(self.app))
        if not connection.autocommit:
            connection.commit()

    def drop(self) -> None:
        self._run("drop owned by {app}, {tenant}")
        self._run("drop role {app}, {tenant}")


@pytest.fixture
def roles(site: Site) -> Iterator[Roles]:
    made = Roles(site.direct)
    yield made
    made.drop()


def test_a_role_that_the_handler_has_set_owns_nothing_that_is_prepared(site: Site, roles: Roles) -> None:
    """It alone could finish it, and what is prepared keeps its locks until then."""
    with closing(psycopg.connect(site.url)) as connection:
        roles.become_app(connection)
        effect = EffectTransaction("shop", "ledger", site.attempt, connection)
        effect.connection.execute(sql.SQL("set local role {}").format(roles.tenant))
        effect.connection.execute("insert into ledger values (1)")
        effect.prepare()
        commit_here(site.outcomes, site.attempt, NOW)
        effect.finish()

    assert site.ledger() == [1]


def test_one_that_nobody_here_may_finish_keeps_no_other_waiting(site: Site, roles: Roles) -> None:
    site.prepare(1)
    other = AttemptName("resource:shop", "sales", site.queue.uuid, "book", Ticket(999, 1)).encode()
    with closing(psycopg.connect(site.url)) as connection, closing(psycopg.connect(site.url, autocommit=True)) as finishing:
        roles.become_app(connection)
        roles.become_app(finishing)
        effect = EffectTransaction("shop", "ledger", other, connection)
        effect.connection.execute("insert into ledger values (2)")
        effect.prepare()
        site.effects = PreparedEffects("shop", "ledger", finishing)

        done = site.recover()

    assert done.discarded == 1
    assert len(done.stuck) == 1
    assert "cannot be finished" in done.stuck[0]
    assert PreparedEffects("shop", "ledger", site.direct).pending() == [site.attempt]


def test_an_outcome_is_written_whatever_rows_the_handler_has_asked_its_connection_for(site: Site) -> None:
    with psycopg.connect(site.url, row_factory=dict_row) as connection:
        commit_here(PostgresqlAttempts("shop", connection), site.attempt, NOW)

    assert site.outcomes.settle(site.attempt, committed=False, now=NOW) is True
