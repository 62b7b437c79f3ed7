"""The document's example, [28]: point of sale to customer database to credit approval, over two queues on two media.

Sales are captured with their database transaction, relayed into a queue in PostgreSQL, enriched by one handler, passed on to
a queue in SQLite, decided by another. One process of each handler is killed on the way; then everything is counted.
"""

from __future__ import annotations

import signal
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import psycopg

from relay.capture.capture import Capture
from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.demo.course import STALL_S
from relay.demo.part import Part
from relay.demo.show import Show
from relay.kafka.topics import TopicPlan, Topics
from relay.local.kafka import BRIEF
from relay.local.services import LocalServices
from relay.message.errors import CheckFailed
from relay.queue.port import QueueStore
from relay.queue.states import PublisherState
from relay.run.following import follow
from relay.run.queues import open_queue
from relay.setup.migrate import migrate
from relay.world import clock

CUSTOMERS: Final = 40
PARTITIONS: Final = 4
GRACE_S: Final = 40.0
APP: Final = "relay.demo.credit_app"
HANDLERS: Final = {"customer": "sales", "approval": "credit"}
"""Subscribers with their queues."""
CONFIG: Final = """\
[relay]
name = "credit"
instance = "demo"
state = "state"

[kafka]
"bootstrap.servers" = "{kafka}"

[resources.shop]
url = "${{file:postgres.url}}"

[routes.to-sales]
from = ["sales"]
order = "key"
to = {{ queue = "sales" }}

[queues.sales]
store = "shop"
subscribers = {{ customer = {{}} }}
order = "key"

[queues.credit]
store = "sqlite:///credit.db"
subscribers = {{ approval = {{}} }}
order = "key"
"""
# No unique column on purpose: a second decision would stand there for everyone to see.
TABLES: Final = (
    "create table customer (id integer primary key, credit integer not null, bank text not null)",
    "create table sale (id integer primary key, customer integer not null, total integer not null)",
    "create table decision (seen bigserial, sale integer not null, customer integer not null, approved boolean not null)",
    "insert into customer select n, 500 + n * 50, 'bank ' || n % 3 from generate_series(0, {last}) n",
)


@dataclass
class Counted:
    """What was found at the end, in messages; the names are those of every report."""

    captured: int
    delivered: int
    lost: int
    duplicates: int
    reordered: int
    phantoms: int
    aborted: int
    in_doubt: int
    dead_letters: int
    kills: int
    approved: int
    seconds: float
    complaints: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether each sale was decided exactly once and in its customer's order."""
        return not (self.lost or self.duplicates or self.reordered or self.phantoms or self.in_doubt or self.complaints)

    def document(self) -> dict[str, Any]:
        """Return it for machines."""
        return {"ok": self.ok, **asdict(self)}


def run(place: Path, sales: int, seed: int, show: Show) -> Counted:
    """Run the example in an empty directory. Raises RelayError with a sentence for people."""
    show.say("starting Kafka and PostgreSQL")
    config = _build(place, show)
    crew = Crew(place, config, show)
    began = clock.monotonic()
    try:
        crew.start()
        show.say(f"the point of sale makes {sales:,} sales, one in twenty rolled back")
        aborted = _sell(config, sales, Random(seed))  # noqa: S311 - a repeatable demonstration
        crew.see_through(sales - aborted)
    finally:
        crew.end()
    return _reckon(config, aborted, crew.kills, clock.monotonic() - began)


def _build(place: Path, show: Show) -> RelayConfig:
    services = LocalServices.up(place, settings=BRIEF, tell=show.say)
    assert services.postgres is not None, "asked for"
    secret = place / "postgres.url"
    secret.touch(mode=0o600)
    secret.write_text(services.postgres)
    (place / "relay.toml").write_text(CONFIG.format(kafka=services.kafka))
    config = load(place / "relay.toml")
    with Topics(config.kafka, config.timing) as topics:
        topics.create([TopicPlan("sales", PARTITIONS, 1)])
    migrate(config)
    with psycopg.connect(services.postgres, autocommit=True) as database:
        for statement in TABLES:
            database.execute(statement.format(last=CUSTOMERS - 1).encode())
    return config


def _sell(config: RelayConfig, sales: int, chance: Random) -> int:
    """Make the sales, each captured with its row; return how many were rolled back."""
    aborted = 0
    with Capture.open(config.path, resource="shop", source="/point-of-sale") as capture:
        for number in range(sales):
            buyer, total = chance.randrange(CUSTOMERS), chance.randrange(10, 3000)
            try:
                with capture.transaction() as tx:
                    tx.execute("insert into sale (id, customer, total) values (%s, %s, %s)", (number, buyer, total))
                    tx.publish(
                        "sales", {"id": number, "customer": buyer, "total": total}, key=str(buyer), type="sale.made"
                    )
                    if number % 20 == 7:
                        raise _CardRefused
            except _CardRefused:
                aborted += 1
    return aborted


