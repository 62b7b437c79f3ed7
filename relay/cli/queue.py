"""``relay queue``: see every queue, stop and start it, empty it, move it; from any machine that reaches brokers and stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from relay.cli.bounds import DAY_S, seconds
from relay.cli.choosing import (
    PublisherOption,
    QueueArgument,
    ReasonOption,
    SinceOption,
    UntilOption,
    WhoOption,
    described,
    filter_of,
    me,
    retained,
)
from relay.cli.every_queue import ask_every
from relay.cli.report import ConfigArgument, JsonOption, print_json, print_line, print_table, purpose
from relay.config.loading import load
from relay.config.quantities import spoken
from relay.control.queue_desk import QueueDesk
from relay.control.queue_moving import move_queue
from relay.control.queue_purging import purge
from relay.control.queue_views import settings_row, unusable, wish_row, with_workers
from relay.message.errors import ConfigError
from relay.queue.desired import Kind, Subject, Wanted
from relay.queue.settings import QueueSettings
from relay.queue.states import PublisherState
from relay.world import clock

app = typer.Typer(add_completion=False, no_args_is_help=True, help=purpose(__doc__))
_COLUMNS: Final = ("queue", "store", "wanted", "waiting", "subscriber", "available", "with workers", "unusable", "workers")
_LIFTED: Final = {
    (Wanted.DRAIN, Wanted.PAUSE): "the queue was drained until now, and routes put into it again: a queue is drained or paused, not both",
    (Wanted.PAUSE, Wanted.DRAIN): "the queue was paused until now, and subscribers take from it again: a queue is drained or paused, not both",
}
"""What the last word lifts, which who says it may not have in mind."""


@app.command("list")
def list_command(config: ConfigArgument, *, as_json: JsonOption = False) -> None:
    """List the queues and what waits for whom; exit 3 if a store does not answer, 1 or 2 if a queue cannot be shown otherwise."""
    loaded = load(Path(config))
    with QueueDesk(loaded, me()) as desk:
        told = ask_every(desk, desk.names(), desk.row)
    if as_json:
        print_json(
            {"relay": loaded.relay.name, "at": clock.wall_ms(), "ok": not told.notes, "queues": told.answers, "notes": told.notes}
        )
    else:
        print_table(_COLUMNS, [line for row in told.answers for line in _lines(row)])
        told.print_notes()
    raise typer.Exit(told.code)


@app.command("show")
def show_command(config: ConfigArgument, queue: QueueArgument, *, as_json: JsonOption = False) -> None:
    """Show one queue: its settings, its counts, its workers, and what was wanted of it by whom."""
    with QueueDesk(load(Path(config)), me()) as desk:
        row = desk.row(queue)
        row["settings"] = settings_row(desk.config.queues[queue].settings())
        row["workers"] = [
            {"subscriber": one.subscriber, "id": one.id.hex(), "beats": one.beats, "decides": one.deciding}
            for one in desk.store(queue).holders()
        ]
        row["wishes"] = [wish_row(wish) for kind in Kind for wish in desk.desired.of(kind, queue)]
        row["audit"] = [one._asdict() for one in desk.desired.audits if one.queue == queue]
        settings = desk.config.queues[queue].settings()
    if as_json:
        print_json(row)
    else:
        _print(row, settings)


@app.command("pause")
def pause_command(
    config: ConfigArgument, queue: QueueArgument, *, reason: ReasonOption = "", who: WhoOption = None, as_json: JsonOption = False
) -> None:
    """Let nobody take messages; publishers go on to put them, also after a drain: of the two words the last one holds."""
    _wish(config, queue, Wanted.PAUSE, reason, who, as_json=as_json)


@app.command("drain")
def drain_command(
    config: ConfigArgument, queue: QueueArgument, *, reason: ReasonOption = "", who: WhoOption = None, as_json: JsonOption = False
) -> None:
    """Let routes wait at their positions and put nothing in; subscribers go on until the queue is empty, also after a pause. Children of handlers still come."""
    _wish(config, queue, Wanted.DRAIN, reason, who, as_json=as_json)


@app.command("resume")
def resume_command(
    config: ConfigArgument, queue: QueueArgument, *, reason: ReasonOption = "", who: WhoOption = None, as_json: JsonOption = False
) -> None:
    """Let everything go on."""
    _wish(config, queue, Wanted.RUN, reason, who, as_json=as_json)


@app.command("purge")
def purge_command(
    config: ConfigArgument,
    queue: QueueArgument,
    *,
    publisher: PublisherOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how many and do nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it: without it nothing is done.")] = False,
    reason: ReasonOption = "",
    who: WhoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make what waits UNAVAILABLE, all or what is chosen; it stays readable. What a worker has taken it may finish."""
    if not (yes or dry_run):
        raise ConfigError("purging takes messages from every subscriber: give --yes, or --dry-run to see how many")
    chosen = filter_of(publisher=publisher, since=since, until=until)
    with QueueDesk(load(Path(config)), who or me()) as desk:
        store = desk.store(queue)
        count = 0
        try:
            for some in purge(store, chosen, clock.wall_ms(), dry_run=dry_run):
                count += some
        finally:
            # Also of what was interrupted: the record says what was done.
            if not dry_run:
                desk.audit(queue, "purge", count, described(chosen), reason)
    if as_json:
        print_json({"queue": queue, "chosen": described(chosen), "messages": count, "dry_run": dry_run})
    else:
        print_line(f"{count} messages {'would become' if dry_run else 'are'} {PublisherState.UNAVAILABLE.name}")


