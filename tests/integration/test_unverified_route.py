"""A topic route on a broker that does not verify the partitions of transactions: what comes late is of a former epoch.

The strays are those of ``test_sealed_route``, at the same moments. There the broker's verification, or the missing seal,
tells of them; here they are refused, since every transaction has a client of its own.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from relay.chaos.frame_proxy import Request
from relay.setup.check_topics import VERIFICATION
from tests.cluster_changes import set_brokers
from tests.contracts.kafka_contract import FENCED
from tests.integration.conftest import Proxied
from tests.integration.test_sealed_route import MOMENTS, Proxy, started


@pytest.fixture
def unverified(proxied: Proxied, tmp_path: Path) -> Iterator[Proxy]:
    admin = AdminClient({"bootstrap.servers": proxied.kafka})
    set_brokers(admin, VERIFICATION, "false")
    made = Proxy(proxied, tmp_path, 1)
    made.route.say('partition_verification = "absent"')
    yield made
    made.route.stop()
    set_brokers(admin, VERIFICATION, "true")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_stray_commit_before_any_step_is_refused(unverified: Proxy, moment: str) -> None:
    held = started(unverified)
    landed: list[int] = []

    def land(_: Request) -> None:
        landed.append(held.release_end_txn())

    rule = unverified.at.proxy.before(MOMENTS[moment](unverified), land)
    unverified.publish()
    rule.wait(30)
    unverified.wait_until_committed()
    unverified.settle()

    assert landed[0] in FENCED
    assert unverified.found() == ([], [], True)
    assert '"event":"recovering"' not in unverified.route.said(), unverified.route.said()


@pytest.mark.slow
def test_killed_and_begun_anew_it_goes_on_without_loss_or_repeat(unverified: Proxy) -> None:
    for _ in range(3):
        worker = unverified.route.start()
        unverified.publish()
        unverified.wait_until_committed()
        unverified.publish()
        worker.send_signal(signal.SIGKILL)
        worker.wait(10)
    unverified.route.start()
    unverified.wait_until_committed()
    unverified.settle()

    assert unverified.found() == ([], [], True)
