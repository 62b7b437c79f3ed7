"""``relay dev``: the local services of a directory, started, asked after and stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from relay.local.services import LocalServices
from relay.message.errors import CheckFailed, ConfigError, RelayError

app = typer.Typer(name="dev", help="Kafka and PostgreSQL on this machine.", no_args_is_help=True)

Directory = Annotated[Path, typer.Option("--dir", help="Where data, logs and the record of processes live.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for programs.")]


@app.command()
def up(
    directory: Directory,
    *,
    kafka_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the first broker; chosen when not given.")
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address told to clients: a proxy before the broker."),
    ] = None,
    brokers: Annotated[int, typer.Option(min=1, max=9, help="How many brokers.")] = 1,
    no_postgres: Annotated[bool, typer.Option("--no-postgres", help="Kafka only.")] = False,
    postgres: Annotated[
        str | None, typer.Option(metavar="URL", help="Use this PostgreSQL instead of starting one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Start the services, wait until they answer, and leave them running. Doing so twice changes nothing."""
    with _reported():
        if no_postgres and postgres is not None:
            raise ConfigError("--no-postgres and --postgres contradict each other: give one of them.")
        wanted: bool | str = postgres if postgres is not None else not no_postgres
        console = Console(stderr=True)
        services = LocalServices.up(
            directory,
            kafka_port,
            advertise,
            brokers,
            wanted,
            tell=lambda line: console.print(line, style="dim"),
        )
    if as_json:
        typer.echo(json.dumps({"kafka": services.kafka, "postgres": services.postgres}))
        return
    table = Table("service")
    table.add_column("address", overflow="fold")
    table.add_row("kafka", services.kafka)
    table.add_row("postgres", services.postgres or "not asked for")
    Console().print(table)
    typer.echo(f"Stop them with: relay dev down --dir {directory}")


@app.command()
def down(directory: Directory) -> None:
    """Stop what runs in the directory; its data stays, and so does an existing PostgreSQL given by URL."""
    with _reported():
        services = LocalServices.find(directory)
        if services is None:
            raise ConfigError(f"{directory} holds no services: name the directory given to `relay dev up`.")
        services.down()


@app.command()
def status(directory: Directory, *, as_json: Json = False) -> None:
    """Tell which services of the directory answer; exit code 3 when one of them does not."""
    with _reported():
        services = LocalServices.find(directory)
        if services is None:
            raise ConfigError(f"{directory} holds no services: name the directory given to `relay dev up`.")
        report = services.status()
    if as_json:
        typer.echo(json.dumps(report))
    else:
        table = Table("service", "address", "answers", "process")
        for broker in report["kafka"]["brokers"]:
            address = f"127.0.0.1:{broker['port']}"
            table.add_row("kafka", address, _yes(report["kafka"]["answers"]), str(broker["pid"] or "-"))
        if report["postgres"] is not None:
            entry = report["postgres"]
            table.add_row("postgres", entry["address"], _yes(entry["answers"]), str(entry["pid"] or "-"))
        Console().print(table)
    if not all(entry["answers"] for entry in report.values() if entry is not None):
        raise typer.Exit(3)


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
        _fail(CheckFailed(f"The directory cannot be used: {error}."))


def _fail(error: RelayError) -> NoReturn:
    typer.echo(f"relay dev: {error}", err=True)
    raise typer.Exit(error.exit_code) from error
