"""``relay bench [NAME..]``: throughput as a ratio against the plain client, both measured in turns in the same run."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from relay.cli.bounds import named
from relay.cli.report import JsonOption, print_json, print_table
from relay.local.folders import empty_folder
from relay.local.services import LocalServices
from relay.message.errors import ConfigError
from relay.run.ending import ending_properly

app = typer.Typer(add_completion=False)

Row = dict[str, Any]
CAPTURE_SECONDS: Final = 30.0


def _topic(services: LocalServices, messages: int) -> Row:
    from relay.bench.topic import run  # noqa: PLC0415 - only what is asked for is loaded

    return run(services.kafka, messages)


def _latency(services: LocalServices, messages: int) -> Row:
    from relay.bench.latency import run  # noqa: PLC0415

    return run(services.kafka, messages)


def _table(services: LocalServices, messages: int) -> Row:
    from relay.bench.table import run  # noqa: PLC0415

    assert services.postgres is not None
    return run(services.kafka, services.postgres, messages)


def _capture(services: LocalServices, _messages: int) -> Row:
    from relay.bench.capture import run  # noqa: PLC0415

    assert services.postgres is not None
    return run(services.kafka, services.postgres, CAPTURE_SECONDS)


def _dedup_restore(services: LocalServices, messages: int) -> Row:
    from relay.bench.dedup_restore import run  # noqa: PLC0415

    return run(services.kafka, messages)


def _recovery(services: LocalServices, messages: int) -> Row:
    from relay.bench.recovery import run  # noqa: PLC0415

    return run(services.kafka, messages)


def _spark_datasource(services: LocalServices, rows: int) -> Row:
    from relay.bench.spark import datasource  # noqa: PLC0415

    return datasource(services.kafka, rows)


def _spark_batch(services: LocalServices, rows: int) -> Row:
    from relay.bench.spark import batch  # noqa: PLC0415

    return batch(services.kafka, rows)


def _handlers(_services: LocalServices, messages: int) -> Row:
    from relay.bench.handlers import run  # noqa: PLC0415

    return run(messages)


def _queue_sqlite(_services: LocalServices, messages: int) -> Row:
    from relay.bench.queue import run_sqlite  # noqa: PLC0415

    return run_sqlite(messages)


def _queue_postgres(services: LocalServices, messages: int) -> Row:
    from relay.bench.queue import run_postgresql  # noqa: PLC0415

    assert services.postgres is not None
    return run_postgresql(services.postgres, messages)


BENCHES: Final[dict[str, tuple[Callable[[LocalServices, int], Row], int]]] = {
    "topic": (_topic, 1_500_000),
    "latency": (_latency, 15_000),
    "table": (_table, 600_000),
    "capture": (_capture, 0),
    "dedup-restore": (_dedup_restore, 2_000_000),
    "recovery": (_recovery, 1_000_000),
    "queue-sqlite": (_queue_sqlite, 100_000),
    "queue-postgres": (_queue_postgres, 100_000),
    "handlers": (_handlers, 50_000),
    "spark-datasource": (_spark_datasource, 1_000_000),
    "spark-batch": (_spark_batch, 1_000_000),
}
"""Name -> (measure, messages by default): short runs flatter whoever starts faster."""
ON_POSTGRESQL: Final = frozenset({"table", "capture", "queue-postgres"})


@app.command("bench")
def bench_command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help=f"Any of: {', '.join(BENCHES)}. Default: all.")
    ] = None,
    *,
    messages: Annotated[
        int | None, typer.Option("--messages", min=10_000, max=100_000_000, help="Messages per run, instead of each one's default.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="PATH", parser=named, help="Use the services of `relay dev up --dir DIR` instead of fresh ones.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure; `ratio` is ours divided by the reference, measured in turns on this machine."""
    wanted = names or list(BENCHES)
    unknown = [name for name in wanted if name not in BENCHES]
    if unknown:
        raise ConfigError(f"{', '.join(unknown)}: there is no such measurement; choose from {', '.join(BENCHES)}")
    rows = []
    with _services(directory) as services, Console(stderr=True).status("measuring ...") as status:
        if services.postgres is None and (without := ON_POSTGRESQL.intersection(wanted)):
            raise ConfigError(
                f"{', '.join(sorted(without))}: --dir {directory} has no PostgreSQL; run `relay dev up --dir {shlex.quote(str(directory))}`"
            )
        for name in wanted:
            run, default = BENCHES[name]
            status.update(f"measuring {name} ...")
            rows.append(run(services, messages or default))
    if as_json:
        print_json(rows)
    else:
        columns = ("name", "value", "unit", "reference", "ratio")
        print_table(columns, [[row[column] for column in columns] for row in rows])


@contextmanager
def _services(directory: Path | None) -> Iterator[LocalServices]:
    if directory is not None:
        found = LocalServices.find(directory)
        if found is None:
            raise ConfigError(f"--dir {directory}: no services were started there; run `relay dev up --dir {shlex.quote(str(directory))}`")
        yield found
        return
    with ending_properly():
        made = empty_folder(None, "relay-bench-")
        try:
            with LocalServices.passing(made) as services:
                yield services
        finally:
            shutil.rmtree(made, ignore_errors=True)