class _CardRefused(Exception):
    pass


class Crew:
    """The relay's worker and a process for each handler; each handler's is killed once and started again."""

    def __init__(self, place: Path, config: RelayConfig, show: Show) -> None:
        self.kills = 0
        self._place = place
        self._config = config
        self._show = show
        self._parts: dict[str, Part] = {}
        self._to_kill = {"customer": 0.2, "approval": 0.5}

    def start(self) -> None:
        """Start everything."""
        path = str(self._config.path)
        self._start("relay", ["relay.cli.main", "run", path, "--workers", "1", "--json"])
        for name in HANDLERS:
            self._start_handler(name)

    def see_through(self, wanted: int) -> None:
        """Wait for all decisions, killing on the way; raises CheckFailed if nothing moves."""
        moved, before = clock.monotonic(), -1
        with psycopg.connect(self._url, autocommit=True) as database:
            while (count := _count(database)) < wanted or self._to_kill:
                self._tend()
                for name, share in list(self._to_kill.items()):
                    if count >= share * wanted:
                        self._kill(name)
                        del self._to_kill[name]
                if count != before:
                    moved, before = clock.monotonic(), count
                    self._show.bar("sales decided", count, wanted)
                if clock.monotonic() - moved > STALL_S:
                    raise CheckFailed(
                        f"Nothing moved for {STALL_S:.0f} s: {count} of {wanted} sales are decided. If this machine is only slow, or "
                        "short of memory, it manages fewer: relay demo credit --sales 100"
                    )
                clock.sleep(0.05)

    def end(self) -> None:
        """Drain and end every part."""
        for part in self._parts.values():
            part.end(GRACE_S)

    @property
    def _url(self) -> str:
        return self._config.resources["shop"].url.get_secret_value()

    def _tend(self) -> None:
        for name, part in self._parts.items():
            code = part.ended()
            if code is not None:
                raise part.complaint(f"{name} ended by itself with exit code {code}.")

    def _kill(self, name: str) -> None:
        part = self._parts[name]
        part.send(signal.SIGKILL)
        while part.ended() is None:
            clock.sleep(0.01)
        self.kills += 1
        self._show.say(f"killed the {name}'s process (pid {part.pid}) and started it again")
        self._start_handler(name)

    def _start_handler(self, name: str) -> None:
        words = ["relay.work.process", str(self._config.path), APP, "--queue", HANDLERS[name], "--subscriber", name]
        self._start(name, [*words, "--concurrency", "4"])

    def _start(self, name: str, words: list[str]) -> None:
        self._parts[name] = Part(name, [sys.executable, "-m", *words], self._place / f"{name}.log", {})


def _count(database: psycopg.Connection[Any]) -> int:
    row = database.execute("select count(*) from decision").fetchone()
    assert row is not None, "a count is one row"
    return int(row[0])


def _reckon(config: RelayConfig, aborted: int, kills: int, seconds: float) -> Counted:
    with psycopg.connect(config.resources["shop"].url.get_secret_value(), autocommit=True) as database:
        sales: dict[int, int] = dict(database.execute("select id, customer from sale").fetchall())
        decisions = database.execute("select sale, customer, approved from decision order by seen").fetchall()
    decided = [sale for sale, _, _ in decisions]
    last: dict[int, int] = {}
    reordered = 0
    for sale, buyer, _ in decisions:
        reordered += sale < last.get(buyer, -1)
        last[buyer] = max(sale, last.get(buyer, -1))
    waiting = {name: _waiting(config, name) for name in config.queues}
    return Counted(
        captured=len(sales),
        delivered=len(decided),
        lost=len(sales.keys() - set(decided)),
        duplicates=len(decided) - len(set(decided)),
        reordered=reordered,
        phantoms=len(set(decided) - sales.keys()),
        aborted=aborted,
        in_doubt=sum(waiting.values()),
        dead_letters=0,
        kills=kills,
        approved=sum(approved for _, _, approved in decisions),
        seconds=round(seconds, 1),
        complaints=[f"queue {name} still has {count} messages that are not journalled" for name, count in waiting.items() if count],
    )


def _waiting(config: RelayConfig, name: str) -> int:
    follower = follow(config)
    try:
        store: QueueStore = open_queue(config, name, follower.now())
        try:
            states, _ = store.counts()
        finally:
            store.close()
    finally:
        follower.close()
    return states.get(PublisherState.PUT, 0) + states.get(PublisherState.REVEALED, 0)
