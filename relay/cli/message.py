"""``relay message``: look at messages without altering them, and say what is to become of one, of some, or of all chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from relay.cli.bounds import bounded
from relay.cli.choosing import (
    HANDLE_MAX,
    LOOKED_THROUGH_MAX,
    AfterOption,
    LimitOption,
    PublisherOption,
    QueueArgument,
    ReasonOption,
    SinceOption,
    StateOption,
    SubscriberOption,
    SubscriberStateOption,
    UntilOption,
    UnusableOption,
    WhoOption,
    described,
    filter_of,
    me,
    needed,
)
from relay.cli.report import (
    ConfigArgument,
    JsonOption,
    print_json,
    print_line,
    print_problem,
    print_table,
    purpose,
    when,
)
from relay.config.loading import load
from relay.control.pacing import Pace
from relay.control.queue_desk import QueueDesk
from relay.control.queue_tracing import Found, trace
from relay.control.queue_views import message_row, timeline
from relay.message.errors import CheckFailed, ConfigError
from relay.queue.message import MessageView
from relay.queue.receipt import edits_of
from relay.queue.redriving import AT_ONCE, Redriven, redrivable, redrive
from relay.queue.states import PublisherState, SubscriberState
from relay.queue.withholding import waits_for_attempt
from relay.run.logging import text
from relay.world import clock

UNDECIDED: Final = (
    "made by an attempt that is not decided yet, whose end reveals or discards them; "
    "a worker of the attempt's queue decides for one that died"
)
RATE_MIN: Final = 0.001
RATE_MAX: Final = 1_000_000
app = typer.Typer(add_completion=False, no_args_is_help=True, help=purpose(__doc__))


def _each_once(handles: list[int] | None) -> list[int] | None:
    """Return each handle once: one that is given twice is no second message, which would be in no state for it any more."""
    return handles and list(dict.fromkeys(handles))


HandleArgument = Annotated[int, typer.Argument(metavar="HANDLE", min=0, max=HANDLE_MAX, help="The message's handle in that queue.")]
HandlesArgument = Annotated[
    list[int], typer.Argument(metavar="HANDLE", min=0, max=HANDLE_MAX, callback=_each_once, help="Handles in that queue.")
]
ToOption = Annotated[list[str] | None, typer.Option("--to", metavar="SUBSCRIBER", help="Only to these; may be given again.")]


@app.command("list")
def list_command(
    config: ConfigArgument,
    queue: QueueArgument,
    *,
    state: StateOption = None,
    subscriber: SubscriberOption = None,
    subscriber_state: SubscriberStateOption = None,
    unusable: UnusableOption = False,
    publisher: PublisherOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    after: AfterOption = 0,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List messages with their states, by handle."""
    wanted = filter_of(
        state=state, subscriber=subscriber, subscriber_state=subscriber_state, unusable=unusable,
        publisher=publisher, since=since, until=until,
    )  # fmt: skip
    with QueueDesk(load(Path(config)), me()) as desk:
        views = desk.store(queue).find(wanted, after=after, limit=limit)
        if not views:
            desk.check_subscriber(queue, subscriber)
    rows = [message_row(queue, view) for view in views]
    if as_json:
        print_json({"queue": queue, "messages": rows, "next": views[-1].handle if len(views) == limit else None})
        return
    if not rows:
        print_line("no such message")
        return
    print_table(("handle", "publisher", "id", "state", "subscribers"), [_line(row) for row in rows])
    if len(views) == limit:
        print_line(f"more: --after {views[-1].handle}")


