"""``relay publisher``: who has put messages into which queue, and whose messages are to stay unrevealed for now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from relay.cli.choosing import LOOKED_THROUGH_MAX, QueueOption, ReasonOption, WhoOption, me
from relay.cli.every_queue import ask_every
from relay.cli.report import ConfigArgument, JsonOption, print_json, print_line, print_table, purpose
from relay.cli.wishing import record
from relay.config.loading import load
from relay.control.queue_desk import QueueDesk
from relay.control.queue_moving import OBEY_S
from relay.control.queue_views import publishers
from relay.message.errors import ConfigError, RelayError
from relay.queue.desired import Kind, Wanted, Wish
from relay.queue.port import Filter
from relay.queue.withholding import reveal_kept
from relay.world import clock

app = typer.Typer(add_completion=False, no_args_is_help=True, help=purpose(__doc__))
SourceArgument = Annotated[str, typer.Argument(metavar="SOURCE", help="The publisher: ce_source of its messages.")]
MESSAGES_MAX: Final = 100_000


@app.command("list")
def list_command(
    config: ConfigArgument,
    *,
    queue: QueueOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=LOOKED_THROUGH_MAX, help="Messages to look through, oldest first.")] = MESSAGES_MAX,
    as_json: JsonOption = False,
) -> None:
    """List the publishers whose messages a queue has, and those that were paused or resumed; exit 3 if a store does not answer."""
    with QueueDesk(load(Path(config)), me()) as desk:
        told = ask_every(desk, desk.names(queue), lambda name: publishers(desk.store(name), desk.desired, limit))
    rows = [row for found, _ in told.answers for row in found]
    whole = all(complete for _, complete in told.answers)
    if as_json:
        print_json({"publishers": rows, "complete": whole and not told.notes, "notes": told.notes})
        raise typer.Exit(told.code)
    print_table(
        ("queue", "publisher", "wanted", "messages"),
        [
            (
                row["queue"],
                row["publisher"],
                row["wanted"].lower(),
                ", ".join(f"{count} {state}" for state, count in row["messages"].items()),
            )
            for row in rows
        ],
    )
    if not whole:
        print_line(f"note: only the first {limit} messages of a queue were looked through", style="yellow")
    told.print_notes()
    raise typer.Exit(told.code)


@app.command("pause")
def pause_command(
    config: ConfigArgument,
    source: SourceArgument,
    *,
    queue: QueueOption = None,
    reason: ReasonOption = "",
    who: WhoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep what a publisher puts from now on, or has delayed, unrevealed (PUT): nobody sees it before the publisher is resumed.

    What handlers publish (SOURCE is QUEUE/SUBSCRIBER) is shown with their attempts all the same: pause the subscriber.
    """
    _record(config, source, queue, Wanted.PAUSE, reason, who, as_json=as_json)


@app.command("resume")
def resume_command(
    config: ConfigArgument,
    source: SourceArgument,
    *,
    queue: QueueOption = None,
    reason: ReasonOption = "",
    who: WhoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reveal what was kept, in its order, and let the publisher go on."""
    _record(config, source, queue, Wanted.RUN, reason, who, as_json=as_json)


def _record(config: str, source: str, queue: str | None, wanted: Wanted, reason: str, who: str | None, *, as_json: bool) -> None:
    if not source:
        raise ConfigError("SOURCE is empty; give the ce_source of the publisher's messages")

    def obeyed(desk: QueueDesk, wishes: Sequence[Wish]) -> dict[str, int]:
        if wanted is Wanted.PAUSE:
            return {"revealed": 0, "known": any(_may_know(desk, wish.subject.queue, source) for wish in wishes)}
        stores = [(wish.subject, desk.store(wish.subject.queue)) for wish in wishes]
        # Until every worker has read the wish, messages are put and not revealed: nobody would show the last of those.
        clock.sleep(OBEY_S)
        latest = desk.latest()
        # Whoever was paused again meanwhile has put some behind that word, and nobody takes back what was shown.
        going_on = [store for subject, store in stores if latest.wanted(subject) is Wanted.RUN]
        again = len(stores) - len(going_on)
        revealed = sum(reveal_kept(store, source, clock.wall_ms()) for store in going_on)
        return {"revealed": revealed, **({"paused_again": again} if again else {})}

    counts = record(
        config, Kind.PUBLISHER, source, wanted, lambda desk: desk.names(queue),
        reason=reason, who=who, as_json=as_json, obeyed=obeyed,
    )  # fmt: skip
    if counts.get("paused_again") and not as_json:
        print_line("note: somebody has paused it again meanwhile, so what was kept waits on; `relay queue show` says who", style="yellow")
    if wanted is Wanted.PAUSE and not as_json and (subscriber := _handlers_of(config, source)) is not None:
        print_line(f"note: what handlers publish is shown with their attempts, unless it is delayed: `relay subscriber pause` {subscriber}", style="yellow")
    if not counts.get("known", True) and not as_json:
        print_line("note: nothing of it is in these queues so far; `relay publisher list` shows whose messages are", style="yellow")


def _handlers_of(config: str, source: str) -> str | None:
    """Return the subscriber whose handlers put under this name, None if it is no handler's (`relay.work.running`)."""
    queue, _, subscriber = source.partition("/")
    queues = load(Path(config)).queues
    return subscriber if queue in queues and queues[queue].settings().group_of(subscriber) is not None else None


def _may_know(desk: QueueDesk, queue: str, source: str) -> bool:
    """Has the queue a message of this publisher, as far as can be seen? With a slip in its name nobody is held back."""
    try:
        return bool(desk.store(queue).find(Filter(publisher=source), limit=1))
    except RelayError:
        return True
