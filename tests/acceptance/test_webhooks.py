"""Effects behind HTTP (design.md, section 6): once where the receiver knows a key again, at least once where it does not.

Worker processes are killed at random, and the receiver cuts connections after the effect, fails and is busy meanwhile.
"""

from __future__ import annotations

import random
import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from relay.queue.states import SubscriberState
from tests.integration.receiver import Asked, Receiver, Reply
from tests.integration.work_site import Site, lent_site
from tests.routes import Worker, wait_for

MESSAGES = 400
LANES = 23
KILLS = 6
DEADLINE_S = 120.0
APP = """
from relay.work.webhook import webhook

send = webhook("orders", "{url}", timeout_s=60)
"""


def misbehaving() -> Callable[[Asked], Reply]:
    """Return how to answer. At the first try of some: the connection is cut behind the effect, or there is none."""
    met: set[int] = set()  # by what was sent, not by its key: that is to be tested
    return lambda asked: _reply(int(asked.body), met)


def _reply(number: int, met: set[int]) -> Reply:
    if number in met or number % 5:
        return Reply()
    met.add(number)
    if number % 3 == 0:
        return Reply(0)
    return Reply(500, takes_effect=False) if number % 2 else Reply(503, {"retry-after": "1"}, takes_effect=False)


def kill_at_random(site: Site, app: Path, receiver: Receiver, seed: int) -> None:
    """Let two workers call the receiver, and kill one of them after some calls, again and again."""
    chance = random.Random(seed)

    def born() -> Worker:
        return site.work(app, "--concurrency", "8")

    alive = [born(), born()]
    for _ in range(KILLS):
        wanted = min(len(receiver.asked) + chance.randrange(1, 2 * MESSAGES // (KILLS + 2)), MESSAGES)
        wait_for(lambda wanted=wanted: len(receiver.asked) >= wanted, DEADLINE_S, f"{wanted} calls")  # type: ignore[misc]
        killed = chance.randrange(2)
        alive[killed].send_signal(signal.SIGKILL)
        assert alive[killed].wait(DEADLINE_S) == -signal.SIGKILL
        alive[killed] = born()
    wait_for(lambda: site.states() == {SubscriberState.JOURNALLED: MESSAGES}, DEADLINE_S, "the end of all messages")
    for process in alive:
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


@pytest.mark.timeout(600)
def test_workers_killed_at_random_have_each_effect_once_in_its_lanes_order_where_the_receiver_knows_keys(
    tmp_path: Path, kafka: str, kafka_admin: AdminClient
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    with Receiver(misbehaving()) as receiver, lent_site(tmp_path, kafka, kafka_admin, url, extra="tries = 1000") as site:
        site.put(range(MESSAGES), lanes=LANES)

        kill_at_random(site, site.app(APP.format(url=receiver.url())), receiver, 1)

    effects = [int(body) for body in receiver.effects]
    assert sorted(effects) == list(range(MESSAGES))
    lanes: dict[int, list[int]] = defaultdict(list)
    for number in effects:
        lanes[number % LANES].append(number)
    assert all(numbers == sorted(numbers) for numbers in lanes.values())
    # What knows no key has every effect, and some twice: those whose connection was cut at the least.
    assert {int(body) for body in receiver.repeated} == set(range(MESSAGES))
    assert len(receiver.repeated) > MESSAGES
