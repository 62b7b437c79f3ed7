"""``relay indoubt list|show|resolve CONFIG``: what is in doubt, since when and why, for the person who must decide."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from relay.cli.choosing import me, needed
from relay.cli.report import ConfigArgument, JsonOption, print_json, print_line, print_table, purpose
from relay.config.loading import load
from relay.control.deciding import evidence, resolve
from relay.control.in_doubt_messages import messages
from relay.control.in_doubt_reading import InDoubtReader, Item, shown
from relay.message.errors import CheckFailed, ConfigError, Unreachable
from relay.monitor.resolution import Kind, Told, parse
from relay.run.logging import text
from relay.world import clock

_COLUMNS: Final = ("name", "route", "since", "why", "resource", "decided")
_OBEYED: Final = "the owner obeys it within seconds, one that has stopped when it is started again"
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A name that `relay indoubt list` shows.")]

app = typer.Typer(add_completion=False, no_args_is_help=True, help=purpose(__doc__))


@app.command("list")
def list_command(config: ConfigArgument, *, as_json: JsonOption = False) -> None:
    """List what is in doubt; exit 0 if nothing needs a person, 1 if something does, 3 if brokers or a database are away, or another version wrote what cannot be read."""
    loaded = load(Path(config))
    with InDoubtReader(loaded) as reader:
        items = reader.items()
        now = clock.wall_ms()
        waits = [item for item in items if item.needs_person and item.resolution is None]
        code = 1 if waits or reader.stuck else Unreachable.exit_code if reader.unseen or reader.unreadable else 0
        if as_json:
            alarm_ms = loaded.timing.in_doubt_alarm * 1000
            print_json(
                {
                    "relay": loaded.relay.name,
                    "at": now,
                    "ok": code == 0,
                    "items": [item.document(now, alarm_ms) for item in items],
                    "stuck": [
                        {"route": one.route, "topic": one.place.topic, "partition": one.place.partition, "why": one.why}
                        for one in reader.stuck
                    ],
                    "resolutions": [
                        shown(one, obeyed=reader.decided.is_obeyed(one)) for one in reader.decided.holding
                    ],
                    "notes": reader.notes,
                }
            )
        else:
            _print(reader, items, now)
    raise typer.Exit(code)


@app.command("show")
def show_command(config: ConfigArgument, name: NameArgument, *, as_json: JsonOption = False) -> None:
    """Show one thing in doubt with its messages, its evidence, and who decided what about it."""
    loaded = load(Path(config))
    subject = parse(name)
    with InDoubtReader(loaded) as reader:
        items = [item for item in reader.items() if item.subject.overlaps(subject)]
        told = Told.ABORT if subject.kind is Kind.LOST else Told.COMMIT
        try:
            seen, decides = evidence(reader, items, subject, told), False
        except CheckFailed as refusal:
            seen, decides = str(refusal), True
        alarm_ms = loaded.timing.in_doubt_alarm * 1000
        document = {
            "name": subject.text,
            "items": [item.document(clock.wall_ms(), alarm_ms) for item in items],
            "evidence": seen,
            "evidence_decides": decides,
            "messages": messages(reader, items, subject),
            "resolutions": [
                shown(one, obeyed=reader.decided.is_obeyed(one))
                for one in reader.decided.holding
                if one.subject.overlaps(subject)
            ],
            "refused": [
                shown(late, obeyed=False) for late, _ in reader.decided.late if late.subject.overlaps(subject)
            ],
        }
    if as_json:
        print_json(document)
    else:
        _print_one(document)
    raise typer.Exit(0 if items else 1)


@app.command("resolve")
def resolve_command(
    config: ConfigArgument,
    name: NameArgument,
    *,
    commit: Annotated[bool, typer.Option("--commit", help="It happened: it counts, and is not delivered again.")] = False,
    abort: Annotated[bool, typer.Option("--abort", help="It did not happen: drop the capture, deliver, or pass as lost.")] = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the audit record; needed.")] = "",
    who: Annotated[str | None, typer.Option("--who", metavar="NAME", help="Who decides; default USER@HOST.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Decide what no evidence can; the owner of the partition obeys. Exit 1 if refused, with the evidence."""
    if commit == abort:
        raise ConfigError("give one of --commit (it happened) and --abort (it did not)")
    needed(reason)
    subject = parse(name)
    told = Told.COMMIT if commit else Told.ABORT
    with InDoubtReader(load(Path(config))) as reader:
        made = resolve(reader, subject, told, who=who or me(), reason=reason)
    if as_json:
        print_json(shown(made, obeyed=False))
    else:
        print_line(f"{made.reference}: {subject.text}: {told.name.lower()}; {_OBEYED}")


def _print(reader: InDoubtReader, items: list[Item], now_ms: int) -> None:
    if items:
        print_table(_COLUMNS, [_row(item, now_ms) for item in items])
    if any(item.resolution is not None and not item.obeyed for item in items):
        print_line(f"not yet obeyed: {_OBEYED}")
    for one in reader.stuck:
        print_line(f"stuck: {one.route} {one.place.topic}[{one.place.partition}]: {text(one.why)}", style="red")
    for note in reader.notes:
        print_line(f"note: {text(note)}", style="yellow")
    if not items and not reader.stuck:
        # A note says what could not be seen.
        print_line(f"nothing is in doubt{', as far as could be seen' * bool(reader.notes)}", style="green")


def _row(item: Item, now_ms: int) -> tuple[object, ...]:
    since = "-" if item.since_ms is None else f"{max(0, now_ms - item.since_ms) / 1000:.0f} s"
    decided = "a person must decide" if item.needs_person else ""
    if item.resolution is not None:
        decided = f"{item.resolution.told.name.lower()} by {text(item.resolution.who)}" + (
            ", obeyed" if item.obeyed else ", not yet obeyed"
        )
    count = "" if item.offsets is None else f" ({item.offsets} offsets)"
    return item.subject.text + count, text(item.route), since, text(item.why), text(item.resource or ""), decided


def _print_one(document: dict[str, Any]) -> None:
    print_line(document["name"])
    for item in document["items"]:
        print_line(f"  {item['name']} ({text(item['route'])}): {text(item['why'])}")
    print_line(f"  evidence: {text(document['evidence'])}")
    if document["messages"]:
        columns = ("place", "id", "source", "capture", "marker")
        print_table(columns, [[text(str(one[name] or "")) for name in columns] for one in document["messages"]])
    for one in document["resolutions"]:
        at = datetime.fromtimestamp(one["at"] / 1000, UTC).isoformat(timespec="seconds")
        state = "obeyed" if one["obeyed"] else "not yet obeyed"
        print_line(f"  {one['decision']} by {text(one['who'])} at {at}, {state}: {text(one['reason'])}")
    for one in document["refused"]:
        print_line(f"  came too late: {one['decision']} by {text(one['who'])}: {text(one['reason'])}", style="yellow")