@app.command("show")
def show_command(
    config: ConfigArgument,
    queue: QueueArgument,
    handle: HandleArgument,
    *,
    value: Annotated[bool, typer.Option("--value", help="Also key, value and headers, as base64.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show one message and its states with their times; exit 1 if there is none."""
    with QueueDesk(load(Path(config)), me()) as desk:
        view = _view(desk, queue, handle, value=value)
    row = message_row(queue, view, value=value)
    if as_json:
        print_json({**row, "timeline": [{"at": at, "who": who, "state": name} for at, who, name in timeline(view)]})
        return
    for name, found in row.items():
        if name not in ("subscribers", "headers", "parents") and found is not None:
            print_line(f"{name}: {when(found) if name.endswith('_at') else found}")
    _print_origin(row)
    for at, editor, reason in edits_of(view.headers) if value else ():
        print_line(f"edited: {when(at)} by {text(editor)}: {text(reason)}")
    for one in row["subscribers"]:
        cause = f": {one['cause']}" if one["cause"] else ""
        print_line(f"{one['subscriber']} ({one['group']}): {one['state']}, attempt {one['attempt']}{cause}")
    _print_timeline(view)


@app.command("trace")
def trace_command(
    config: ConfigArgument,
    queue: QueueArgument,
    handle: HandleArgument,
    *,
    limit: Annotated[int, typer.Option("--limit", min=0, max=LOOKED_THROUGH_MAX, help="Messages of each queue to look through for children.")] = 10_000,
    as_json: JsonOption = False,
) -> None:
    """Show what a message was made from and what was made from it, over all queues, each with its times; exit 3 if a store does not answer."""
    with QueueDesk(load(Path(config)), me()) as desk:
        _view(desk, queue, handle)
        found, away = trace(desk, queue, handle, limit)
    for name, error in away.items():
        print_problem(f"queue {name}: {error}; what it has of this is not shown")
    _print_trace(found, as_json=as_json)
    raise typer.Exit(max((error.exit_code for error in away.values()), default=0))


def _print_trace(found: Sequence[Found], *, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {"queue": name, "handle": number, "generation": generation, "gone": view is None,
                 "message": None if view is None else message_row(name, view)}
                for name, view, number, generation in found
            ]
        )  # fmt: skip
        return
    for name, view, number, generation in found:
        kin = "itself" if generation == 0 else f"{'parent' if generation < 0 else 'child'} {abs(generation)}"
        print_line(f"{name}/{number} ({kin}): {'gone from its queue' if view is None else view.state.name}")
        if view is not None:
            _print_timeline(view)


@app.command("priority")
def priority_command(
    config: ConfigArgument,
    queue: QueueArgument,
    handles: HandlesArgument,
    *,
    to: Annotated[int, typer.Option("--to", min=0, max=9, help="0 is the lowest, 9 goes first.")],
    reason: ReasonOption = "",
    who: WhoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set the priority of messages that wait; it orders lanes, never the messages inside one."""
    with QueueDesk(load(Path(config)), who or me()) as desk:
        answers = desk.store(queue).prioritise(handles, to)
        _end(desk, queue, f"priority {to}", handles, answers, reason, as_json=as_json)


@app.command("reveal")
def reveal_command(
    config: ConfigArgument,
    queue: QueueArgument,
    handles: HandlesArgument,
    *,
    to: ToOption = None,
    reason: ReasonOption = "",
    who: WhoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reveal messages that are PUT without waiting for their delay, to all of their audience or to some.

    Not one that a handler made while its attempt is undecided: the attempt's end reveals or discards it.
    """
    with QueueDesk(load(Path(config)), who or me()) as desk:
        store = desk.store(queue)
        answers = store.reveal(handles, clock.wall_ms(), to)
        refused = [handle for handle, done in zip(handles, answers, strict=True) if not done]
        views = [(handle, store.view(handle, value=False)) for handle in refused]
        undecided = [handle for handle, view in views if view is not None and waits_for_attempt(view)]
        _end(desk, queue, "reveal", handles, answers, reason, as_json=as_json, undecided=undecided)


@app.command("withdraw")
def withdraw_command(
    config: ConfigArgument,
    queue: QueueArgument,
    handles: HandlesArgument,
    *,
    reason: ReasonOption = "",
    who: WhoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make messages UNAVAILABLE to everybody who has not taken them; they stay readable."""
    with QueueDesk(load(Path(config)), who or me()) as desk:
        answers = desk.store(queue).withdraw(handles, clock.wall_ms())
        _end(desk, queue, "withdraw", handles, answers, reason, as_json=as_json)


@app.command("expire")
def expire_command(
    config: ConfigArgument,
    queue: QueueArgument,
    handles: HandlesArgument,
    *,
    subscriber: SubscriberOption = None,
    reason: ReasonOption = "",
    who: WhoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let messages be EXPIRED now, for one subscriber or for all that have not taken them."""
    with QueueDesk(load(Path(config)), who or me()) as desk:
        answers = desk.store(queue).expire_now(handles, clock.wall_ms(), subscriber)
        _end(desk, queue, "expire", handles, answers, reason, as_json=as_json)


@app.command("edit")
def edit_command(
    config: ConfigArgument,
    queue: QueueArgument,
    handle: HandleArgument,
    *,
    value: Annotated[Path, typer.Option("--value", metavar="FILE", help="The file with the new value.")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the record; needed.")],
    who: WhoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace the value of a message that nobody has taken yet; who and why stay with the message: `relay message show --value`."""
    needed(reason)
    try:
        content = value.read_bytes()
    except OSError as error:
        raise ConfigError(f"--value {value}: the file cannot be read ({error.strerror}); correct the path") from None
    with QueueDesk(load(Path(config)), who or me()) as desk:
        done = desk.store(queue).edit(handle, content, desk.who, reason, clock.wall_ms())
        _end(desk, queue, "edit", [handle], [done], reason, as_json=as_json)


@app.command("redrive")
def redrive_command(
    config: ConfigArgument,
    queue: QueueArgument,
    handles: Annotated[
        list[int] | None,
        typer.Argument(metavar="HANDLE", min=0, max=HANDLE_MAX, callback=_each_once, help="Only these messages."),
    ] = None,
    *,
    subscriber: SubscriberOption = None,
    publisher: PublisherOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: LimitOption = 100_000,
    rate: Annotated[
        float,
        typer.Option(
            "--rate", metavar="N", parser=bounded(0, RATE_MAX, "a second"), help="Messages a second at most; 0: no bound."
        ),
    ] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done and do nothing.")] = False,
    even_done: Annotated[
        bool, typer.Option("--even-done", help="Also what the subscriber was DONE with, to be done once more. Needs handles.")
    ] = False,
    reason: ReasonOption = "",
    who: WhoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give UNUSABLE messages to their subscribers again: the handles given, or all that the filter chooses.

    Exit 1 if a message named by its handle was in no state for it.
    """
    wanted = filter_of(unusable=True, subscriber=subscriber, publisher=publisher, since=since, until=until)
    if handles and (publisher, since, until) != (None, None, None):
        raise ConfigError("HANDLE names each message: leave --publisher, --since and --until out, or the handles")
    if 0 < rate < RATE_MIN:
        raise ConfigError(f"--rate {rate:g}: less than {RATE_MIN:g} a second; give more, or 0 for no bound")
    again = _named_again(handles, subscriber) if even_done else None
    pace = Pace(rate)
    with QueueDesk(load(Path(config)), who or me()) as desk:
        store = desk.store(queue)
        done: list[Redriven] = []
        try:
            if again is not None:
                steps = _again(desk, queue, *again, dry_run=dry_run, pace=pace)
            else:
                views = iter([_view(desk, queue, handle) for handle in handles]) if handles else redrivable(store, wanted, limit)
                # A unit of so many keeps other writers waiting for some hundredths of a second.
                at_once = 1 if rate else AT_ONCE
                steps = redrive(
                    store, views, subscriber, dry_run=dry_run, pace=pace.wait, now=clock.wall_ms, at_once=at_once
                )
            done.extend(steps)  # keeps what came before an exception
        finally:
            # Also of what was interrupted: the record says what was done.
            if count := sum(one.done for one in done):
                desk.audit(queue, "redrive", count, _named(handles) if handles else described(wanted), reason)
        if not count and not (dry_run and done):
            desk.check_subscriber(queue, subscriber)
    taken = {one.handle for one in done if one.done or dry_run}
    refused = [handle for handle in handles or [] if handle not in taken]
    if as_json:
        messages = [one._asdict() for one in done]
        print_json({"queue": queue, "dry_run": dry_run, "redriven": count, "messages": messages, "refused": refused})
    else:
        print_table(("handle", "publisher", "id", "subscriber", "cause"), [_redriven(one) for one in done])
        print_line(f"{len(done)} would be redriven" if dry_run else f"{count} of {len(done)} redriven")
        _print_refused(refused)
    raise typer.Exit(1 if refused else 0)


def _named_again(handles: list[int] | None, subscriber: str | None) -> tuple[list[int], str]:
    if not handles or subscriber is None:
        raise ConfigError("--even-done repeats an effect, so it needs HANDLE... and --subscriber: no filter chooses for it")
    return handles, subscriber


def _again(
    desk: QueueDesk, queue: str, handles: Sequence[int], subscriber: str, *, dry_run: bool, pace: Pace
) -> Iterator[Redriven]:
    for handle in handles:
        view = _view(desk, queue, handle)
        if dry_run and not _is_over(view, subscriber):
            continue  # it would be refused
        if not dry_run:
            pace.wait()
        done = not dry_run and desk.store(queue).republish(handle, subscriber, clock.wall_ms(), even_done=True)
        yield Redriven(handle, view.publisher, view.id, subscriber, None, done)


def _is_over(view: MessageView, subscriber: str) -> bool:
    """Is a message over for this subscriber, and not withdrawn?"""
    mine = [one for one in view.subscribers if one.subscriber == subscriber]
    return view.state in (PublisherState.REVEALED, PublisherState.JOURNALLED) and any(one.state is SubscriberState.JOURNALLED for one in mine)


def _redriven(one: Redriven) -> tuple[object, ...]:
    return one.handle, text(one.publisher), text(one.id), one.subscriber, text(one.cause or "")


def _view(desk: QueueDesk, queue: str, handle: int, *, value: bool = False) -> MessageView:
    view = desk.store(queue).view(handle, value=value)
    if view is None:
        raise CheckFailed(f"queue {queue!r} has no message {handle}: it was trimmed, or never put; see `relay journal list`")
    return view


def _end(
    desk: QueueDesk, queue: str, action: str, handles: list[int], answers: list[bool], reason: str, *,
    as_json: bool, undecided: Sequence[int] = (),
) -> None:  # fmt: skip
    """Record what was done and say it; exit 1 if a message's state, or its attempt without an outcome, did not allow it."""
    changed = sum(answers)
    if changed:
        desk.audit(queue, action, changed, _named(handles), reason)
    refused = [handle for handle, done in zip(handles, answers, strict=True) if not done]
    if as_json:
        more = {"undecided": undecided} if undecided else {}
        print_json({"queue": queue, "action": action, "changed": changed, "refused": refused, **more})
    else:
        print_line(f"{action}: {changed} of {len(handles)}")
        if undecided:
            print_line(f"{_named(undecided)}: {UNDECIDED}", style="yellow")
        _print_refused([handle for handle in refused if handle not in undecided])
    raise typer.Exit(1 if refused else 0)


def _print_refused(handles: list[int]) -> None:
    if handles:
        print_line(f"not in a state for it: {_named(handles)}; see `relay message show`", style="yellow")


def _named(handles: Sequence[int]) -> str:
    shown = " ".join(str(handle) for handle in handles[:20])
    return f"handle{'s' * (len(handles) != 1)} {shown}" + (f" and {len(handles) - 20} more" if len(handles) > 20 else "")


def _line(row: dict[str, Any]) -> tuple[object, ...]:
    states = ", ".join(f"{one['subscriber']} {_state(one)}" for one in row["subscribers"])
    return row["handle"], row["publisher"], row["id"], row["state"], states


def _state(one: dict[str, Any]) -> str:
    """Return a subscriber's state; of what is over without having been DONE, how it ended: JOURNALLED is also what went well."""
    ends = [name.upper() for name in ("unusable", "expired") if name in one["times"] and one["state"] == "JOURNALLED"]
    return f"{one['state']} ({ends[0]})" if ends else str(one["state"])


def _print_origin(row: dict[str, Any]) -> None:
    """Print what a message was made from and, where its payload is asked for, its headers."""
    for parent in row.get("parents", ()):
        print_line(f"parent: {parent['queue']}/{parent['handle']} for {parent['subscriber']}")
    for header in row.get("headers", ()):
        print_line(f"header {text(header['name'])}: {header['value']}")


def _print_timeline(view: MessageView) -> None:
    for at, who, state in timeline(view):
        print_line(f"  {when(at)}  {who}: {state}")


