"""A queue with a route into it moves from PostgreSQL into a file, where no two inbox rows share a number."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from relay.config.loading import load
from relay.config.model import RelayConfig, ResourceConfig
from relay.control.queue_cursor_copy import check_cursors, copy_cursors
from relay.message.errors import ConfigError
from relay.resources import open_resource
from relay.run.queues import queue_of
from relay.setup.migrate import _grant
from relay.setup.queue_tables import create_tables
from tests.integration.conftest import url_of


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


def test_a_worker_with_no_more_rights_than_it_is_granted_moves_there_and_back(tmp_path: Path, postgres: str, worker_role: str) -> None:
    url = url_of(postgres, worker_role)
    resource = {"url": url, "migrate_url": postgres}
    _grant("shop", _created(ResourceConfig.model_validate(resource)))
    for here, there in (("shop", f"sqlite:///{tmp_path}/file.db"), (f"sqlite:///{tmp_path}/file.db", "shop")):
        config = written(tmp_path, url, here, f'migrate_url = "{postgres}"\n')
        create_tables(config, queue_of(config, "credit"), here)
        create_tables(config, queue_of(config, "credit"), there)
        check_cursors(config, "credit", there)
        assert copy_cursors(config, "credit", there) == 0


def test_what_keeps_cursors_from_being_copied_is_said_before_anything_is_done(tmp_path: Path, postgres: str, worker_role: str) -> None:
    target = f"sqlite:///{tmp_path}/file.db"
    config = written(tmp_path, url_of(postgres, worker_role), "shop")
    with pytest.raises(ConfigError, match=r"lacks tables .*; run `relay migrate`"):
        check_cursors(config, "credit", target)

    open_resource("shop", postgres).create_tables()
    with pytest.raises(ConfigError, match=f"grant usage, update on sequence relay_inbox_applied_seq to {worker_role}"):
        check_cursors(config, "credit", target)

    with psycopg.connect(postgres) as admin:
        admin.execute(sql.SQL("grant usage, update on sequence relay_inbox_applied_seq to {}").format(sql.Identifier(worker_role)))
    check_cursors(config, "credit", target)


def _created(resource: ResourceConfig) -> ResourceConfig:
    open_resource("shop", resource.migrate_url.get_secret_value() if resource.migrate_url else "").create_tables()
    return resource
