"""``relay deadletter``: what routes could not deliver, with its cause, and its redrive.

What subscribers refused: `relay message list --unusable`, and `relay message redrive`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from relay.cli.bounds import DAY_S, seconds
from relay.cli.choosing import me
from relay.cli.report import (
    ConfigArgument,
    JsonOption,
    print_json,
    print_line,
    print_problem,
    print_table,
    purpose,
)
from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.control.dead_letters import dead_letter, dead_letters
from relay.control.redrive_orders import Ordered, Ordering
from relay.message.errors import CheckFailed, ConfigError

app = typer.Typer(add_completion=False, no_args_is_help=True, help=purpose(__doc__))
MORE: Final = "note: there are more dead letters than are shown at a time; redrive these first, or choose with --route"
_COLUMNS: Final = ("digest", "route", "code", "last_failed_at", "topic", "partition", "offset", "source", "message_id")


@app.command("list")
def list_command(
    config: ConfigArgument,
    *,
    route: Annotated[str | None, typer.Option("--route", metavar="ROUTE", help="Only those of this route.")] = None,
    code: Annotated[str | None, typer.Option("--code", metavar="CODE", help="Only those with this cause.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, each once, with how many there are of each cause."""
    loaded = load(Path(config))
    rows, complete = dead_letters(loaded, route=route, code=code)
    _check_route(loaded, rows, route)
    causes = Counter(row["code"] for row in rows)
    if as_json:
        print_json({"dead_letters": rows, "causes": causes, "complete": complete})
        return
    if not rows:
        print_line("no dead letter")
        return
    print_table(_COLUMNS, [[row[name] for name in _COLUMNS] for row in rows])
    commonest = ", ".join(f"{cause} ({count})" for cause, count in causes.most_common())
    print_line(f"{len(rows)} dead letter{'s' * (len(rows) != 1)}: {commonest}")
    if not complete:
        print_line(MORE, style="yellow")


@app.command("show")
def show_command(
    config: ConfigArgument,
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help="As `relay deadletter list` shows it.")],
    *,
    value: Annotated[bool, typer.Option("--value", help="Also the payload, as base64.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter with its cause; exit 1 if there is none."""
    rows = dead_letter(load(Path(config)), digest)
    if not rows:
        raise CheckFailed(f"there is no dead letter {digest!r}; `relay deadletter list` shows those there are")
    shown = [row if value else {name: found for name, found in row.items() if name != "value"} for row in rows]
    if as_json:
        print_json({"dead_letters": shown})
        return
    for row in shown:
        for name, found in row.items():
            print_line(f"{name}: {found}")


@app.command("redrive")
def redrive_command(
    config: ConfigArgument,
    digests: Annotated[
        list[str] | None, typer.Argument(metavar="DIGEST", help="These, as `relay deadletter list` shows them.")
    ] = None,
    *,
    route: Annotated[str | None, typer.Option("--route", metavar="ROUTE", help="Those of this route.")] = None,
    code: Annotated[str | None, typer.Option("--code", metavar="CODE", help="Those with this cause.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All there are.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be ordered, and order nothing.")] = False,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", parser=seconds(0, DAY_S), help="How long to wait for what becomes of them."),
    ] = 30.0,
    who: Annotated[str | None, typer.Option("--who", metavar="NAME", help="Who orders it; default USER@HOST.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Have dead letters delivered once more, after their cause is mended; exit 1 unless all of them were delivered.

    The workers that own their partitions do it, each message once, whoever dies on the way. A message comes behind what its
    publisher has sent since. The log must still have it, and the monitor its death.
    """
    if not (digests or route or code or every):
        raise ConfigError("say which: DIGEST..., --route ROUTE, --code CODE, or --all")
    loaded = load(Path(config))
    rows = _chosen(loaded, digests or [], route, code)
    with Ordering(loaded) as ordering:
        plan = ordering.plan(rows, who or me())
        if dry_run:
            _print_plan(plan, as_json=as_json)
            return

        def written() -> None:
            # Before the wait: who interrupts it takes nothing back.
            if wait and plan.rows and not as_json:
                print_line(f"{len(plan.rows)} ordered; waiting up to {wait:g} s for their workers, who do it also without that")

        ordered = ordering.order(plan, wait, written)
    if as_json:
        print_json(ordered.document())
    else:
        _print_ordered(ordered)
    raise typer.Exit(0 if ordered.is_all_delivered else 1)


def _check_route(config: RelayConfig, rows: Sequence[object], route: str | None) -> None:
    """Letters of a route that is configured no more are still found; a name without any is a slip of the pen."""
    if not rows and route is not None and route not in config.routes:
        raise ConfigError(f"--route {route}: there is no such route; there are: {', '.join(config.routes)}")


def _chosen(config: RelayConfig, digests: Sequence[str], route: str | None, code: str | None) -> list[dict[str, Any]]:
    rows, complete = dead_letters(config, route=route, code=code)
    _check_route(config, rows, route)
    if not complete:
        print_problem(MORE)
    if digests:
        missing = set(digests) - {row["digest"] for row in rows}
        if missing:
            raise CheckFailed(f"{min(missing)} is no dead letter, or is none any more; `relay deadletter list` shows those there are")
        rows = [row for row in rows if row["digest"] in digests]
    if not rows:
        raise CheckFailed("there is no such dead letter; `relay deadletter list` shows those there are")
    return rows


def _print_plan(plan: Ordered, *, as_json: bool) -> None:
    if as_json:
        print_json(replace(plan, orders=[]).document())  # none of them is ordered, and nobody waits for any
        return
    print_table(_COLUMNS, [[row[name] for name in _COLUMNS] for row in plan.rows])
    for reason, count in plan.left.items():
        print_line(f"{count} cannot be redriven: {reason}", style="yellow")
    print_line(f"{len(plan.rows)} would be redriven")


def _print_ordered(ordered: Ordered) -> None:
    for reason, count in (ordered.left + ordered.refused).items():
        print_line(f"{count} not redriven: {reason}", style="yellow")
    if ordered.died:
        print_line(f"{ordered.died} died again: each has a new dead letter", style="red")
    if ordered.waiting:
        print_line(
            f"{ordered.waiting} ordered and not done yet: the workers of their routes do it as soon as they run",
            style="yellow",
        )
    print_line(f"{ordered.delivered} of {len(ordered.rows)} delivered")
