"""The simulated network keeps what TCP keeps: bytes of one connection arrive in the order in which they were sent."""

from __future__ import annotations

import pytest

from tests.simulation.network import Network, Weather
from tests.simulation.scheduler import World

PAUSED_FROM, PAUSED_S = 1.0, 1.0


@pytest.mark.parametrize("seed", range(5))
def test_what_is_sent_right_after_a_pause_does_not_overtake_what_waited(seed: int) -> None:
    world = World(seed)
    network = Network(world, Weather(world.rng))
    connection = network.connect(world.process("client"), "leader")
    arrived: list[int] = []

    def send(number: int) -> None:
        connection.request("Produce", lambda _reply: arrived.append(number), lambda *_: None, 60.0)

    world.at(PAUSED_FROM, network.pause_broker, PAUSED_S)
    sent = [PAUSED_FROM + 0.1, *(PAUSED_FROM + PAUSED_S + step * 0.002 for step in range(-5, 40))]
    for number, at in enumerate(sent):
        world.at(at, send, number)
    world.run(50.0)
    assert arrived == list(range(len(sent)))
