"""Connections between clients and the broker: bytes arrive in order or not at all, perhaps long after the client gave up.

A request on a connection that the client has closed may still arrive: that is how a stray EndTxn comes about. What
was sent before it on the same connection arrives before it; the answer is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError

from tests.simulation.scheduler import Process, World

Reply = Callable[[Any], None]
Handle = Callable[[Reply], None]
"""The broker's side of a request: it answers by calling the reply, now or later."""
Answered = Callable[[int, Any], None]
"""The client's side: an error code of the client (0: none) and the answer."""

RECONNECT_S: Final = (0.005, 0.06)
DELAY_S: Final = (0.0002, 0.003)


class Fate(NamedTuple):
    """What becomes of one request: ``late_s`` is None if it never arrives; ``cut`` if the connection is reset."""

    late_s: float | None = 0.0
    cut: bool = False
    answer_lost: bool = False


FINE: Final = Fate()


class Weather:
    """Draws the fate of each request; ``rates`` are the shares of requests of an API that meet a fault."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.rates: dict[str, float] = {}
        self.kinds: tuple[str, ...] = ("late", "held", "lost", "unanswered")
        self.late_s = (0.002, 4.0)
        self.on = True

    def fate(self, api: str) -> Fate:
        """Draw what becomes of one request of ``api``."""
        rate = self.rates.get(api, 0.0)
        if not self.on or not rate or self._rng.random() >= rate:
            return FINE
        kind = self._rng.choice(self.kinds)
        low, high = self.late_s
        late = low * (high / low) ** self._rng.random()
        if kind == "late":
            return Fate(late, cut=True)
        if kind == "held":
            return Fate(late * 3)
        if kind == "lost":
            return Fate(None, cut=True)
        return Fate(answer_lost=True)


class Network:
    """All connections of a world; a broker can be away for a while."""

    def __init__(self, world: World, weather: Weather, brokers: int = 1) -> None:
        self.world = world
        self.weather = weather
        self.reconnect_s = RECONNECT_S
        self.back_at = [0.0] * brokers
        self.cut_off: dict[str, float] = {}
        self.deaf: dict[str, float] = {}
        """Until when a process's membership of its groups goes unheard, though everything else works."""
        self._open: list[Connection] = []

    def connect(self, process: Process, role: str, broker: int = 0) -> Connection:
        """Make a client's connection to a broker in some role; it opens with the first request."""
        made = Connection(self, process, role, broker)
        self._open.append(made)
        return made

    def reset_all(self, process: str | None = None) -> None:
        """Reset every connection, or those of one process: what is under way may be lost or late."""
        for connection in self._open:
            if process is None or connection.process.name == process:
                connection.reset()

    def silence(self, process: str) -> None:
        """Every connection of a process falls silent: nothing arrives, nothing is refused, until a request times out."""
        self.world.trace(process, "connections fall silent")
        for connection in self._open:
            if connection.process.name == process:
                connection.fall_silent()

    def pause_broker(self, seconds: float, broker: int | None = None) -> None:
        """A broker, or every one, processes nothing for a while; what arrives meanwhile waits."""
        self.world.trace("broker paused", broker, round(seconds, 3))
        for number in range(len(self.back_at)) if broker is None else (broker,):
            self.back_at[number] = max(self.back_at[number], self.world.now + seconds)

    def is_paused(self, broker: int) -> bool:
        """Does this broker stand still?"""
        return self.back_at[broker] > self.world.now

    def heal(self) -> None:
        """Everything reaches everything from now on."""
        self.weather.on = False
        self.cut_off.clear()
        self.deaf.clear()
        self.back_at = [min(at, self.world.now) for at in self.back_at]

    def is_cut_off(self, process: Process) -> bool:
        """Can the process reach nothing at present?"""
        return self.cut_off.get(process.name, 0.0) > self.world.now