@app.command("migrate")
def migrate_command(
    config: ConfigArgument,
    queue: QueueArgument,
    *,
    to: Annotated[str, typer.Option("--to", metavar="STORE", help="The new store, as `store` in the configuration.")],
    wait: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", parser=seconds(0, DAY_S), help="How long workers may take to give back what they have."
        ),
    ] = 10.0,
    who: WhoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a queue to another store while it is in use; killed at any step, run it again."""
    with QueueDesk(load(Path(config)), who or me()) as desk:
        done = move_queue(desk, queue, to, wait_s=wait, tell=lambda text: None if as_json else print_line(text))
    if as_json:
        print_json(done)
    else:
        print_line(f"queue {queue} lies in {to} now; write store = {to!r} into the configuration", style="green")


def _wish(config: str, queue: str, wanted: Wanted, reason: str, who: str | None, *, as_json: bool) -> None:
    with QueueDesk(load(Path(config)), who or me()) as desk:
        (name,) = desk.names(queue)
        before = desk.desired.wanted(Subject(Kind.QUEUE, name))
        wish = desk.wish(Kind.QUEUE, name, "", wanted, reason)
    if as_json:
        print_json({**wish_row(wish), "before": before.value})
        return
    print_line(f"queue {queue}: {wanted.value.lower()}; obeyed within a second wherever the relay runs")
    if (lifted := _LIFTED.get((before, wanted))) is not None:
        print_line(f"note: {lifted}", style="yellow")


def _lines(row: dict[str, Any]) -> list[tuple[object, ...]]:
    head = (row["queue"], row["store"], row["wanted"].lower(), row["waiting"])
    lines: list[tuple[object, ...]] = []
    for one in row["subscribers"]:
        name = one["subscriber"] + ("" if one["wanted"] == Wanted.RUN.value else f" ({one['wanted'].lower()})")
        lines.append((*head, name, one["states"].get("AVAILABLE", 0), with_workers(one), unusable(one), one["workers"]))
        head = (row["queue"], "", "", "")
    return lines


def _in_words(settings: QueueSettings) -> Iterator[str]:
    """Yield what a queue is configured to be, as the configuration speaks of it."""
    groups = settings.audience.groups
    pools = [group.name if group.members == (group.name,) else f"{group.name} ({', '.join(group.members)})" for group in groups]
    yield f"subscribers: {', '.join(pools)}{', in this order' * settings.audience.in_order}"
    yield f"order: {settings.order}"
    yield f"ttl: {'none' if settings.ttl_ms is None else spoken(settings.ttl_ms / 1000)}"
    if settings.publishers is not None:
        yield f"publishers: {', '.join(sorted(settings.publishers))}"
    yield f"bounds: {settings.message_bytes} bytes a message, {settings.waiting_max} waiting, {settings.tries} tries"
    yield f"retained: {retained(settings.retain)}"
    if settings.balancing is not None:
        yield f"balancing: on above {settings.balancing.on_above} waiting, off below {settings.balancing.off_below}"


def _print(row: dict[str, Any], settings: QueueSettings) -> None:
    print_table(_COLUMNS, _lines({**row}))
    print_line(f"uuid {row['uuid']}")
    for line in _in_words(settings):
        print_line(line)
    print_line("messages: " + ", ".join(f"{count} {state}" for state, count in row["messages"].items()))
    for wish in row["wishes"]:
        name = f" {wish['name']}" if wish["name"] else ""
        print_line(f"{wish['kind']}{name}: {wish['wanted'].lower()}, said {wish['who']}: {wish['reason']}")
    for one in row["audit"]:
        print_line(f"{one['action']} of {one['changed']} by {one['who']}: {one['subject']} ({one['reason']})")
