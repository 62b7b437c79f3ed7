"""One page that a person reads at a glance; it needs no script, and comes again by itself. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from relay.config.quantities import ago
from relay.control.queue_views import unusable, with_workers
from relay.control.status import PartitionView, RouteView, WorkerView
from relay.run.logging import text
from relay.serve.watching import QueueRows, Sight

REFRESH_S: Final = 5
PARTITIONS_MAX: Final = 200
"""Of one route; those that wait come first."""
_STYLE: Final = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.3rem } h2 { font-size: 1.05rem; margin: 2rem 0 .2rem }
p { margin: .2rem 0 } table { border-collapse: collapse; margin: .6rem 0; width: 100% }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8884; vertical-align: top }
th { font-weight: 600; opacity: .7 } th.n, td.n { text-align: right; font-variant-numeric: tabular-nums }
.good { color: #197a3d } .bad { color: #c62828; font-weight: 600 } .dim { opacity: .7 }
@media (prefers-color-scheme: dark) { .good { color: #6fcf8e } .bad { color: #ff8a80 } }
"""
_WORKERS: Final = ("worker", "state", "host", "process", "restarts", "lag", "last error")
_PARTITIONS: Final = ("partition", "owner", "position", "end", "lag", "held", "in doubt")
_QUEUES: Final = ("queue", "waiting", "subscriber", "available", "with workers", "unusable", "workers")


def page(relay: str, sight: Sight | None, problem: str | None, age_s: float) -> str:
    """Return the whole document."""
    return "".join(_page(relay, sight, problem, age_s))


def _page(relay: str, sight: Sight | None, problem: str | None, age_s: float) -> Iterator[str]:
    name = escape(relay)
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="{REFRESH_S}">'
    yield f'<meta name="viewport" content="width=device-width"><title>{name}</title><style>{_STYLE}</style>'
    yield f"<body><h1>{name}</h1>"
    if problem is not None:
        yield f'<p class="bad">{_line(problem)}</p>'
    if sight is None:
        yield '<p class="dim">Nothing was seen yet.</p></body></html>'
        return
    yield f'<p class="dim">As it was {age_s:.0f} s ago. For programs: <a href="status">status</a>, <a href="metrics">metrics</a>.</p>'
    for note in sight.notes:
        yield f"<p>note: {_line(note)}</p>"
    for route in sight.routes:
        yield from _route(route)
    if sight.queues:
        yield "<h2>queues</h2>"
        yield _table(_QUEUES, _queue_rows(sight.queues))
    yield "</body></html>"


def _route(route: RouteView) -> Iterator[str]:
    style = "bad" if route.needs_attention else "good"
    yield f'<h2>{escape(route.name)}: <span class="{style}">{route.state.value}</span></h2>'
    for line in (route.why, route.guarantee, route.identity_note):
        if line:
            yield f"<p>{_line(line)}</p>"
    if route.dead.count:
        least = "" if route.dead.complete else "at least "
        yield f'<p class="bad">{least}{route.dead.count} dead letters, most often {_line(route.dead.commonest or "")}</p>'
    if route.workers:
        yield _table(
            _WORKERS,
            ((one.worker, one.state.value, one.host, one.pid, one.restarts, one.lag, _last_error(one)) for one in route.workers),
        )
    places = sorted(route.partitions, key=lambda one: (-(one.held + one.in_doubt), -(one.lag or 0)))
    if places:
        yield _table(_PARTITIONS, (_partition_row(one) for one in places[:PARTITIONS_MAX]))
    if len(places) > PARTITIONS_MAX:
        yield f'<p class="dim">and {len(places) - PARTITIONS_MAX} partitions more</p>'
    for one in places:
        if one.stuck:
            yield f'<p class="bad">{escape(one.topic)}[{one.partition}] is stuck: {_line(one.stuck)}</p>'


def _last_error(one: WorkerView) -> str:
    when = "" if one.last_error_age_ms is None else f"{ago(one.last_error_age_ms)}: "
    return f"{when}{one.last_error}" if one.last_error else ""


def _partition_row(one: PartitionView) -> tuple[object, ...]:
    position = "-" if one.position is None else one.position
    lag = "?" if one.lag is None else one.lag
    return f"{one.topic}[{one.partition}]", one.owner or "-", position, one.end, lag, one.held, one.in_doubt


def _queue_rows(queues: QueueRows) -> Iterator[tuple[object, ...]]:
    for name, row in queues.items():
        if row is None:
            yield name, "its store does not answer"
            continue
        for one in row["subscribers"]:
            counts = one["states"].get("AVAILABLE", 0), with_workers(one), unusable(one)
            yield name, row["waiting"], one["subscriber"], *counts, one["workers"]


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = list(rows)
    styles = [' class="n"' * any(isinstance(row[n], int) for row in cells if n < len(row)) for n in range(len(columns))]
    head = "".join(f"<th{style}>{escape(name)}" for name, style in zip(columns, styles, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{style}>{_line(str(value))}" for value, style in zip(row, styles, strict=False)) for row in cells
    )
    return f"<table><tr>{head}{body}</table>"


def _line(said: str) -> str:
    return escape(text(said, 300))
