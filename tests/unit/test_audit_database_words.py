"""What the auditor says of a database that it cannot read."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest

from relay.audit.tables import _away


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (psycopg.OperationalError('FATAL:  password authentication failed for user "shop"'), "correct what it names (user, password"),
        (psycopg.OperationalError("connection refused"), "start it, or correct the address"),
        (sqlite3.OperationalError("unable to open database file"), "correct its url"),
    ],
    ids=["password", "silent", "file"],
)
def test_the_remedy_fits_what_the_database_said(error: Exception, remedy: str) -> None:
    assert f"the database does not answer ({error}); {remedy}" in str(_away("shop", error))
