"""A password in a file is read again by whoever is not let in: processes that go on for ever take one that changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from uuid import uuid4

import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from relay.capture.resolver import Resolver, State
from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.message.envelope import ResourceName
from relay.message.errors import Retriable, Unreachable
from relay.queue.port import StoreAway
from relay.queue.stores import open_store
from relay.resources import open_resource
from relay.resources.port import Resource
from relay.setup.queue_tables import create_tables
from tests.integration.table_site import Database

SITE = """
[relay]
name = "shop"
instance = "test"
[kafka]
"bootstrap.servers" = "127.0.0.1:9"
[resources.shop]
url = "{url}"
[queues.orders]
store = "shop"
subscribers = {{ ann = {{}} }}
"""


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    name = f"clerk_{uuid4().hex[:8]}"
    database.do(f"create role {name} login superuser password 'one'")
    yield name
    database.do(f"drop owned by {name}")
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


class Changing:
    """A role whose password lies in a file that a configuration names."""

    def __init__(self, database: Database, role: str, folder: Path) -> None:
        self._database = database
        self._role = role
        self.file = folder / "password"
        self.says("one")
        place = conninfo_to_dict(database.url)
        path = folder / "relay.toml"
        path.write_text(SITE.format(url=f"postgresql://{role}:${{file:password}}@{place['host']}:{place['port']}/{place['dbname']}"))
        with chdir(folder):  # whoever goes elsewhere later finds its files all the same
            self.config: RelayConfig = load(Path(path.name))
        path.unlink()  # what was read of it is what holds
        self.url = self.config.resources["shop"].url.get_secret_value()
        self.resource: Resource = open_resource("shop", self.url)
        self.resource.create_tables()

    def says(self, password: str) -> None:
        self.file.write_text(password + "\n")
        self.file.chmod(0o600)

    def change(self, password: str) -> None:
        """Change the password on the server, and end the connections that were made with the former one."""
        alter = sql.SQL("alter role {} password {}").format(sql.Identifier(self._role), sql.Literal(password))
        self._database.connection.execute(alter)
        self._database.connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", [self._role])


@pytest.fixture
def changing(database: Database, role: str, tmp_path: Path) -> Changing:
    return Changing(database, role, tmp_path)


def test_who_asks_about_captures_is_let_in_again_once_the_file_has_the_new_password(changing: Changing) -> None:
    """A topic route's worker asked with the password it began with until somebody started it again, and held the messages."""
    resolver, name = Resolver({"shop": changing.resource}), changing.resource.identity()

    def state(capture: bytes, name: ResourceName = name) -> State:
        return resolver.resolve([(capture, name)])[capture].state

    assert state(b"a" * 16) is State.ABORTED
    for former, password in (("one", "two"), ("two", "three")):
        changing.change(password)
        assert [state(b"b" * 16) for _ in range(2)] == [State.UNREACHABLE] * 2, f"the file says {former}"
        changing.file.unlink()
        assert state(b"b" * 16) is State.UNREACHABLE
        changing.says(password)
        assert state(password.encode().ljust(16)) is State.ABORTED
    changing.says("four")
    changing.resource.decisions().close()
    changing.change("four")
    assert [state(b"c" * 16) for _ in range(2)][1] is State.ABORTED
    resolver.close()


def test_a_queue_goes_on_with_the_new_password(changing: Changing, tmp_path: Path) -> None:
    settings = changing.config.queues["orders"].settings()
    create_tables(changing.config, changing.config.queues["orders"], "shop")
    store = open_store(settings, changing.url, state=tmp_path)
    changing.change("two")
    for _ in range(2):
        with pytest.raises(StoreAway):
            store.waiting()
    changing.says("two")
    assert store.waiting() == 0
    store.close()


def test_a_table_goes_on_with_the_new_password(changing: Changing, database: Database) -> None:
    cursor = database.cursor(changing.url)
    cursor.claim({})
    changing.change("two")
    with pytest.raises(Retriable):  # its connection was ended
        cursor.claim({})
    with pytest.raises(Unreachable, match="password authentication failed"):
        cursor.claim({})
    changing.says("two")
    cursor.claim({})
