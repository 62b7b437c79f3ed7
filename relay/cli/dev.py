"""``relay dev``: start and stop the local services of a directory, create topics, and see whether they answer."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
from rich.console import Console

from relay.cli.bounds import named
from relay.cli.report import JsonOption, print_json, print_line, print_table
from relay.config.timing import Timing
from relay.kafka.topics import TopicPlan, Topics
from relay.local.jars import KAFKA_VERSION
from relay.local.postgres import without_password
from relay.local.services import LocalServices
from relay.message.errors import ConfigError, RelayError, Unreachable
from relay.message.limits import limit_met

app = typer.Typer(name="dev", help="Kafka and PostgreSQL on this machine.", add_completion=False, no_args_is_help=True)

_BROKERS_DEFAULT: Final = -1
"""Replicas as the brokers were set up: three where there are as many."""

Directory = Annotated[Path, typer.Option("--dir", metavar="PATH", parser=named, help="Where data, logs and the record of processes live.")]


@app.command()
def up(
    directory: Directory,
    *,
    kafka_port: Annotated[
        int | None, typer.Option(min=1024, max=65535, help="Port of the first broker; chosen when not given.")
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address told to clients: a proxy before the broker."),
    ] = None,
    brokers: Annotated[int, typer.Option(min=1, max=9, help="How many brokers.")] = 1,
    kafka_version: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help=f"Which Kafka; else that of RELAY_KAFKA_VERSION, else {KAFKA_VERSION}."
        ),
    ] = None,
    no_postgres: Annotated[bool, typer.Option("--no-postgres", help="Start Kafka only.")] = False,
    postgres: Annotated[
        str | None, typer.Option(metavar="URL", help="Use this PostgreSQL instead of starting one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start the services, wait until they answer, and leave them running. Doing so twice changes nothing."""
    with _reported():
        if no_postgres and postgres is not None:
            raise ConfigError("--no-postgres and --postgres contradict each other: give one of them.")
        wanted: bool | str = postgres if postgres is not None else not no_postgres
        console = Console(stderr=True, emoji=False)
        with console.status("starting, until they answer ..."):
            services = LocalServices.up(
                directory,
                kafka_port,
                advertise,
                brokers,
                wanted,
                kafka_version=kafka_version,
                tell=lambda line: console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True),
            )
    if as_json:
        print_json({"kafka": services.kafka, "postgres": services.postgres})
        return
    # A server of ours is useless without the password made for it; who gave a URL knows its password.
    address = services.postgres or "not asked for"
    print_line(f"kafka     {services.kafka}")
    print_line(f"postgres  {address if postgres is None else without_password(address)}")
    print_line(f"Stop them with: relay dev down --dir {shlex.quote(str(directory))}")


@app.command()
def down(directory: Directory, *, as_json: JsonOption = False) -> None:
    """Stop what runs in the directory; its data stays, and so does an existing PostgreSQL given by URL."""
    with _reported():
        stopped = _found(directory).down()
    if as_json:
        print_json({"stopped": stopped})
        return
    said = " and ".join(name for name, count in stopped.items() if count)
    print_line(f"Stopped {said}; the data stays in {directory}" if said else f"Nothing ran in {directory}")


@app.command()
def status(directory: Directory, *, as_json: JsonOption = False) -> None:
    """Tell which services of the directory answer; exit code 3 when one of them does not."""
    with _reported():
        report = _found(directory).status()
    if as_json:
        print_json(report)
    else:
        kafka, postgres = report["kafka"], report["postgres"]
        rows = [("kafka", f"127.0.0.1:{one['port']}", _yes(kafka["answers"]), one["pid"]) for one in kafka["brokers"]]
        if postgres is not None:
            rows.append(("postgres", postgres["address"], _yes(postgres["answers"]), postgres["pid"]))
        print_table(("service", "address", "answers", "process"), rows)
    if not all(entry["answers"] for entry in report.values() if entry is not None):
        raise typer.Exit(3)


@app.command()
def topic(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Topics of a log, or outputs.")],
    directory: Directory,
    *,
    partitions: Annotated[int, typer.Option(min=1, max=1000, help="Partitions of each.")] = 4,
    as_json: JsonOption = False,
) -> None:
    """Create topics to publish to and to relay into; those that are there stay as they are."""
    with _reported():
        kafka = {"bootstrap.servers": _found(directory).kafka}
        with Topics(kafka, Timing()) as topics:
            known = topics.describe(names, settings=False)
            new = [name for name in dict.fromkeys(names) if name not in known]
            created = topics.create([TopicPlan(name, partitions, _BROKERS_DEFAULT) for name in new])
            there = topics.describe(names, settings=False)
    if as_json:
        print_json({"created": sorted(created), "partitions": {name: facts.partitions for name, facts in there.items()}})
        return
    rows = [(name, facts.partitions, "created" if name in created else "there already") for name, facts in there.items()]
    print_table(("topic", "partitions", "now"), rows)


def _found(directory: Path) -> LocalServices:
    services = LocalServices.find(directory)
    if services is None:
        raise ConfigError(f"{directory} holds no services: name the directory given to `relay dev up`.")
    return services


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"


@contextmanager
def _reported() -> Iterator[None]:
    """Print an expected failure as its sentence on standard error and end with its exit code."""
    try:
        yield
    except RelayError as error:
        _fail(error)
    except OSError as error:
        if (limit := limit_met(error)) is not None:
            _fail(Unreachable(limit))
        _fail(ConfigError(f"--dir cannot be used ({error.strerror}); name a directory that you may write, or a new one"))


def _fail(error: RelayError) -> NoReturn:
    typer.echo(f"relay dev: {error}", err=True)
    raise typer.Exit(error.exit_code) from error
