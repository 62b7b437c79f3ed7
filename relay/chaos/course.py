"""The course of the accidents: each begins when the plan says so, in a thread of its own, and its fate is written down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from relay.chaos.faults import Deed, Missed
from relay.chaos.history import History
from relay.chaos.nemesis import NATURES, Fault, Kind
from relay.world import clock, schedule

LOOK_S: Final = 0.1
LAST_DEED_S: Final = 240.0

Say = Callable[[str], None]


class Course:
    """Begins what is due; ``faults`` counts what really happened, ``complaints`` what could not be undone."""

    def __init__(self, plan: Sequence[Fault], deeds: Mapping[Kind, Deed], history: History, say: Say) -> None:
        self.faults: Counter[str] = Counter()
        self.missed = 0
        self.complaints: list[str] = []
        self._left = list(plan)
        self._deeds = deeds
        self._history = history
        self._say = say
        self._threads: list[schedule.Thread] = []

    def run(self, seconds: float, tend: Callable[[], None]) -> None:
        """Let so many seconds pass; ``tend`` is called again and again."""
        began = clock.monotonic()
        number = 0
        while (now := clock.monotonic() - began) < seconds:
            tend()
            while self._left and self._left[0].at_s <= now:
                fault = self._left.pop(0)
                number += 1
                deed = schedule.start_thread(f"fault-{number}", lambda n=number, f=fault: self._strike(n, f))  # type: ignore[misc]
                self._threads.append(deed)
            clock.sleep(LOOK_S)

    def finish(self, tend: Callable[[], None]) -> None:
        """Wait until every accident has undone itself."""
        limit = clock.monotonic() + LAST_DEED_S
        while any(thread.is_alive() for thread in self._threads):
            tend()
            if clock.monotonic() > limit:
                self.complaints.append(f"an accident did not undo itself within {LAST_DEED_S:g} s")
                return
            clock.sleep(LOOK_S)

    def _strike(self, number: int, fault: Fault) -> None:
        kind = fault.kind.value
        told = {"n": number, "kind": kind, "struck": NATURES[fault.kind].struck.value}
        target: list[str] = []

        def begin(name: str) -> None:
            target.append(name)
            self.faults[kind] += 1
            self._history.tell("fault", phase="begin", target=name, **told)
            self._say(f"{kind}: {name}")

        try:
            how = self._deeds[fault.kind](fault, begin)
        except Missed as missed:
            self.missed += 1
            self._history.tell("fault", phase="missed", target="", how=str(missed), **told)
        except Exception as error:  # noqa: BLE001 - whatever it is, a run in which it was swallowed would be called clean
            # Stop counting on this run: something of the stage, not of the relay, does not come back.
            self.complaints.append(f"{kind} ({', '.join(target)}) could not be undone: {error}")
            self._history.tell("fault", phase="failed", target=", ".join(target), how=str(error), **told)
        else:
            self._history.tell("fault", phase="end", target=", ".join(target), how=how, **told)
