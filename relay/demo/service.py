"""The booking service as the demonstration runs it: it dies at planned steps, is started again, and ends cleanly once."""

from __future__ import annotations

import sys
from typing import Final

from relay.demo.bookings import ROLLED_BACK
from relay.demo.part import Part
from relay.demo.show import Show
from relay.demo.stage import Stage
from relay.run.crash import EXIT_STATUS, VARIABLE

CRASHES: Final = {
    "capture.decided": "between COMMIT and the outcome marker: what it had booked must show",
    "capture.appended": "between the log and COMMIT: what it had begun must never show",
}
PLAN: Final = ("capture.decided", "capture.appended", "capture.decided")


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
        self._plan = [*PLAN, None]
        self._runs = 0

    def tend(self, *, may_finish: bool) -> None:
        """Start what is due and follow what ended; the last run waits until ``may_finish``."""
        if self.is_done:
            return
        if self.part is None:
            if self._plan[0] is not None or may_finish:
                self._start(self._plan[0])
            return
        code = self.part.ended()  # asked before its last lines are read
        self._listen(self.part)
        if code is None:
            return
        planned = self._plan.pop(0)
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
