"""Faults of databases, each a named thing whose parameters are drawn from the seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.databases import Backend, ConnectionLost, Database, StatementRefused

Fault = Callable[[Database, Random, float], None]
"""Given the database, the seed's numbers, and the seconds after which everything is healed."""


def lost_commit_answers(database: Database, rng: Random, until: float) -> None:
    """COMMIT takes effect and its answer is lost."""
    database.weather.commit_answer_lost = rng.choice((0.02, 0.1, 0.4))


def lost_commit_requests(database: Database, rng: Random, until: float) -> None:
    """COMMIT never reaches the server."""
    database.weather.commit_request_lost = rng.choice((0.02, 0.1, 0.4))


def held_commits(database: Database, rng: Random, until: float) -> None:
    """COMMIT arrives after its client has given up."""
    database.weather.commit_held = rng.choice((0.02, 0.1, 0.3))
    database.weather.hold_s = rng.choice(((0.05, 2.0), (0.5, 20.0), (5.0, 40.0)))


def lost_statements(database: Database, rng: Random, until: float) -> None:
    """Connections break in the middle of transactions."""
    database.weather.request_lost = rng.choice((0.002, 0.01, 0.05))


def unnoticed_deaths(database: Database, rng: Random, until: float) -> None:
    """The server keeps the locks of dead clients for a while."""
    database.weather.unnoticed = rng.choice((0.2, 0.7, 1.0))


def slow_answers(database: Database, rng: Random, until: float) -> None:
    """Every request takes long."""
    database.weather.latency_s = rng.choice(((0.001, 0.05), (0.01, 0.3)))


def crashes(database: Database, rng: Random, until: float) -> None:
    """The server dies and comes back with what was committed."""
    for _ in range(rng.randint(1, 4)):
        database.world.at(rng.uniform(0.0, until), database.crash, rng.uniform(0.0, 6.0))


def locked_rows(
    database: Database,
    rng: Random,
    until: float,
    tables: tuple[str, ...] = ("relay_position", "relay_inbox", "relay_capture", "stock"),
) -> None:
    """A stranger's transaction holds rows of the relay's tables for a while."""

    def lock(table: str, seconds: float) -> None:
        keys = list(database.tables[table].rows)
        if not keys:
            return
        backend = Backend(database, "a stranger", 0.5, 60.0)
        key = rng.choice(keys)

        def hold() -> None:
            try:
                backend.begin()
                backend.lock(table, key)
                database.world.trace("a stranger holds", table, round(seconds, 3))
                database.world.sleep(seconds)
            except (StatementRefused, ConnectionLost):
                pass  # it was held by somebody else, or the server died
            backend.terminate()

        database.spawn("a stranger", hold)

    for _ in range(rng.randint(1, 6)):
        table = rng.choice(tables)
        if table in database.tables:
            database.world.at(rng.uniform(0.0, until), lock, table, rng.uniform(0.1, 12.0))


def restored_backup(database: Database, rng: Random, until: float) -> None:
    """The disk is lost: the database goes back to an earlier state. Only for one that no publisher captures with."""
    at = rng.uniform(0.0, until * 0.8)
    copies: list[Any] = []
    database.world.at(at, lambda: copies.append(database.backup()))
    database.world.at(rng.uniform(at + 0.1, until), lambda: database.restore(copies[0], rng.uniform(0.1, 3.0)))


DATABASE_FAULTS: tuple[Fault, ...] = (
    lost_commit_answers,
    lost_commit_requests,
    held_commits,
    lost_statements,
    unnoticed_deaths,
    slow_answers,
    crashes,
    locked_rows,
)


def heal(database: Database) -> None:
    """End every fault of a database."""
    database.weather = type(database.weather)()
