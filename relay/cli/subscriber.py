"""``relay subscriber``: who subscribes to which queue, what each has before it, and who is to wait."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relay.cli.choosing import QueueOption, ReasonOption, WhoOption, me
from relay.cli.every_queue import ask_every
from relay.cli.report import ConfigArgument, JsonOption, print_json, print_table, purpose
from relay.cli.wishing import record
from relay.config.loading import load
from relay.control.queue_desk import QueueDesk
from relay.control.queue_views import unusable
from relay.queue.desired import Kind, Wanted

app = typer.Typer(add_completion=False, no_args_is_help=True, help=purpose(__doc__))
NameArgument = Annotated[str, typer.Argument(metavar="SUBSCRIBER", help="A subscriber, also one of a pool.")]


@app.command("list")
def list_command(config: ConfigArgument, *, queue: QueueOption = None, as_json: JsonOption = False) -> None:
    """List subscribers with how many messages are in which state for them; exit 3 if a store does not answer."""
    with QueueDesk(load(Path(config)), me()) as desk:
        told = ask_every(desk, desk.names(queue), desk.row)
    rows = [{"queue": found["queue"], **one} for found in told.answers for one in found["subscribers"]]
    if as_json:
        print_json({"subscribers": rows, "notes": told.notes})
        raise typer.Exit(told.code)
    print_table(
        ("queue", "subscriber", "wanted", "workers", "unusable", "states"),
        [
            (
                row["queue"],
                row["subscriber"],
                row["wanted"].lower(),
                row["workers"],
                unusable(row),
                ", ".join(f"{count} {state}" for state, count in row["states"].items() if count),
            )
            for row in rows
        ],
    )
    told.print_notes()
    raise typer.Exit(told.code)


@app.command("pause")
def pause_command(
    config: ConfigArgument,
    subscriber: NameArgument,
    *,
    queue: QueueOption = None,
    reason: ReasonOption = "",
    who: WhoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the subscriber take nothing more; what its workers have taken they finish."""
    _record(config, subscriber, queue, Wanted.PAUSE, reason, who, as_json=as_json)


@app.command("resume")
def resume_command(
    config: ConfigArgument,
    subscriber: NameArgument,
    *,
    queue: QueueOption = None,
    reason: ReasonOption = "",
    who: WhoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the subscriber take messages again."""
    _record(config, subscriber, queue, Wanted.RUN, reason, who, as_json=as_json)


def _record(config: str, name: str, queue: str | None, wanted: Wanted, reason: str, who: str | None, *, as_json: bool) -> None:
    record(
        config, Kind.SUBSCRIBER, name, wanted, lambda desk: desk.queue_of_subscriber(name, queue),
        reason=reason, who=who, as_json=as_json,
    )  # fmt: skip
