"""The report as one HTML page: verdict, counts and charts as inline SVG; nothing is loaded from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from relay.audit.checker import MUST_BE_ZERO
from relay.audit.verify import COUNTS

WIDTH: Final = 960
HEIGHT: Final = 180
LEFT: Final = 72
BOTTOM: Final = 26
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2733; --paper: #fff; --soft: #5f6b7a; --line: #d5dbe3; --blue: #2f6fb3;
  --green: #2e8b57; --red: #c0392b; --amber: #b9770e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ef; --paper: #14191f; --soft: #9aa7b5; --line: #313b46;
  --blue: #6aa5e0; --green: #58b884; --red: #e8766a; --amber: #e0a94a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1040px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; } h3 { font-size: 1rem; margin: 1.2rem 0 .2rem; }
table { border-collapse: collapse; margin: .8rem 0; } td, th { padding: .2rem .8rem .2rem 0; text-align: left;
  border-bottom: 1px solid var(--line); } td.n { text-align: right; font-variant-numeric: tabular-nums; }
.right { color: var(--green); } .wrong { color: var(--red); } .soft { color: var(--soft); }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font-size: 11px; }
.captured { fill: var(--line); } .delivered { fill: var(--blue); } .fault { fill: var(--red); }
.p50 { stroke: var(--blue); } .p99 { stroke: var(--amber); } .p50, .p99 { fill: none; stroke-width: 2; }
.axis { stroke: var(--line); } code { font-size: .92em; }
"""


def page(title: str, routes: dict[str, dict[str, Any]], extra: str = "") -> str:
    """Return the page for the reports of these routes (their documents, as in the JSON report)."""
    right = all(route["ok"] for route in routes.values())
    verdict = "right" if right else "wrong"
    parts = [_route(name, route) for name, route in routes.items()]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>'
        f'<h1>{escape(title)}: <span class="{verdict}">{verdict}</span></h1>{"".join(parts)}{extra}</body></html>\n'
    )


def bars(title: str, starts: Sequence[int | str], series: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Return a bar chart; each series (class name, values) is drawn over the ones before it."""
    top = max((max(values, default=0) for _, values in series), default=0) or 1
    step = (WIDTH - LEFT) / max(len(starts), 1)
    drawn = [
        f'<rect class="{escape(name)}" x="{LEFT + i * step + step * 0.08:.1f}" y="{_y(value, top):.1f}" '
        f'width="{max(step * 0.84, 0.8):.1f}" height="{(HEIGHT - BOTTOM) - _y(value, top):.1f}">'
        f"<title>{escape(_when(starts[i]))}: {value:,.0f} {escape(name)}</title></rect>"
        for name, values in series
        for i, value in enumerate(values)
        if value
    ]
    return _chart(title, starts, top, drawn, "")


def lines(
    title: str,
    starts: Sequence[int | str],
    series: Sequence[tuple[str, Sequence[float | None]]],
    unit: str = "",
) -> str:
    """Return a line chart; a None leaves a gap."""
    top = max((value for _, values in series for value in values if value is not None), default=0) or 1
    step = (WIDTH - LEFT) / max(len(starts), 1)
    drawn = []
    for name, values in series:
        points, pen = [], "M"
        for i, value in enumerate(values):
            if value is None:
                pen = "M"
                continue
            points.append(f"{pen}{LEFT + (i + 0.5) * step:.1f} {_y(value, top):.1f}")
            pen = "L"
        drawn.append(
            f'<path class="{escape(name)}" d="{" ".join(points)}"><title>{escape(name)}</title></path>'
        )
        last = next((v for v in reversed(values) if v is not None), 0)
        drawn.append(
            f'<text x="{WIDTH - 4}" y="{_y(last, top) - 4:.1f}" text-anchor="end">{escape(name)}</text>'
        )
    return _chart(title, starts, top, drawn, unit)


def _chart(title: str, starts: Sequence[int | str], top: float, drawn: list[str], unit: str) -> str:
    floor = HEIGHT - BOTTOM
    labels = [
        f'<text x="{LEFT - 8}" y="{_y(value, top) + 4:.1f}" text-anchor="end">{value:,.0f}{escape(unit)}</text>'
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH}" y1="{_y(value, top):.1f}" y2="{_y(value, top):.1f}"/>'
        for value in (0, top / 2, top)
    ]
    step = (WIDTH - LEFT) / max(len(starts), 1)
    every = max(len(starts) // 6, 1)
    labels += [
        f'<text x="{LEFT + (i + 0.5) * step:.1f}" y="{floor + 17}" text-anchor="middle">{escape(_when(starts[i]))}</text>'
        for i in range(every // 2, len(starts), every)
    ]
    return (
        f'<h3>{escape(title)}</h3><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{''.join(labels)}{''.join(drawn)}</svg>"
    )


def _route(name: str, route: dict[str, Any]) -> str:
    if "error" in route:
        return f'<h2>{escape(name)} <span class="wrong">not audited</span></h2><p>{escape(route["error"])}</p>'
    windows = route["windows"]
    starts = [_start(window["start"]) for window in windows]
    wrong = [kind for kind in MUST_BE_ZERO if route[kind]]
    faults = [sum(window[kind] for kind in MUST_BE_ZERO) for window in windows]
    charts = [
        bars(
            "Messages by the time of their capture: captured (grey), delivered (blue)", starts,
            [("captured", [w["captured"] for w in windows]), ("delivered", [w["delivered"] for w in windows])],
        ),
        lines(
            "Milliseconds from log to destination", starts,
            [(name, [w[f"delay_ms_{name}"] for w in windows]) for name in ("p50", "p99")], " ms",
        ),
    ]  # fmt: skip
    if any(faults):
        charts.append(bars(f"Faults: {', '.join(wrong).replace('_', ' ')}", starts, [("fault", faults)]))
    offenders = "".join(
        f"<tr><td>{escape(one['kind'])}</td><td><code>{escape(one['place'])}</code></td><td>{escape(one['id'])}</td>"
        f"<td>{escape(one['source'])}</td><td>{escape(one['why'])}</td></tr>"
        for one in route["offenders"]
    )
    notes = "".join(f"<p class='soft'>{escape(note)}</p>" for note in route["notes"])
    return (
        f'<h2>{escape(name)} <span class="soft">to {escape(route["destination"])}, {escape(route["guarantee"])}</span></h2>'
        f"{_counts(route)}{''.join(charts)}"
        + (
            f"<table><tr><th>kind</th><th>place</th><th>id</th><th>source</th><th>why</th></tr>{offenders}</table>"
            if offenders
            else ""
        )
        + notes
    )


def _counts(route: dict[str, Any]) -> str:
    more = [
        name
        for name in ("altered", "unseen", "conflicts", "repeats", "expired", "skipped", "told")
        if route[name]
    ]
    cells = [
        f'<tr><td>{name.replace("_", " ")}</td><td class="n {"wrong" if name in MUST_BE_ZERO and route[name] else ""}">'
        f"{route[name]:,}</td></tr>"
        for name in (*COUNTS, *more)
    ]
    return f"<table>{''.join(cells)}</table>"


def _y(value: float, top: float) -> float:
    return 12 + (HEIGHT - BOTTOM - 12) * (1 - value / top)


def _start(text: str) -> int | str:
    """Return a window's start in seconds; one that no calendar has stays text."""
    return text if text.startswith("@") else int(datetime.fromisoformat(text).timestamp())


def _when(start_s: int | str) -> str:
    if isinstance(start_s, str):
        return start_s
    return datetime.fromtimestamp(start_s, UTC).strftime("%m-%d %H:%M:%S").removesuffix(":00")
