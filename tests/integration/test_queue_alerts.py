"""Whoever waits for a queue is woken by what is put into it, on every medium that tells."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from relay.queue.alerts import POLL_S, Alerts, open_alerts
from relay.queue.port import QueueStore, StoreAway
from relay.queue.stores import open_store
from relay.queue.stores.sql_schema import create
from tests.capture_log import until
from tests.contracts.queue_media import put, settings
from tests.integration.threads import in_thread

WAIT_S = 30.0


@pytest.fixture
def database(postgres: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres, autocommit=True) as connection:
        create(connection)
        yield connection


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'q.db'}"
    request.getfixturevalue("database")
    return str(request.getfixturevalue("postgres"))


@pytest.fixture
def listening(url: str) -> Iterator[tuple[QueueStore, Alerts]]:
    asked = settings("ann")
    store = open_store(asked, url)
    alerts = open_alerts(asked.name, url)
    while alerts.wait("ann", 0.1):  # what making the tables told
        pass
    yield store, alerts
    alerts.close()
    store.close()


def test_who_waits_wakes_at_once_when_something_is_put(listening: tuple[QueueStore, Alerts]) -> None:
    store, alerts = listening
    begun = time.monotonic()
    thread, ended = in_thread(lambda: (alerts.wait("ann", WAIT_S), time.monotonic() - begun))
    put(store, "m")
    thread.join(WAIT_S)

    ((told, seconds),) = ended  # type: ignore[misc]
    assert told
    assert seconds < WAIT_S / 3


def test_what_came_before_the_wait_is_not_missed_and_told_once(listening: tuple[QueueStore, Alerts]) -> None:
    store, alerts = listening
    put(store, "m")

    assert alerts.wait("ann", 5)
    assert not alerts.wait("ann", 0.2)


def test_what_was_taken_back_wakes_nobody(listening: tuple[QueueStore, Alerts]) -> None:
    store, alerts = listening
    with suppress(StoreAway), store.transaction():
        put(store, "m")
        raise StoreAway

    assert not alerts.wait("ann", 0.2)


def test_what_another_process_puts_into_a_file_is_seen(tmp_path: Path) -> None:
    asked = settings("ann")
    store = open_store(asked, "sqlite:///q.db", state=tmp_path)
    alerts = open_alerts("another name, as if the board were another process's", "sqlite:///q.db", state=tmp_path)
    alerts.wait("ann", 0.1)

    put(store, "m")

    assert alerts.wait("ann", 5)
    alerts.close()
    store.close()


def test_who_waits_for_files_which_tell_nothing_takes_again_within_the_bound() -> None:
    alerts = open_alerts("q", "files:///queues")
    begun = time.monotonic()

    assert alerts.wait("ann", WAIT_S)
    assert time.monotonic() - begun < WAIT_S / 3
    alerts.close()


def test_who_cannot_listen_takes_again_at_the_polls_pace_and_not_as_fast_as_it_can() -> None:
    alerts = open_alerts("q", "postgresql://127.0.0.1:1/nobody")
    begun = time.monotonic()

    assert alerts.wait("ann", WAIT_S)
    assert POLL_S <= time.monotonic() - begun < WAIT_S / 3
    alerts.close()


def test_a_listening_connection_that_was_lost_is_made_again(
    postgres: str, database: psycopg.Connection
) -> None:
    asked = settings("ann")
    store = open_store(asked, postgres)
    alerts = open_alerts(asked.name, postgres)
    database.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query like 'listen%'"
    )
    # Unheard meanwhile: it is told that something may have come.
    assert alerts.wait("ann", 5)
    put(store, "unheard")
    assert alerts.wait("ann", 5), "nobody listened when it came"
    until(lambda: not alerts.wait("ann", 0.1), "it listens again")

    put(store, "m")

    assert alerts.wait("ann", 5)
    alerts.close()
    store.close()
