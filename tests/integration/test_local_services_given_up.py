"""`relay dev up` that fails, or is interrupted: what it has started is stopped again, and what ran before goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relay.cli.dev import app
from relay.local import services
from relay.local.java import JavaMissingError, find_java
from relay.local.kafka import SMALL, KafkaCluster
from relay.local.postgres import PostgresServer
from relay.local.services import LocalServices
from relay.message.errors import Unreachable
from tests.inherited_signals import inheriting

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

if not os.environ.get("CI"):
    try:
        find_java()
    except JavaMissingError as error:
        pytest.skip(str(error), allow_module_level=True)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A folder that PostgreSQL's account may reach; whatever runs in it is stopped afterwards."""
    path = Path(tempfile.mkdtemp(prefix="relay-services-"))
    yield path
    if (started := LocalServices.find(path)) is not None:
        started.down()
    shutil.rmtree(path)


def up(directory: Path, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["up", "--dir", str(directory), *words])
    return result.exit_code, result.stderr


def cluster_of(directory: Path) -> KafkaCluster:
    found = KafkaCluster.find(directory / "kafka", SMALL)
    assert found is not None
    return found


def wait_until(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.02)


def ends_while_starting(monkeypatch: pytest.MonkeyPatch, node_id: int) -> None:
    """Let one broker fail by itself, as behind its first words, when everything has been started."""
    wait = KafkaCluster.wait_until_ready

    def fails(cluster: KafkaCluster) -> None:
        cluster.kill(node_id)
        wait(cluster)

    monkeypatch.setattr(KafkaCluster, "wait_until_ready", fails)


def test_where_a_broker_fails_the_others_and_postgres_are_stopped_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends_while_starting(monkeypatch, 2)

    code, said = up(directory, "--brokers", "2")

    assert (code, "Broker 2 ended while starting" in said) == (1, True)
    assert "Stopped again, since not all of it came up: broker 1, PostgreSQL" in said
    assert cluster_of(directory).process(1) is None
    assert not PostgresServer(directory / "postgres").is_running()


def test_where_a_broker_fails_what_ran_before_goes_on(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LocalServices.up(directory, brokers=2, settings=SMALL)
    cluster, server = cluster_of(directory), PostgresServer(directory / "postgres")
    ran = cluster.process(1), server.process()
    cluster.kill(2)
    ends_while_starting(monkeypatch, 2)

    code, said = up(directory, "--brokers", "2")

    assert (code, "Broker 2 ended while starting" in said, "Stopped again" in said) == (1, True, False)
    assert (cluster.process(1), server.process()) == ran


def test_interrupted_it_leaves_nothing_behind(directory: Path) -> None:
    words = [sys.executable, "-m", "relay", "dev", "up", "--dir", str(directory), "--no-postgres"]
    with inheriting(signal.SIGINT, signal.default_int_handler):
        starting = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    with starting:
        log = directory / "kafka" / "1" / "broker.log"
        wait_until(lambda: log.exists() and log.stat().st_size > 0)  # before that it ends what it starts without a word
        starting.send_signal(signal.SIGINT)
        _, said = starting.communicate(timeout=60)

    assert starting.returncode == 130
    assert "Stopped again, since not all of it came up: broker 1" in said
    assert cluster_of(directory).process(1) is None


def test_a_broker_that_is_only_late_goes_on(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(_: KafkaCluster) -> None:
        raise Unreachable("Kafka named 0 of 1 brokers after 60 s")

    with monkeypatch.context() as patch:
        patch.setattr(services.KafkaCluster, "wait_until_ready", late)
        assert up(directory, "--no-postgres") == (3, "relay dev: Kafka named 0 of 1 brokers after 60 s\n")
    started = cluster_of(directory).process(1)

    assert started is not None
    assert up(directory, "--no-postgres")[0] == 0
    assert cluster_of(directory).process(1) == started
