"""A queue with a route into it moves from PostgreSQL into a file, where no two inbox rows share a number."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from relay.config.loading import load
from relay.config.model import RelayConfig, ResourceConfig
from relay.control.queue_cursor_copy import check_cursors, copy_cursors
from relay.message.errors import ConfigError
from relay.resources import open_resource
from relay.run.queues import queue_of
from relay.setup.migrate import _grant
from relay.setup.queue_tables import create_tables


def written(folder: Path, postgres: str, store: str, more: str = "") -> RelayConfig:
    path = folder / "relay.toml"
    path.write_text(
        '[relay]\nname = "shop"\ninstance = "a"\n[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n'
        f'[resources.shop]\nurl = "{postgres}"\n{more}'
        f'[queues.credit]\nstore = "{store}"\nsubscribers = {{ clerk = {{}} }}\n'
        '[routes.main]\nfrom = ["orders"]\nto = { queue = "credit" }\n'
    )
    return load(path)


def test_rows_of_one_transaction_get_numbers_of_their_own(tmp_path: Path, postgres: str) -> None:
    config = written(tmp_path, postgres, "shop")
    open_resource("shop", postgres).create_tables()
    target = f"sqlite:///{tmp_path}/new.db"
    create_tables(config, queue_of(config, "credit"), target)
    with psycopg.connect(postgres) as old:
        for offset, applied in ((12, 1), (11, 1), (10, 1), (13, 2)):
            old.execute(
                "insert into relay_inbox (relay, route, digest, content, topic_id, partition, log_offset, outcome, applied)"
                " overriding system value values ('shop', 'main', %s, %s, %s, 0, %s, 0, %s)",
                (bytes([offset]) * 16, bytes(8), bytes(16), offset, applied),
            )

    assert copy_cursors(config, "credit", target) == 4

    with closing(sqlite3.connect(tmp_path / "new.db")) as new:
        assert new.execute("select log_offset from relay_inbox order by applied").fetchall() == [(10,), (11,), (12,), (13,)]


@pytest.fixture
def worker(postgres: str) -> Iterator[str]:
    """A role without any right."""
    role = f"w_{secrets.token_hex(4)}"
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(sql.SQL("create role {} login password 'w'").format(sql.Identifier(role)))
        yield role
        admin.execute(sql.SQL("drop owned by {}").format(sql.Identifier(role)))
        admin.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


def test_a_worker_with_no_more_rights_than_it_is_granted_moves_there_and_back(tmp_path: Path, postgres: str, worker: str) -> None:
    url = _url(postgres, worker)
    resource = {"url": url, "migrate_url": postgres}
    _grant("shop", _created(ResourceConfig.model_validate(resource)))
    for here, there in (("shop", f"sqlite:///{tmp_path}/file.db"), (f"sqlite:///{tmp_path}/file.db", "shop")):
        config = written(tmp_path, url, here, f'migrate_url = "{postgres}"\n')
        create_tables(config, queue_of(config, "credit"), here)
        create_tables(config, queue_of(config, "credit"), there)
        check_cursors(config, "credit", there)
        assert copy_cursors(config, "credit", there) == 0


def test_what_keeps_cursors_from_being_copied_is_said_before_anything_is_done(tmp_path: Path, postgres: str, worker: str) -> None:
    target = f"sqlite:///{tmp_path}/file.db"
    config = written(tmp_path, _url(postgres, worker), "shop")
    with pytest.raises(ConfigError, match=r"lacks tables .*; run `relay migrate`"):
        check_cursors(config, "credit", target)

    open_resource("shop", postgres).create_tables()
    with pytest.raises(ConfigError, match=f"grant usage, update on sequence relay_inbox_applied_seq to {worker}"):
        check_cursors(config, "credit", target)

    with psycopg.connect(postgres) as admin:
        admin.execute(sql.SQL("grant usage, update on sequence relay_inbox_applied_seq to {}").format(sql.Identifier(worker)))
    check_cursors(config, "credit", target)


def _url(postgres: str, role: str) -> str:
    facts = conninfo_to_dict(postgres)
    place = {key: str(facts[key]) for key in ("host", "port") if facts.get(key)}
    return f"postgresql://{role}:w@/{facts['dbname']}?{urlencode(place)}"


def _created(resource: ResourceConfig) -> ResourceConfig:
    open_resource("shop", resource.migrate_url.get_secret_value() if resource.migrate_url else "").create_tables()
    return resource
