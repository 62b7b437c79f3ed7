"""The crew: the supervisor of the relay's workers, heard through its log; and the kills, each followed until it is over."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from typing import Any, Final

from relay.control.status import RouteView, State
from relay.demo.part import Part, events
from relay.demo.show import Show
from relay.demo.stage import Stage

WORKERS: Final = 2
STOP_GRACE_S: Final = 40.0
Seat = tuple[str, int]
"""A route and the number of one of its workers."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A worker process that was killed."""

    seat: Seat
    pid: int


class Crew:
    """Two workers per route under ``relay run``."""

    def __init__(self, stage: Stage, show: Show) -> None:
        self.kills: list[Kill] = []
        self._show = show
        self._pids: dict[Seat, int] = {}
        self._running: set[Seat] = set()
        self.part = start(stage)

    def tend(self) -> None:
        """Hear what happened; raises CheckFailed if a route stopped for good."""
        code = self.part.ended()
        for event in events(self.part.heard()):
            if event.get("level") == "error":
                raise self.part.complaint(f"The relay stopped: {event['event']}.")
            if isinstance(event.get("worker"), int):
                self._follow((str(event.get("route")), event["worker"]), event)
        if code is not None:
            raise self.part.complaint(f"The supervisor ended by itself with exit code {code}.")

    def kill(self, route: RouteView) -> bool:
        """SIGKILL a worker of the route that owns partitions; False if none is known to at the moment."""
        for worker in route.workers:
            seat = (route.name, int(worker.worker.rpartition(".")[2]))
            lives = worker.state not in (State.GONE, State.STOPPED) and self._pids.get(seat) == worker.pid
            if lives and worker.partitions and seat in self._running:
                os.kill(worker.pid, signal.SIGKILL)
                self.kills.append(Kill(seat, worker.pid))
                self._running.discard(seat)
                self._show.say(
                    f"killed worker {seat[1]} of {route.name} (pid {worker.pid}) with {worker.partitions} partitions"
                )
                return True
        return False

    def killed(self, route: str) -> bool:
        """Was a worker of the route killed?"""
        return any(kill.seat[0] == route for kill in self.kills)

    def absent(self) -> list[Seat]:
        """Return the killed workers that are not back yet."""
        return [
            kill.seat
            for kill in self.kills
            if kill.seat not in self._running or self._pids.get(kill.seat) == kill.pid
        ]

    def stop(self) -> None:
        """Let the workers finish what they have begun; raises CheckFailed if one cannot."""
        code = self.part.end(STOP_GRACE_S)
        if code != 0:
            raise self.part.complaint(
                f"The relay was asked to drain within {STOP_GRACE_S:g} s and ended with exit code {code}."
            )

    def _follow(self, seat: Seat, event: dict[str, Any]) -> None:
        if event["event"] == "started":
            self._pids[seat] = int(event["pid"])
            self._running.discard(seat)
        elif event["event"] == "running":
            if seat in self.absent():
                self._show.say(f"worker {seat[1]} of {seat[0]} is back (pid {self._pids[seat]})")
            self._running.add(seat)


def start(stage: Stage) -> Part:
    """Start the supervisor."""
    command = [sys.executable, "-m", "relay.cli.main", "run", str(stage.config.path)]
    command += ["--workers", str(WORKERS), "--json"]
    return Part("the relay", command, stage.log("relay"), stage.env)
