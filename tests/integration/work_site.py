"""A queue on a real store, an application beside it, and real processes of handlers over them."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.queue.message import NewMessage
from relay.queue.port import QueueStore
from relay.queue.states import SubscriberState
from relay.queue.stores import open_store
from relay.setup.migrate import migrate
from relay.setup.queue_tables import create_queues
from tests.forked import Forked
from tests.routes import Worker, wait_for

APP = """
from relay import Unusable, subscriber

@subscriber("orders", resource="shop")
def book(message, db):
    db.execute("insert into effect (lane, number, attempt) values ({p}, {p}, {p})",
               (message.lane.decode(), int(message.value), message.taken.ticket.attempt))
"""


class Site:
    """One relay with a queue ``orders`` of one subscriber ``ledger``, in the handler's own database or in another."""

    def __init__(self, folder: Path, kafka: str, url: str, *, store: str = "shop", extra: str = "") -> None:
        self.folder = folder
        self.url = url
        self.is_sqlite = url.startswith("sqlite")
        self.path = folder / "relay.toml"
        self.name = f"w{uuid4().hex[:8]}"
        self.path.write_text(
            f"""
[relay]
name = "{self.name}"
instance = "test"
state = "{folder}/state"

[kafka]
"bootstrap.servers" = "{kafka}"

[resources.shop]
url = "{url}"

[queues.orders]
store = "{store}"
subscribers = {{ ledger = {{}} }}
order = "key"
lease = "60s"
retry_after = "100ms"
retry_max = "1s"
{extra}
"""
        )
        self.config: RelayConfig = load(self.path)
        migrate(self.config)
        create_queues(self.config)
        key = "integer primary key autoincrement" if self.is_sqlite else "bigserial primary key"
        columns = "lane text not null, number integer not null, attempt integer not null"
        self.run_sql(f"create table effect (id {key}, {columns})")
        self.processes: list[Worker] = []

    def app(self, text: str = APP) -> Path:
        path = self.folder / "app.py"
        path.write_text(text.replace("{p}", "?" if self.is_sqlite else "%s"))
        return path

    def store(self, queue: str = "orders") -> QueueStore:
        found = self.config.queues[queue]
        url = found.url({name: one.url.get_secret_value() for name, one in self.config.resources.items()})
        return open_store(found.settings(), url, state=self.config.relay.state)

    def put(self, numbers: Iterable[int], lanes: int = 7, queue: str = "orders") -> None:
        store = self.store(queue)
        batch = list(numbers)
        for start in range(0, len(batch), 1000):
            store.put(
                [
                    NewMessage("p", str(n), b"%d" % n, lane=b"%d" % (n % lanes))
                    for n in batch[start : start + 1000]
                ],
                1,
            )
        store.close()

    def work(
        self, app: Path, *words: str, env: dict[str, str] | None = None, queue: str = "orders"
    ) -> Worker:
        """Start one worker process without a supervisor; what it says goes to a file."""
        given = [str(self.path), str(app), "--queue", queue, *words]
        given += [] if "--subscriber" in words else ["--subscriber", "ledger"]
        self.said = self.folder / f"said-{len(self.processes)}"
        process = Forked("relay.work.process", given, {**os.environ, **(env or {})}, self.said)
        self.processes.append(process)
        return process

    def finish(
        self, app: Path, *words: str, env: dict[str, str] | None = None, deadline_s: float = 60.0
    ) -> int:
        """Run one worker process until idle and return its exit code."""
        process = self.work(app, "--until-idle", "0.5", *words, env=env)
        return process.wait(deadline_s)

    def supervised(self, app: Path, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "relay.cli.main", "work", str(app), "--config", str(self.path)]
        command += ["--queue", "orders", "--subscriber", "ledger", "--json", *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.processes.append(process)
        return process

    def said_by_all(self) -> bytes:
        """Return what processes without a supervisor have said."""
        return b"".join(path.read_bytes() for path in self.folder.glob("said-*"))

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait(30)

    def run_sql(self, text: str) -> list[tuple[Any, ...]]:
        if self.is_sqlite:
            with sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30) as file:
                return file.execute(text).fetchall()
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall() if cursor.description else []

    def effects(self) -> list[tuple[str, int]]:
        """Return (lane, number) in the order in which they were written: in one lane nobody writes beside another."""
        return [(row[0], row[1]) for row in self.run_sql("select lane, number from effect order by id")]

    def states(self, queue: str = "orders", subscriber: str = "ledger") -> dict[SubscriberState, int]:
        store = self.store(queue)
        counts = next(one.counts for one in store.counts()[1] if one.subscriber == subscriber)
        store.close()
        return {state: count for state, count in counts.items() if count}

    def wait_until_done(self, count: int, deadline_s: float = 60.0) -> None:
        wait_for(lambda: len(self.effects()) >= count, deadline_s, f"{count} effects")

    def check(self, numbers: Iterable[int]) -> None:
        """Hold the effects against what was put: each once, each lane in its order, all journalled."""
        wanted, found = sorted(numbers), self.effects()
        assert sorted(number for _, number in found) == wanted
        lanes: dict[str, list[int]] = defaultdict(list)
        for lane, number in found:
            lanes[lane].append(number)
        for lane, values in lanes.items():
            assert values == sorted(values), f"lane {lane} is out of order"
        assert self.states() == {SubscriberState.JOURNALLED: len(wanted)}


@contextmanager
def lent_site(folder: Path, kafka: str, admin: AdminClient, url: str, **given: str) -> Iterator[Site]:
    """Lend a site; its processes and its topics are gone afterwards."""
    site = Site(folder, kafka, url, **given)
    try:
        yield site
    finally:
        site.close()
        for deleted in admin.delete_topics(
            [site.config.control_topic, site.config.deadletter_topic]
        ).values():
            deleted.result(30)


@contextmanager
def site_on(
    medium: str, request: pytest.FixtureRequest, folder: Path, kafka: str, admin: AdminClient, **given: str
) -> Iterator[Site]:
    """Lend a site whose handlers write to a database of this kind."""
    url = f"sqlite:///{folder}/shop.db" if medium == "sqlite" else request.getfixturevalue("postgres")
    with lent_site(folder, kafka, admin, url, **given) as made:
        yield made


def report(process: subprocess.Popen[bytes], deadline_s: float = 60.0) -> dict[str, Any]:
    out, err = process.communicate(timeout=deadline_s)
    assert process.returncode == 0, err.decode()[-2000:]
    return dict(json.loads(out))
