"""From a history to one page that needs nothing else: what was struck and when, and what the routes made of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Any, Final

from relay.chaos.history import Entry
from relay.chaos.nemesis import NATURES, Kind

WIDTH: Final = 1180
LEFT: Final = 290
RIGHT: Final = 24
ROW: Final = 20
CHART: Final = 110
GAP: Final = 46
TOP: Final = 26
TICKS_MAX: Final = 12
STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)
DOT: Final = 5.0
"""Width in pixels of what was over at once."""

UNSEEN_S: Final = 6.0
"""A line ends where the next sight is later than that."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A named line of a chart."""

    name: str
    style: int
    points: list[Point]


@dataclass
class Bar:
    """One fault from its begin to its end, in seconds."""

    number: int
    kind: str
    struck: str
    target: str
    begin: float
    end: float
    how: str = ""
    failed: bool = False


@dataclass
class Story:
    """What the page shows of a history; ``missed`` counts by kind and reason."""

    bars: list[Bar] = field(default_factory=list)
    anomalies: list[tuple[float, str]] = field(default_factory=list)
    sights: list[Entry] = field(default_factory=list)
    missed: Counter[tuple[str, str]] = field(default_factory=Counter)
    report: dict[str, Any] = field(default_factory=dict)
    end: float = 1.0


def story(history: Iterable[Entry]) -> Story:
    """Sort a history; a fault without an end lasts to the end of it."""
    found, open_bars = Story(), dict[int, Bar]()
    for entry in history:
        at = float(entry.get("t", 0.0))
        found.end = max(found.end, at)
        word = entry.get("word")
        if word == "sight":
            found.sights.append(entry)
        elif word == "anomaly":
            found.anomalies.append((at, f"{entry.get('kind')}: {entry.get('detail')}"))
        elif word == "result":
            found.report = entry.get("report") or {}
        elif word == "fault":
            _fault(found, open_bars, entry, at)
    for bar in open_bars.values():
        bar.end = found.end
    return found


def _fault(found: Story, open_bars: dict[int, Bar], entry: Entry, at: float) -> None:
    number, phase = int(entry["n"]), entry.get("phase")
    if phase == "begin":
        bar = Bar(number, str(entry["kind"]), str(entry["struck"]), str(entry["target"]), at, at)
        open_bars[number] = bar
        found.bars.append(bar)
    elif phase == "missed":
        found.missed[str(entry["kind"]), str(entry.get("how") or "")] += 1
    elif number in open_bars:
        bar = open_bars.pop(number)
        bar.end, bar.how, bar.failed = at, str(entry.get("how") or ""), phase == "failed"


def page(history: Iterable[Entry]) -> str:
    """Return the whole HTML document."""
    told = story(history)
    parts = [*_head(told), *_svg(told), *_tables(told), "</main>\n</body>\n</html>\n"]
    return "\n".join(parts)


def _head(told: Story) -> Iterator[str]:
    report = told.report
    seed = report.get("seed", "?")
    clean = bool(report.get("ok"))
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>relay chaos, seed {escape(str(seed))}</title>"
    yield f"<style>{_STYLE}</style></head><body><main>"
    word = "clean" if clean else "NOT CLEAN" if report else "not finished"
    yield f'<h1>relay chaos <span class="{"good" if clean else "bad"}">{word}</span></h1>'
    yield (
        f"<p>Seed {escape(str(seed))}, {told.end:.0f} s, {len(told.bars)} faults"
        f"{f', {told.missed.total()} without a target' if told.missed else ''}, {len(told.anomalies)} anomalies seen.</p>"
    )
    if report.get("disks"):
        yield f"<p>{escape(str(report['disks']))}</p>"
    for complaint in report.get("complaints", ()):
        yield f'<p class="bad">{escape(str(complaint))}</p>'


