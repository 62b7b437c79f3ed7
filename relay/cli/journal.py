"""``relay journal``: what is over, in the queue and in the archive, and the archive's periods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from relay.cli.choosing import AfterOption, LimitOption, QueueArgument, QueueOption, WhoOption, me, retained
from relay.cli.every_queue import ask_every
from relay.cli.report import ConfigArgument, JsonOption, print_json, print_line, print_table, purpose, when
from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.control.queue_desk import QueueDesk
from relay.control.queue_views import message_row
from relay.queue import journal
from relay.queue.port import Filter, QueueStore
from relay.queue.states import PublisherState
from relay.run.logging import text
from relay.run.queue_upkeep import archive, archive_folder
from relay.run.queues import queue_of
from relay.world import clock

app = typer.Typer(add_completion=False, no_args_is_help=True, help=purpose(__doc__))
ArchivedOption = Annotated[bool, typer.Option("--archived", help="What has left the queue, from this host's files.")]


@app.command("list")
def list_command(
    config: ConfigArgument,
    queue: QueueArgument,
    *,
    archived: ArchivedOption = False,
    after: AfterOption = 0,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List what is JOURNALLED, still in the queue or archived, by handle."""
    loaded = load(Path(config))
    if archived:
        folder = archive_folder(loaded)
        rows = journal.page(folder, queue_of(loaded, queue).name, _shown, after=after, limit=limit)
    else:
        with QueueDesk(loaded, me()) as desk:
            views = desk.store(queue).find(Filter(state=PublisherState.JOURNALLED), after=after, limit=limit)
        rows = [message_row(queue, view) for view in views]
    following = rows[-1]["handle"] if len(rows) == limit else None
    if as_json:
        print_json({"queue": queue, "archived": archived, "messages": rows, "next": following})
        return
    if not rows:
        print_line(f"nothing is {'archived' if archived else 'journalled'}")
        return
    columns = ("handle", "publisher", "id", "state", "journalled_at")
    print_table(columns, [[*(row[name] for name in columns[:-1]), when(row[columns[-1]])] for row in rows])
    if following is not None:
        print_line(f"more: --after {following}")


@app.command("show")
def show_command(config: ConfigArgument, *, queue: QueueOption = None, as_json: JsonOption = False) -> None:
    """Show what each queue retains and which periods are archived on this host; exit 3 if a store does not answer."""
    loaded = load(Path(config))
    with QueueDesk(loaded, me()) as desk:
        told = ask_every(desk, desk.names(queue), lambda name: _kept(loaded, desk.store(name)))
    if as_json:
        print_json({"queues": told.answers, "notes": told.notes})
        raise typer.Exit(told.code)
    for row in told.answers:
        kept = retained(loaded.queues[row["queue"]].settings().retain)
        print_line(f"{row['queue']}: {row['journalled']} journalled, retained {kept}, archive {row['archive']}")
        print_line(f"  periods: {', '.join(row['periods']) or 'none'} ({row['bytes']} bytes)")
    told.print_notes()
    raise typer.Exit(told.code)


def _kept(config: RelayConfig, store: QueueStore) -> dict[str, Any]:
    name = store.settings.name
    given = config.queues[name]
    files = sorted(archive_folder(config).glob(f"{name}.*.avro"))
    counts, _ = store.counts()
    return {
        "queue": name,
        "retain": given.retain.model_dump(),
        "archive": given.archive,
        "journalled": counts.get(PublisherState.JOURNALLED, 0),
        "periods": sorted({path.name.split(".")[-3] for path in files}),
        "bytes": sum(path.stat().st_size for path in files),
    }


@app.command("archive")
def archive_command(
    config: ConfigArgument, *, queue: QueueOption = None, who: WhoOption = None, as_json: JsonOption = False
) -> None:
    """Archive and remove now what is past its retention, which workers do by themselves as well; exit 3 if a store does not answer."""
    loaded = load(Path(config))
    with QueueDesk(loaded, who or me()) as desk:
        told = ask_every(desk, desk.names(queue), lambda name: _archived(loaded, desk.store(name)))
    if as_json:
        print_json({"queues": told.answers, "notes": told.notes})
    else:
        for row in told.answers:
            print_line(f"{row['queue']}: {row['messages']} messages, {len(row['files'])} files")
        told.print_notes()
    raise typer.Exit(told.code)


def _archived(config: RelayConfig, store: QueueStore) -> dict[str, Any]:
    messages = 0
    files: set[str] = set()
    while (done := archive(store, config, clock.wall_ms())).messages:
        messages += done.messages
        files.update(path.name for path in done.files)
    return {"queue": store.settings.name, "messages": messages, "files": sorted(files)}


def _shown(record: dict[str, Any]) -> dict[str, Any]:
    """Return an archived message without its payload."""
    hidden = ("key", "value", "headers", "lane")
    return {name: text(value) if isinstance(value, str) else value for name, value in record.items() if name not in hidden}
