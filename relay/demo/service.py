"""The booking service as the demonstration runs it: it dies at planned steps, is started again, and ends cleanly once."""

from __future__ import annotations

import sys
from typing import Final

from relay.demo.bookings import ROLLED_BACK
from relay.demo.part import Part
from relay.demo.show import Show
from relay.demo.stage import Stage
from relay.world.crash import EXIT_STATUS, VARIABLE

CRASHES: Final = {
    "capture.decided": "between COMMIT and the outcome marker: what it had booked must show",
    "capture.appended": "between the log and COMMIT: what it had begun must never show",
}
PLAN: Final = (("capture.decided", 0.0), ("capture.appended", 0.01), ("capture.decided", 0.2))
"""Where each run crashes, and the share of the flights that is in the log before it starts."""


class BookingService:
    """One process after the other: those of the plan crash, each after a fifth of the bookings, the last does not."""

    def __init__(self, stage: Stage, target: int, seed: int, show: Show) -> None:
        self.crashes = 0
        self.rolled_back: set[str] = set()
        self.is_done = False
        self.part: Part | None = None
        self._stage = stage
        self._target = target
        self._seed = seed
        self._show = show
        self._plan: list[tuple[str | None, float]] = [*PLAN, (None, 1.0)]
        self._runs = 0

    def tend(self, flights: float, *, may_finish: bool) -> None:
        """Start what is due at this share of the flights and follow what ended; the last run waits for ``may_finish``."""
        if self.is_done:
            return
        if self.part is None:
            crash, least = self._plan[0]
            if may_finish if crash is None else flights >= least:
                self._start(crash)
            return
        code = self.part.ended()  # asked before its last lines are read
        self._listen(self.part)
        if code is None:
            return
        planned, _ = self._plan.pop(0)
        if code == EXIT_STATUS and planned is not None:
            self.crashes += 1
            self._show.say(f"the booking service crashed {CRASHES[planned]}")
        elif code != 0:
            raise self.part.complaint(f"The booking service ended with exit code {code}, which was not planned.")
        self.part = None
        self.is_done = not self._plan

    def end(self, grace_s: float) -> None:
        """End what runs."""
        if self.part is not None:
            self.part.end(grace_s)

    def _start(self, crash: str | None) -> None:
        command = [sys.executable, "-m", "relay.demo.bookings", str(self._stage.config.path)]
        command += ["--target", str(self._target), "--run", str(self._runs), "--seed", str(self._seed)]
        env = {VARIABLE: f"{crash}:{max(1, self._target // 5)}"} if crash else {}
        self.part = Part("the booking service", command, self._stage.log("bookings"), {**self._stage.env, **env})
        if self._runs:
            self._show.say("the booking service is started again" + ("" if crash else ", for the last time"))
        self._runs += 1

    def _listen(self, part: Part) -> None:
        for line in part.heard():
            if line.startswith(ROLLED_BACK):
                self.rolled_back.add(line.removeprefix(ROLLED_BACK))
