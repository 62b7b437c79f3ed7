"""``relay run CONFIG``: one process per route and worker, until drained, idle or stopped for a person."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import structlog
import typer
from pydantic import ValidationError

from relay.cli.bounds import AT_WORK_S, seconds
from relay.cli.report import ConfigArgument
from relay.config.loading import load, text_of
from relay.config.model import RelayConfig, RelaySection
from relay.message.errors import ConfigError
from relay.run.handed import Handed
from relay.run.logging import setup
from relay.run.supervisor import Command, Supervisor
from relay.setup.required import require_at_start

WORKERS_MAX: Final = 64

app = typer.Typer(add_completion=False)


@app.command("run")
def run_command(
    config: ConfigArgument,
    *,
    workers: Annotated[int, typer.Option(min=1, max=WORKERS_MAX, help="Processes per route.")] = 1,
    route: Annotated[list[str] | None, typer.Option(help="Only this route; may be given again.")] = None,
    until_idle: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", parser=seconds(0.1, AT_WORK_S), help="End when nothing moved for so long and no lag is left."
        ),
    ] = None,
    instance: Annotated[
        str | None, typer.Option(metavar="NAME", help="Instead of the configuration's relay.instance.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON lines on standard error, as when it is no terminal.")
    ] = False,
) -> None:
    """Run the workers; a signal lets them finish what they have begun, a second one leaves at once.

    Exit codes: 0 done, 1 a route stopped or was given up, 2 the configuration is wrong, 130/143 left at once.
    """
    text = text_of(Path(config))
    loaded = load(Path(config), text)
    routes = chosen_routes(loaded, route or [])
    if instance is not None:
        _check_instance(loaded, instance)
    setup(as_json=True if as_json else None)
    for name in routes:
        found = loaded.routes[name]
        note = {"identity": found.identity_note} if found.identity_note else {}
        structlog.get_logger().info("route", route=name, guarantee=found.guarantee, workers=workers, **note)
    require_at_start(loaded, routes)
    handed = Handed(text)
    command = worker_command(Path(config), until_idle, instance, handed.words)
    raise typer.Exit(Supervisor(routes, workers, command, fds=[handed.fd]).run())


def chosen_routes(config: RelayConfig, wanted: Sequence[str]) -> list[str]:
    """Return the routes to run, each once; ConfigError names those there are."""
    if not config.routes:
        raise ConfigError(f"{config.path} has no route: add a section [routes.NAME] with from and to")
    for name in wanted:
        if name not in config.routes:
            raise ConfigError(f"--route {name}: there is no such route; there are: {', '.join(config.routes)}")
    return list(dict.fromkeys(wanted)) if wanted else list(config.routes)


def worker_command(
    path: Path, until_idle: float | None, instance: str | None, configuration: Sequence[str] = ()
) -> Command:
    """Return how a worker process is called (relay.run.process reads these words)."""
    rest = [*configuration]
    rest += [] if until_idle is None else ["--until-idle", f"{until_idle:g}"]
    rest += [] if instance is None else ["--instance", instance]

    def _command(route: str, number: int) -> list[str]:
        words = ["--route", route, "--worker", str(number), *rest]
        return [sys.executable, "-m", "relay.run.process", str(path), *words]

    return _command


def _check_instance(config: RelayConfig, instance: str) -> None:
    try:
        RelaySection(name=config.relay.name, instance=instance)
    except ValidationError as error:
        wrong = error.errors()[0]["ctx"]["error"]
        raise ConfigError(f"--instance {instance!r}: {wrong.problem}; {wrong.remedy}") from None
