"""``relay spark NAME [ARGS]``: run a Spark job of the project, or list the jobs there are."""

from __future__ import annotations

from typing import Annotated

import typer

from relay.cli.report import print_table
from relay.local import spark as local

app = typer.Typer(add_completion=False)


@app.command(
    "spark",
    # Everything after NAME is the job's own, --help included.
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    },
)
def spark_command(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The job; without it the jobs are listed.")] = None,
) -> None:
    """Run a Spark job; what follows NAME is the job's own (try: relay spark flights --help)."""
    if name is None:
        print_table(("job", "purpose"), local.purposes().items())
        return
    job = local.submission(name, context.args, lambda line: typer.echo(line, err=True))
    raise typer.Exit(local.run(job))
