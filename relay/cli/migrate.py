"""``relay migrate CONFIG``: create the relay's topics and tables, or print what would be done."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relay.cli.report import ConfigArgument, JsonOption, print_json, print_line
from relay.config.loading import load
from relay.message.errors import ConfigError
from relay.setup.migrate import Migration, migrate, plan

app = typer.Typer(add_completion=False)


@app.command("migrate")
def migrate_command(
    config: ConfigArgument,
    *,
    print_only: Annotated[
        bool, typer.Option("--print", help="Print what would be done and do nothing.")
    ] = False,
    new_identity: Annotated[
        bool,
        typer.Option(
            "--new-identity", help="Give the databases new uuids: for a copy used beside its original."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Create the relay's topics and tables; doing it again changes nothing."""
    if print_only and new_identity:
        raise ConfigError("--print and --new-identity contradict each other: give one of them")
    loaded = load(Path(config))
    done = plan(loaded) if print_only else migrate(loaded, new_identity=new_identity)
    if as_json:
        print_json(done.document())
    else:
        _print(done, "would " if print_only else "")


def _print(migration: Migration, would: str) -> None:
    for topic in migration.create:
        shape = f"{topic.partitions} partitions, replication {topic.replication}"
        print_line(f"{would}create topic {topic.name} ({shape})")
        for name, value in topic.settings.items():
            print_line(f"    {name}={value}")
    for name, partitions in migration.grow.items():
        print_line(f"{would}grow topic {name} to {partitions} partitions")
    for name, settings in migration.alter.items():
        print_line(
            f"{would}alter topic {name}: " + ", ".join(f"{key}={value}" for key, value in settings.items())
        )
    for name, ddl in migration.tables.items():
        print_line(f"-- resource {name}")
        for statement in ddl:
            print_line(f"{statement.strip().rstrip(';')};")
    for name, ddl in migration.queues.items():
        print_line(f"-- queue {name}")
        for statement in ddl:
            print_line(f"{statement.strip().rstrip(';')};")
    for name, uuid in migration.queue_identities.items():
        print_line(f"queue {name} is {uuid}")
    for name, uuid in migration.identities.items():
        print_line(f"resource {name} is {uuid}")
    if not (migration.create or migration.grow or migration.alter):
        print_line("topics: nothing to do")
