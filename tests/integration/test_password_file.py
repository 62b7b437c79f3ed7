"""A password in a file of libpq's is read at each connection: processes that go on for ever take one that changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from relay.message.errors import Unreachable
from relay.resources import open_resource
from tests.integration.table_site import Database


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    name = f"clerk_{uuid4().hex[:8]}"
    database.do(f"create role {name} login superuser password 'one'")
    yield name
    database.do(f"drop role {name}")


def test_a_resource_connects_with_the_password_that_its_file_has_now(database: Database, role: str, tmp_path: Path) -> None:
    place = conninfo_to_dict(database.url)
    passwords = tmp_path / "pgpass"

    def write(password: str) -> None:
        passwords.write_text(f"*:*:*:{role}:{password}\n")
        passwords.chmod(0o600)

    write("one")
    url = f"postgresql://{role}@{place['host']}:{place['port']}/{place['dbname']}?passfile={passwords}"
    resource = open_resource("shop", url)
    resource.session().close()
    database.connection.execute(sql.SQL("alter role {} password 'two'").format(sql.Identifier(role)))
    with pytest.raises(Unreachable, match="password authentication failed"):
        resource.session()
    write("two")
    resource.session().close()
    resource.decisions().close()
