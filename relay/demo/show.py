"""What a person sees: bars and announcements while it runs, plain lines where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from relay.world import clock

LINE_PERIOD_S: Final = 5.0
_RELAYED: Final = "relayed by {}"


@dataclass(frozen=True, slots=True)
class Sight:
    """How far everything is, in messages; ``relayed`` by route."""

    flights: int
    flights_wanted: int
    booked: int
    bookings_wanted: int
    relayed: Mapping[str, int] = field(default_factory=dict)

    def bars(self) -> Iterator[tuple[str, int, int]]:
        """Yield description, done and total of each bar."""
        yield "flights in the log (Spark)", min(self.flights, self.flights_wanted), self.flights_wanted
        yield "seats booked (database)", self.booked, max(self.booked, self.bookings_wanted)
        for route, done in self.relayed.items():
            yield _RELAYED.format(route), done, self.flights_wanted + max(self.booked, self.bookings_wanted)


class Show:
    """Tells what happens; ``bars`` are shown on a terminal only."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = clock.monotonic()
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._line_at = 0.0

    @contextmanager
    def bars(self) -> Iterator[None]:
        """Keep bars below what is said until the block is left."""
        if not self._console.is_terminal:
            yield
            return
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        )  # fmt: skip
        self._tasks.clear()
        with Progress(*columns, console=self._console) as self._progress:
            try:
                yield
            finally:
                self._progress.refresh()
        self._progress = None

    def say(self, sentence: str) -> None:
        """Announce something as it happens, with the seconds since the beginning."""
        at = clock.monotonic() - self._began
        self._console.print(f"{at:6.1f} s  {sentence}", markup=False, highlight=False, soft_wrap=True)

    def sight(self, sight: Sight) -> None:
        """Show how far everything is."""
        if self._progress is not None:
            for name, done, total in sight.bars():
                self.bar(name, done, total)
            return
        now = clock.monotonic()
        if now >= self._line_at:
            self._line_at = now + LINE_PERIOD_S
            self.say(", ".join(f"{name} {done:,} of {total:,}" for name, done, total in sight.bars()))

    def bar(self, name: str, done: int, total: int) -> None:
        """Move one bar."""
        if self._progress is None:
            return
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total)
        self._progress.update(self._tasks[name], completed=done, total=total)