class Connection:
    """One connection of one client instance; ``request`` never blocks."""

    def __init__(self, network: Network, process: Process, role: str, broker: int) -> None:
        self.process = process
        self.role = role
        self.broker = broker
        self.resets = 0
        self._network = network
        self._world = network.world
        self._life = 0
        self._broken_life = -1
        self._silent_life = -1
        self._ready_at = 0.0
        self._last_arrival = 0.0
        self._lag_s = network.world.rng.uniform(0.0, 0.05)
        self._resumed_at: dict[int, float] = {}
        self._waiting: dict[int, Answered] = {}
        self._number = 0

    def request(self, api: str, handle: Handle, answered: Answered, timeout_s: float) -> None:
        """Send a request; ``answered`` is called once, in the process's background."""
        world = self._world
        rng = world.rng
        self._number += 1
        number = self._number
        self._waiting[number] = answered
        life = self._life
        fate = self._network.weather.fate(api)
        if fate is not FINE:
            world.trace(self.process.name, "fate of", api, *fate)
        if self._broken_life == life:
            fate = Fate(None)
        if fate.late_s is None:
            self._broken_life = life  # bytes behind a gap never arrive either
        self.process.at(timeout_s, self._time_out, number)
        if fate.late_s is not None:
            # A cut-off process's bytes are sent again and again, and arrive when the network is whole.
            cut_to = self._network.cut_off.get(self.process.name, 0.0)
            if self.role == "membership":
                cut_to = max(cut_to, self._network.deaf.get(self.process.name, 0.0))
            arrival = max(world.now, self._ready_at, self._last_arrival, cut_to) + rng.uniform(*DELAY_S) + fate.late_s
            self._last_arrival = arrival
            world.at(arrival - world.now, self._arrive, api, handle, number, life, fate.answer_lost)
        if fate.cut:
            world.at(rng.uniform(*DELAY_S), self.reset, life)

    def reset(self, life: int | None = None) -> None:
        """Close from outside: whatever has no answer yet fails with a transport error; the next request reconnects."""
        if life is not None and life != self._life:
            return
        self._close(KafkaError._TRANSPORT)

    def fall_silent(self) -> None:
        """Neither what is sent from now on arrives nor any answer; the client learns it by its own time limits."""
        self._broken_life = self._silent_life = self._life

    def _close(self, code: int) -> None:
        self._life += 1
        self.resets += 1
        self._ready_at = self._world.now + self._world.rng.uniform(*self._network.reconnect_s)
        self._last_arrival = 0.0
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            self.process.at(self._world.rng.uniform(*DELAY_S), answered, code, None)

    def _time_out(self, number: int) -> None:
        """As librdkafka: a request that times out closes its connection, with all others on it."""
        if number in self._waiting:
            self._world.trace(self.process.name, self.role, "request timed out")
            self._close(KafkaError._TIMED_OUT)

    def _arrive(
        self, api: str, handle: Handle, number: int, life: int, answer_lost: bool, waited: bool = False
    ) -> None:
        resumed_at = self._resumed_at.get(life, 0.0)
        if self._network.is_paused(self.broker) or (not waited and self._world.now <= resumed_at):
            # In the order of this connection, also for what comes right after a pause; in any order among connections.
            resumed_at = max(resumed_at + 1e-6, self._network.back_at[self.broker] + self._lag_s)
            self._resumed_at[life] = resumed_at
            self._world.at(
                resumed_at - self._world.now, self._arrive, api, handle, number, life, answer_lost, True
            )
            return
        if life != self._life:
            self._world.trace(self.process.name, "stray", api)

        def reply(answer: Any) -> None:
            if answer_lost:
                self._world.at(self._world.rng.uniform(*DELAY_S), self.reset, life)
            else:
                self.process.at(self._world.rng.uniform(*DELAY_S), self._answer, number, life, answer)

        handle(reply)

    def _answer(self, number: int, life: int, answer: Any) -> None:
        if life != self._life or life == self._silent_life:
            return
        answered = self._waiting.pop(number, None)
        if answered is not None:
            answered(0, answer)
