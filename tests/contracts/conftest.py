"""The medium that a queue of the contract suite lies on; suites in modules of their own tell what they compared."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from relay.queue.stores.sql_schema import create
from tests.conftest import Services
from tests.contracts.queue_media import MEDIA, SIMULATED, Medium, medium_of

pytest.register_assert_rewrite("tests.contracts.kafka_reading", "tests.contracts.kafka_transactions", "tests.contracts.kafka_groups", "tests.contracts.resource_contract")


@pytest.fixture(scope="session")
def queue_database(services: Services) -> Iterator[str]:
    """URL of a database with the tables of queues, for all queues of these tests."""
    name = f"q_{secrets.token_hex(6)}"
    url = services.postgres.rpartition("/")[0] + f"/{name}"
    with psycopg.connect(services.postgres, autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        with psycopg.connect(url) as connection:
            create(connection)
        yield url
        admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture(params=[*MEDIA, SIMULATED])
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Medium]:
    """One medium after the other; what was opened on it is closed."""
    medium = medium_of(request.param, tmp_path, request)
    yield medium
    medium.close()