def _svg(told: Story) -> Iterator[str]:
    rows = _rows(told.bars)
    charts = _charts(told.sights)
    faults_height = ROW * max(1, len(rows))
    height = TOP + faults_height + sum(CHART + GAP for _ in charts) + GAP
    yield f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Timeline of faults and of what the routes did">'
    yield from _axis(told.end, height)
    for index, kind in enumerate(rows):
        middle = TOP + ROW * index + ROW / 2
        yield f'<text class="label" x="{LEFT - 10}" y="{middle + 4:.0f}" text-anchor="end">{escape(kind)}</text>'
    for bar in told.bars:
        yield _bar(bar, TOP + ROW * rows.index(bar.kind), told.end)
    top = TOP + faults_height + GAP
    for title, lines in charts:
        yield from _chart(title, lines, top, told.end)
        top += CHART + GAP
    for at, detail in told.anomalies:
        x = _x(at, told.end)
        yield f'<line class="anomaly" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - GAP}">'
        yield f"<title>{at:.1f} s {escape(detail)}</title></line>"
    yield "</svg>"


def _rows(bars: Sequence[Bar]) -> list[str]:
    """Return the kinds that happened, in the order of the plan's table, others behind."""
    happened = {bar.kind for bar in bars}
    known = [kind.value for kind in Kind if kind.value in happened]
    return known + sorted(happened - set(known))


def _bar(bar: Bar, top: float, end: float) -> str:
    left = _x(bar.begin, end)
    width = max(DOT, _x(bar.end, end) - left)
    colour = _CLASSES.get(bar.struck, "other") + (" failed" if bar.failed else "")
    said = f"{bar.begin:.1f} to {bar.end:.1f} s: {bar.kind}: {bar.target}" + (f" ({bar.how})" if bar.how else "")
    return (
        f'<rect class="fault {colour}" data-n="{bar.number}" x="{left:.1f}" y="{top + 4:.1f}" width="{width:.1f}" '
        f'height="{ROW - 8}" rx="2"><title>{escape(said)}</title></rect>'
    )


def _axis(end: float, height: float) -> Iterator[str]:
    step = next((step for step in STEPS_S if end / step <= TICKS_MAX), STEPS_S[-1])
    for tick in range(0, int(end) + 1, step):
        x = _x(tick, end)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height - GAP}"/>'
        said = f"{tick} s" if step < 60 else f"{tick // 60} min"
        for y in (TOP - 10, height - GAP + 16):
            yield f'<text class="tick" x="{x:.1f}" y="{y:.0f}" text-anchor="middle">{said}</text>'


def _charts(sights: Sequence[Entry]) -> list[tuple[str, list[Line]]]:
    """Return title and lines of each chart; a route has the same style in all of them."""
    routes = sorted({route for sight in sights for route in sight.get("passed", {})})
    throughput = [Line("into the log", 0, _rates(sights, "log", route)) for route in routes[:1]]
    lag = []
    for style, route in enumerate(routes, start=1):
        throughput.append(Line(f"passed by {route}", style, _rates(sights, "passed", route)))
        known = [(s["t"], s["lag"][route]) for s in sights if route in s.get("lag", {})]
        lag.append(Line(f"lag of {route}", style, known))
    doubt = [
        Line(name, style, [(s["t"], s[key]) for s in sights])
        for name, key, style in (("held", "held", 0), ("in doubt", "in_doubt", 3))
    ]
    return [
        ("throughput, records a second", throughput),
        ("lag, records", lag),
        ("in doubt and held, messages", doubt),
    ]


def _rates(sights: Sequence[Entry], name: str, route: str) -> list[Point]:
    known = [(s["t"], s[name][route]) for s in sights if route in s.get(name, {})]
    return [(t, max(0.0, (count - before) / (t - past))) for (past, before), (t, count) in pairwise(known) if t > past]


def _chart(title: str, lines: Sequence[Line], top: float, end: float) -> Iterator[str]:
    most = max([1.0, *(value for line in lines for _, value in line.points)])
    bottom = top + CHART
    yield f'<text class="title" x="{LEFT}" y="{top - 8:.0f}">{escape(title)}</text>'
    for share in (0.0, 0.5, 1.0):
        y = bottom - CHART * share
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{LEFT - 10}" y="{y + 4:.0f}" text-anchor="end">{most * share:,.0f}</text>'
    for index, line in enumerate(lines):
        y, style = top + 14 + 18 * index, f"line l{line.style}"
        yield f'<line class="{style}" x1="12" x2="40" y1="{y - 4:.0f}" y2="{y - 4:.0f}"/>'
        yield f'<text class="label" x="48" y="{y:.0f}">{escape(line.name)}</text>'
        for points in _unbroken(line.points):
            drawn = " ".join(f"{_x(t, end):.1f},{bottom - CHART * value / most:.1f}" for t, value in points)
            yield f'<polyline class="{style}" points="{drawn}"/>'


