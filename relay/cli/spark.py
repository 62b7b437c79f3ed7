"""``relay spark NAME [ARGS]``: run a Spark job of the project, or list the jobs there are."""

from __future__ import annotations

from typing import Annotated

import typer

from relay.local import spark as local
from relay.message.errors import RelayError


def spark(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="The job; without it the jobs are listed.")] = None,
) -> None:
    """Run a Spark job; everything after NAME is the job's own (try: relay spark flights --help)."""
    if name is None:
        typer.echo("\n".join(local.jobs()))
        return
    try:
        job = local.submission(name, context.args, lambda line: typer.echo(line, err=True))
        code = local.run(job)
    except RelayError as error:
        typer.echo(f"relay spark: {error}", err=True)
        raise typer.Exit(error.exit_code) from error
    raise typer.Exit(code)


def register(app: typer.Typer) -> None:
    """Add the command; the job's options pass through untouched."""
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
    app.command(context_settings=settings)(spark)
