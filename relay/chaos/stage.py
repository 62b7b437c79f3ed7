"""The stage of the demonstration: brokers behind frame proxies, a database, and routes to a topic and to a table."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from relay.chaos.disks import Disks, mount
from relay.chaos.frame_proxy import FrameProxy
from relay.chaos.nemesis import SESSION_S
from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.kafka.topics import TopicPlan, Topics
from relay.local.jars import Tell
from relay.local.kafka import SMALL, KafkaCluster
from relay.local.ports import LOOPBACK, SERVERS, free_ports
from relay.local.postgres import PostgresServer
from relay.local.services import LocalServices
from relay.local.two_routes import two_routes
from relay.message.errors import CheckFailed, ConfigError
from relay.setup.migrate import migrate
from relay.world import clock

CAPTURED: Final = "captured"
PLAIN: Final = "plain"
SHOWN: Final = "shown"
RESOURCE: Final = "shop"
PARTITIONS: Final = 4
PORT_TRIES: Final = 50
NEWS_S: Final = 60.0
NEWS_PAUSE_S: Final = 0.5
DATABASE_DISK: Final = "postgres"
STATE_DISK: Final = "state"
SERVICE_BYTES: Final = 8 << 30
"""Room for a day; what is not used takes none of the machine's."""
STATE_BYTES: Final = 256 << 20

CONFIG: Final = f"""\
[relay]
name = "chaos"
instance = "chaos"
state = "state"

[kafka]
"bootstrap.servers" = "{{kafka}}"

[timing]
session_timeout = {SESSION_S}
idle_in_transaction = {SESSION_S}
statement_timeout = 5.0
socket_timeout = 5.0

"""
ROUTES: Final = two_routes(RESOURCE, (CAPTURED, PLAIN), SHOWN)

# Neither has a unique column on purpose: a second effect would stand there for everyone to see.
# The fate is checked at COMMIT, so that a capture fails after its messages are in the log.
TABLES: Final = (
    b"create table fate (name text primary key)",
    b"insert into fate values ('commit')",
    b"create table noted (source text not null, id text not null, fate text not null)",
    b"alter table noted add foreign key (fate) references fate deferrable initially deferred",
    b"create table ledger (source text not null, id text not null)",
)


@dataclass
class Stage:
    """Everything answers, and topics and tables exist. ``close`` stops it all."""

    directory: Path
    config: RelayConfig
    cluster: KafkaCluster
    postgres: PostgresServer
    proxies: list[FrameProxy]
    disks: Disks

    @property
    def url(self) -> str:
        """The database, password included."""
        return self.config.resources[RESOURCE].url.get_secret_value()

    def log(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.directory / f"{name}.log"

    def close(self) -> None:
        """Stop services and proxies; the data stays. A paused broker must be told to go on before."""
        shut(self.directory, self.proxies, self.disks)


def build(directory: Path, brokers: int, tell: Tell) -> Stage:
    """Start the services in an empty directory and create what is needed there."""
    listen, advertise = consecutive_ports(2, brokers)
    disks = mount(directory, _places(directory, brokers))
    proxies: list[FrameProxy] = []
    try:
        proxies += (FrameProxy(f"{LOOPBACK}:{listen + n}", advertise + n) for n in range(brokers))
        tell(disks.told)
        services = LocalServices.up(
            directory, listen, f"{LOOPBACK}:{advertise}", brokers, settings=SMALL, tell=tell
        )
        assert services.postgres is not None, "asked for"
        cluster = KafkaCluster.find(directory / "kafka", SMALL)
        assert cluster is not None, "just started"
        secret = directory / "postgres.url"
        secret.touch(mode=0o600)
        secret.write_text(services.postgres)
        path = directory / "relay.toml"
        path.write_text(CONFIG.format(kafka=",".join(proxy.address for proxy in proxies)) + ROUTES)
        config = load(path)
        with Topics(config.kafka, config.timing) as topics:
            topics.create([_topic(name, brokers) for name in (CAPTURED, PLAIN, SHOWN)])
        _migrate(config)
        with psycopg.connect(services.postgres, autocommit=True) as connection:
            for statement in TABLES:
                connection.execute(statement)
    except BaseException:
        shut(directory, proxies, disks)
        raise
    return Stage(directory, config, cluster, PostgresServer(directory / "postgres"), proxies, disks)


def _migrate(config: RelayConfig) -> None:
    limit = clock.monotonic() + NEWS_S
    while True:
        try:
            migrate(config)
        except ConfigError:
            # Retry: the broker that is asked here may not have heard yet of a topic that another one has just created.
            if clock.monotonic() > limit:
                raise
            clock.sleep(NEWS_PAUSE_S)
        else:
            return


def broker_disk(node_id: int) -> str:
    """Return the name of a broker's disk."""
    return f"broker-{node_id}"


def _places(directory: Path, brokers: int) -> dict[str, tuple[Path, int]]:
    """Return where each disk belongs, and its size: data only, so that logs can always be written."""
    places = {broker_disk(n): (directory / "kafka" / str(n) / "data", SERVICE_BYTES) for n in range(1, brokers + 1)}
    places[DATABASE_DISK] = (directory / "postgres" / "data", SERVICE_BYTES)
    places[STATE_DISK] = (directory / "state", STATE_BYTES)
    return places


def shut(directory: Path, proxies: list[FrameProxy], disks: Disks) -> None:
    """Stop what runs in a directory; what one of them raises, or a second Ctrl-C, keeps none of the others."""
    with contextlib.ExitStack() as stack:
        stack.callback(disks.close)
        for proxy in proxies:
            stack.callback(proxy.close)
            stack.callback(proxy.failures.clear)  # the result tells of them; here they would hide why everything ends
        services = LocalServices.find(directory)
        if services is not None:
            services.down()


def consecutive_ports(runs: int, length: int) -> list[int]:
    """Return the first port of each of so many runs of free neighbouring ports, no two of which overlap."""
    found: list[int] = []
    for start in free_ports(PORT_TRIES):
        wanted = range(start, start + length)
        apart = all(abs(start - other) >= length for other in found)
        if apart and wanted[-1] in SERVERS and _are_free(wanted):
            found.append(start)
        if len(found) == runs:
            return found
    raise CheckFailed(f"no {runs} runs of {length} free neighbouring ports were found; try again")


def _are_free(ports: range) -> bool:
    with contextlib.ExitStack() as stack:
        try:
            for port in ports:
                listener = stack.enter_context(socket.socket())
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((LOOPBACK, port))
        except OSError:
            return False  # Retry with others: taken by somebody.
    return True


def _topic(name: str, brokers: int) -> TopicPlan:
    replicas = min(3, brokers)
    return TopicPlan(name, PARTITIONS, replicas, {"min.insync.replicas": str(max(1, replicas - 1))})
