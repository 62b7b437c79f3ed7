"""What helps against a database that does not answer: by what libpq says of it."""

from __future__ import annotations

import psycopg
import pytest

from relay.resources.postgresql import remedy


@pytest.mark.parametrize(
    ("said", "helps"),
    [
        ("SSL error: certificate verify failed", "sslmode"),
        ('server certificate for "good" does not match host name "db"', "sslmode"),
        ('root certificate file "/etc/ca.crt" does not exist', "sslmode"),
        ("server does not support SSL, but SSL was required", "sslmode"),
        ("SSL SYSCALL error: EOF detected", "start it"),
        ("SSL connection has been closed unexpectedly", "start it"),
        ("Connection refused", "start it"),
        ('FATAL:  password authentication failed for user "worker"', "password"),
    ],
)
def test_it_is_for_what_is_wrong(said: str, helps: str) -> None:
    assert helps in remedy(psycopg.OperationalError(f'connection to server at "127.0.0.1", port 5432 failed: {said}'))
