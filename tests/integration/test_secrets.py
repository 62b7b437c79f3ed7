"""Canaries in the configuration, keys, headers and payloads: they reach the destination and nothing that speaks (I19)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from psycopg import sql
from typer.testing import CliRunner

from relay.cli.main import app
from relay.config.loading import load
from relay.control.status import document
from relay.queue.message import NewMessage
from relay.serve.metrics import metrics
from relay.serve.page import page
from relay.serve.watching import RelayEyes
from tests.integration.receiver import Asked, Receiver, Reply
from tests.integration.work_site import lent_site
from tests.routes import Route, ce, read_all

PASSWORD = "canary-password-5f1c"
KEY, HEADER, VALUE = b"canary-key-5f1c", b"canary-header-5f1c", b"canary-value-5f1c"
COMMANDS = (("check", "--connect"), ("status",), ("verify",), ("indoubt", "list"), ("migrate", "--print"))
BAD_VALUES = (
    b'{"n": -1, "name": "%s"}',  # breaks a constraint: the database quotes the row
    b'{"n": "%s"}',  # is no number: the database quotes the value
    b'{"n": 1, "name": "%s"',  # is no JSON: the parser may quote the text
    b'{"other": "%s"}',
)


@pytest.fixture
def secret_url(postgres: str) -> str:
    """The database under a role whose password is a canary."""
    role = f"canary_{abs(hash(postgres)) % 10**8}"
    with psycopg.connect(postgres, autocommit=True) as admin:
        name = sql.Identifier(role)
        admin.execute(sql.SQL("create role {} login superuser password {}").format(name, sql.Literal(PASSWORD)))
        admin.execute("create table ledger (id text primary key, n int not null check (n >= 0), name text)")
    head, _, rest = postgres.rpartition("@")
    return f"{head.partition('://')[0]}://{role}:{PASSWORD}@{rest}"


def test_no_canary_is_in_anything_that_is_said(
    tmp_path: Path, kafka: str, secret_url: str, make_topic: Callable[..., str]
) -> None:
    columns = '{ id = "ce:id", n = "json:/n", name = "json:/name" }'
    route = Route(tmp_path, kafka, make_topic(1), f'{{ table = "ledger", resource = "shop", columns = {columns} }}')
    route.path.write_text(route.path.read_text() + f'\n[resources.shop]\nurl = "{secret_url}"\n')
    route.migrate()
    producer = Producer({"bootstrap.servers": kafka})
    values = [b'{"n": 1, "name": "%s"}', *BAD_VALUES]
    for number, value in enumerate(values):
        headers = [*ce("/s", f"m-{number}"), ("x-private", HEADER)]
        producer.produce(route.log, key=KEY, value=value % VALUE, partition=0, headers=headers)
    assert producer.flush(20) == 0

    assert route.finish() == 0, route.said()

    said = [route.said()]
    for command in COMMANDS:
        for form in ((), ("--json",)):
            words = [*command, str(route.path)] if command[0] == "indoubt" else [command[0], str(route.path), *command[1:]]
            result = CliRunner().invoke(app, [*words, *form])
            said += [result.stdout, result.stderr, repr(result.exception or "")]
    with RelayEyes(load(route.path)) as eyes:
        sight = eyes.look()
    said += [page(route.name, sight, None, 0.0), repr(list(metrics(sight, version="1", age_s=0.0, ready=True)))]
    said.append(json.dumps(document(route.name, sight.at_ms, sight.routes, sight.notes)))
    with psycopg.connect(secret_url) as connection:
        assert connection.execute("select id, name from ledger").fetchall() == [("m-0", VALUE.decode())]
    assert len(read_all(kafka, f"{route.name}.deadletter", 1)) == len(BAD_VALUES)
    text = "\n".join(said)
    assert "dead" in text
    found = [canary for canary in (PASSWORD, KEY.decode(), HEADER.decode(), VALUE.decode()) if canary in text]
    assert found == [], "\n".join(line for line in text.splitlines() if any(canary in line for canary in found))


WEBHOOK = """
import logging

from relay.work.webhook import webhook

logging.basicConfig(level=logging.INFO)
send = webhook("orders", "{url}", headers=lambda _: {{"Authorization": "Bearer {secret}"}}, timeout_s=5)
"""


def test_no_canary_of_a_webhook_is_in_anything_that_is_said(tmp_path: Path, kafka: str, kafka_admin: AdminClient) -> None:
    canary = PASSWORD
    statuses = [422, 302, 500, 0, 200]

    def reply(asked: Asked) -> Reply:
        body = canary.encode()
        return Reply(statuses[int(asked.headers["ce-id"])], {"location": f"/{canary}", "set-cookie": f"a={canary}"}, body)

    with Receiver(reply) as receiver, lent_site(
        tmp_path, kafka, kafka_admin, f"sqlite:///{tmp_path}/shop.db", extra="tries = 2"
    ) as site:
        store = site.store()
        headers = (("x-private", HEADER), ("ce_relaypriority", HEADER))
        store.put([NewMessage("p", str(n), VALUE, KEY, headers) for n in range(len(statuses))], 1)
        store.close()
        url = receiver.url(f"/{canary}?token={canary}")

        assert site.finish(site.app(WEBHOOK.format(url=url, secret=canary)), "--concurrency", "4") == 0

        said = [site.said_by_all().decode()]
        for words in (["list", "--unusable"], ["show", "1"], ["show", "3"], ["show", "4"]):
            for form in ((), ("--json",)):
                result = CliRunner().invoke(app, ["message", words[0], str(site.path), "orders", *words[1:], *form])
                assert result.exit_code == 0, result.output
                said.append(result.output)
    assert {one.headers["authorization"] for one in receiver.asked} == {f"Bearer {canary}"}
    assert all(HEADER.decode() not in str(one.headers) for one in receiver.asked)
    text = "\n".join(said)
    for cause in ("422", "302", "500", "in doubt: "):
        assert cause in text
    found = [word for word in (canary, KEY.decode(), HEADER.decode(), VALUE.decode()) if word in text]
    assert found == [], "\n".join(line for line in text.splitlines() if any(word in line for word in found))
