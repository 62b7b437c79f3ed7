"""``relay subscriber``: who subscribes to which queue, what each has before it, and who is to wait."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relay.cli.choosing import QueueOption, ReasonOption, WhoOption, me
from relay.cli.report import ConfigArgument, JsonOption, print_json, print_line, print_table
from relay.queue.desired import Kind, Wanted
from relay.run.config import load
from relay.run.queue_desk import QueueDesk
from relay.run.queue_views import queue_row, wish_row

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
NameArgument = Annotated[str, typer.Argument(metavar="SUBSCRIBER", help="A subscriber, also one of a pool.")]


@app.command("list")
def list_command(config: ConfigArgument, *, queue: QueueOption = None, as_json: JsonOption = False) -> None:
    """List subscribers with how many messages are in which state for them."""
    rows = []
    with QueueDesk(load(Path(config)), me()) as desk:
        for name in desk.names(queue):
            found = queue_row(desk.store(name), desk.config.queues[name].store, desk.desired)
            rows += [{"queue": name, **one} for one in found["subscribers"]]
    if as_json:
        print_json({"subscribers": rows})
        return
    print_table(
        ("queue", "subscriber", "wanted", "workers", "states"),
        [
            (
                row["queue"],
                row["subscriber"],
                row["wanted"].lower(),
                row["workers"],
                ", ".join(f"{count} {state}" for state, count in row["states"].items() if count),
            )
            for row in rows
        ],
    )


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
    """Let the subscriber take nothing; what its workers have ends."""
    _wish(config, subscriber, queue, Wanted.PAUSE, reason, who, as_json=as_json)


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
    _wish(config, subscriber, queue, Wanted.RUN, reason, who, as_json=as_json)


def _wish(
    config: str, subscriber: str, queue: str | None, wanted: Wanted, reason: str, who: str | None, *, as_json: bool
) -> None:
    with QueueDesk(load(Path(config)), who or me()) as desk:
        queues = desk.queue_of_subscriber(subscriber, queue)
        wishes = [desk.wish(Kind.SUBSCRIBER, name, subscriber, wanted, reason) for name in queues]
    if as_json:
        print_json({"wishes": [wish_row(wish) for wish in wishes]})
    else:
        for wish in wishes:
            print_line(f"subscriber {subscriber} of queue {wish.subject.queue}: {wanted.value.lower()}")
