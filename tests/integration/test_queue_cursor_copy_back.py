"""A queue with a route into it moves from PostgreSQL into a file, where no two inbox rows share a number."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg

from relay.config.loading import load
from relay.control.queue_cursor_copy import copy_cursors
from relay.resources import open_resource
from relay.run.queues import queue_of
from relay.setup.queue_tables import create_tables


def test_rows_of_one_transaction_get_numbers_of_their_own(tmp_path: Path, postgres: str) -> None:
    path = tmp_path / "relay.toml"
    path.write_text(
        '[relay]\nname = "shop"\ninstance = "a"\n[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n'
        f'[resources.shop]\nurl = "{postgres}"\n'
        '[queues.credit]\nstore = "shop"\nsubscribers = { clerk = {} }\n'
        '[routes.main]\nfrom = ["orders"]\nto = { queue = "credit" }\n'
    )
    config = load(path)
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
