"""README.md's examples as printed, from the capture to the handler: only the names of what others share are changed."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from tests.conftest import MakeTopic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list[str]:
    return [text for found, text in BLOCKS if found == kind]


def test_an_order_reaches_ledger_topic_table_and_handler_once(
    kafka: str, kafka_admin: AdminClient, make_topic: MakeTopic, postgres: str, tmp_path: Path
) -> None:
    suffix = secrets.token_hex(4)
    own = {"orders": make_topic(name="orders"), "ledger": make_topic(name="ledger")}
    config = "\n".join(blocks("toml")).replace("127.0.0.1:9092", kafka).replace('name = "shop"', f'name = "shop-{suffix}"')
    config = config.replace('["orders"]', f'["{own["orders"]}"]').replace('topic = "ledger"', f'topic = "{own["ledger"]}"')
    (tmp_path / "relay.toml").write_text(config)
    capture, handler = blocks("python")[:2]
    (tmp_path / "publish.py").write_text(capture.replace('publish("orders"', f'publish("{own["orders"]}"'))
    (tmp_path / "app.py").write_text(handler)
    with psycopg.connect(postgres, autocommit=True) as database:
        database.execute(blocks("sql")[0].encode())

    def run(*words: str) -> None:
        env = {**os.environ, "SHOP_URL": postgres, "HOSTNAME": "here"}
        ended = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False
        )
        assert ended.returncode == 0, f"{words}: {ended.stdout}{ended.stderr}"

    relay = ("-m", "relay.cli.main")
    try:
        run(*relay, "migrate", "relay.toml")
        run(*relay, "check", "relay.toml", "--connect")
        run("publish.py")
        run(*relay, "run", "relay.toml", "--until-idle", "3")
        run(*relay, "work", "app.py", "--config", "relay.toml", "--queue", "credit", "--subscriber", "approval", "--until-idle", "3")
        run(*relay, "verify", "relay.toml")
        run(*relay, "indoubt", "list", "relay.toml")

        with psycopg.connect(postgres) as database:
            assert database.execute("select id, total from orders").fetchall() == [(42, 1999)]
            assert database.execute("select total from ledger").fetchall() == [(1999,)]
            assert database.execute("select id from approval").fetchall() == [(42,)]
    finally:
        mine = [name for name in kafka_admin.list_topics(timeout=10).topics if name.startswith(f"shop-{suffix}.")]
        for gone in kafka_admin.delete_topics(mine).values() if mine else ():
            gone.result(30)