def _unbroken(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Yield the pieces of a line: where nothing could be seen for long, nothing is drawn."""
    piece: list[Point] = []
    for point in points:
        if piece and point[0] - piece[-1][0] > UNSEEN_S:
            yield piece
            piece = []
        piece.append(point)
    if piece:
        yield piece


def _tables(told: Story) -> Iterator[str]:
    routes = told.report.get("routes", {})
    if routes:
        counts = ("captured", "delivered", "lost", "duplicates", "reordered", "phantoms", "aborted", "in_doubt")
        rows = [(name.replace("_", " "), *(routes[route].get(name, "") for route in routes)) for name in counts]
        yield from _table("Audit", ("messages", *routes), rows)
    reader = told.report.get("reader", {})
    if reader:
        yield from _table("Reader", ("it saw", "count"), [(k, v) for k, v in reader.items() if k != "examples"])
    rows = [
        (bar.number, f"{bar.begin:.1f}", f"{bar.end - bar.begin:.1f}", bar.kind, bar.target, bar.how)
        for bar in told.bars
    ]
    yield from _table("Faults", ("n", "at, s", "lasted, s", "kind", "struck", "and"), rows)
    if told.missed:
        missed = [(kind, why, times) for (kind, why), times in sorted(told.missed.items())]
        yield from _table("What did not happen", ("kind", "why", "times"), missed)
    if told.anomalies:
        yield from _table("Anomalies", ("at, s", "what"), [(f"{at:.1f}", what) for at, what in told.anomalies])


def _table(title: str, names: Sequence[object], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield f"<h2>{escape(title)}</h2><div class=wide><table><thead><tr>"
    yield "".join(f"<th>{escape(str(name))}</th>" for name in names) + "</tr></thead><tbody>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>"
    yield "</tbody></table></div>"


def _x(at: float, end: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * at / end


_CLASSES: Final = {
    struck.value: struck.name.lower() for struck in dict.fromkeys(nature.struck for nature in NATURES.values())
}
_STYLE: Final = """
:root { color-scheme: light dark; --page: #fcfcfb; --ink: #1d1d1b; --soft: #5c5b57; --grid: #e3e2dd;
  --workers: #2a6fc9; --sources: #7a52b8; --brokers: #b8541a; --network: #12806a; --database: #a8327a;
  --l0: #8a8880; --l1: #2a6fc9; --l2: #b8541a; --l3: #12806a; --bad: #b3261e; --good: #1b7a3d; }
@media (prefers-color-scheme: dark) { :root { --page: #191918; --ink: #efeee9; --soft: #b3b1a9; --grid: #363531;
  --workers: #6aa6f0; --sources: #b79af0; --brokers: #f0945a; --network: #4cc3a6; --database: #ec7fbf;
  --l0: #a5a39b; --l1: #6aa6f0; --l2: #f0945a; --l3: #4cc3a6; --bad: #ff8a80; --good: #6fd08c; } }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 24px 16px 64px; }
h1 { font-size: 24px; } h2 { font-size: 17px; margin-top: 32px; }
svg { width: 100%; min-width: 820px; height: auto; }
main { overflow-x: auto; } .wide { overflow-x: auto; }
text { fill: var(--ink); font: 13px system-ui, sans-serif; } .tick { fill: var(--soft); font-size: 12px; }
.title { font-weight: 600; }
.grid { stroke: var(--grid); stroke-width: 1; } .anomaly { stroke: var(--bad); stroke-width: 2; }
.fault { fill: var(--soft); } .workers { fill: var(--workers); } .sources { fill: var(--sources); }
.brokers { fill: var(--brokers); } .network { fill: var(--network); } .database { fill: var(--database); }
.failed { stroke: var(--bad); stroke-width: 2; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke: var(--l3); }
.l0 { stroke: var(--l0); } .l1 { stroke: var(--l1); } .l2 { stroke: var(--l2); stroke-dasharray: 6 3; }
.bad { color: var(--bad); } .good { color: var(--good); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 3px 14px 3px 0; border-bottom: 1px solid var(--grid); vertical-align: top; }
th { color: var(--soft); font-weight: 600; }
"""
