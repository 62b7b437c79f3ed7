"""A password for the brokers that changes in its file, under processes that go on: each of their clients takes it by itself."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relay import Capture, CaptureError
from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.kafka import settings
from relay.kafka.groups import Groups
from relay.kafka.inquiries import InquiryReader
from relay.kafka.reading import PartitionReader
from relay.kafka.topics import Topics
from relay.message.errors import ConfigError, RelayError, Unreachable
from relay.message.record import LogPartition
from relay.resources import open_resource
from relay.run.following import control_records, control_topic
from relay.world import clock
from tests.integration.secured_site import (
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    READ,
    TOPIC,
    TRANSACTION,
    WRITE,
    Secured,
    rights,
    secured_broker,
)
from tests.own_services import or_skipped
from tests.routes import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]

SHOWN_EVERY_S = 8.0
"""Brokers want to see the password again so often, so that open connections do not outlive it for long."""
WAIT_S = 120.0
SITE = """
[relay]
name = "shop"
instance = "test"
state = "state"
partition_verification = "assured"
[kafka]
{kafka}
[resources.shop]
url = "sqlite:///shop.db"
[routes.main]
from = ["orders"]
to = {{ topic = "out" }}
"""


class Changing:
    """A user of the brokers whose password lies in a file that a configuration names."""

    def __init__(self, secured: Secured, folder: Path) -> None:
        self.secured = secured
        self.file = folder / "password"
        self.path = folder / "relay.toml"
        self.said = folder / "run.log"
        self.path.write_text(SITE.format(kafka=f'"bootstrap.servers" = "{secured.kafka}"'))

    @property
    def config(self) -> RelayConfig:
        return load(self.path)

    def says(self, password: str) -> None:
        self.file.with_suffix(".new").write_text(password + "\n")
        self.file.with_suffix(".new").chmod(0o600)
        self.file.with_suffix(".new").replace(self.file)

    def change(self, password: str) -> None:
        self.secured.change("ann", password)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "relay", *words], check=False, capture_output=True, text=True, timeout=WAIT_S)


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Changing]:
    with or_skipped(), secured_broker(SHOWN_EVERY_S) as secured:
        made = Changing(secured, tmp_path)
        secured.topics("orders", "out")
        found = made.command("migrate", str(made.path))
        assert found.returncode == 0, found.stderr
        lines = secured.settings("ann").replace("canary-of-ann", "${file:password}")
        made.path.write_text(SITE.format(kafka=lines))
        made.says("canary-one")
        secured.change("ann", "canary-one")
        every_topic = rights(TOPIC, ["orders", "out", "shop.*"], READ, WRITE, DESCRIBE, DESCRIBE_CONFIGS)
        secured.grant("ann", *every_topic, *rights(GROUP, "shop.*", READ), *rights(TRANSACTION, "shop.*", WRITE, DESCRIBE))
        yield made


class Service:
    """Captures one message after the other; ``captured`` are those of the blocks that committed, ``failures`` what the others raised."""

    def __init__(self, path: Path) -> None:
        self.captured: list[str] = []
        self.failures: list[str] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(path,))
        self._thread.start()

    def _run(self, path: Path) -> None:
        number = 0
        with Capture.open(path, resource="shop", source="/ann") as capture:
            while not self._done.wait(0.02):
                number += 1
                try:
                    with capture.transaction() as tx:
                        tx.execute("insert into made (id) values (?)", (number,))
                        tx.publish("orders", b"x", id=str(number))
                except (CaptureError, Unreachable, ConfigError) as error:
                    self.failures.append(str(error))
                else:
                    self.captured.append(str(number))

    def goes_on(self) -> None:
        """Wait for what it captures now."""
        least = len(self.captured) + 5
        wait_for(lambda: len(self.captured) >= least, WAIT_S, "further captures", lambda: str(self.failures[-1:]))

    def fails(self) -> str:
        """Return why a block fails now."""
        known = len(self.failures)
        wait_for(lambda: len(self.failures) > known, WAIT_S, "a block that fails")
        return self.failures[-1]

    def stop(self) -> None:
        self._done.set()
        self._thread.join(WAIT_S)


def test_a_service_and_its_relay_go_on_with_the_new_password(changing: Changing) -> None:
    """Each kept what it had begun with until somebody started it again."""
    folder = changing.path.parent
    open_resource("shop", f"sqlite:///{folder}/shop.db")
    with sqlite3.connect(folder / "shop.db") as made:
        made.execute("create table made (id integer primary key)")
    with changing.said.open("w") as log:
        relay = subprocess.Popen([sys.executable, "-m", "relay", "run", str(changing.path)], stdout=log, stderr=log)
    service = Service(changing.path)
    try:
        service.goes_on()

        changing.change("canary-two")  # at the brokers first
        assert f"kafka.sasl.password from {changing.file}" in service.fails()
        changing.says("canary-two")
        service.goes_on()

        changing.says("canary-three")  # in the file first: who has to show it just then is refused until the brokers know it
        changing.change("canary-three")
        time.sleep(SHOWN_EVERY_S)  # the connections that are open go by the former one for so long
        service.goes_on()

        changing.says("canary-wrong")  # a wrong file for a while
        changing.change("canary-four")
        service.fails()
        time.sleep(SHOWN_EVERY_S)
        changing.says("canary-four")
        service.goes_on()

        changing.says("canary-five")  # brokers that come back with another one
        changing.change("canary-five")
        changing.secured.cluster.stop()
        changing.secured.cluster.start()
        service.goes_on()
    finally:
        service.stop()
        relay.terminate()
        relay.wait(WAIT_S)
    found = changing.command("run", str(changing.path), "--until-idle", "3s")
    assert found.returncode == 0, found.stderr[-2000:]
    verified = changing.command("verify", str(changing.path))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    with sqlite3.connect(folder / "shop.db") as made:
        assert {str(number) for (number,) in made.execute("select id from made")} == set(service.captured)
    told = "\n".join([changing.said.read_text(), found.stdout, found.stderr, verified.stdout, *service.failures])
    assert "canary" not in told


def test_every_client_that_stays_takes_the_new_password(changing: Changing) -> None:
    config, place = changing.config, LogPartition("orders", 0)
    control, following = control_topic(config), control_records(config)
    groups, topics = Groups(config.kafka, config.timing, 5), Topics(config.kafka, config.timing, 5)
    inquiries = InquiryReader(config.kafka, config.timing, config.inquiries_topic)
    given = settings.consumer(config.kafka, config.timing, "shop.reader", log_level=0)
    reader = PartitionReader(given, committed=False, clock=clock.monotonic, deadline_s=5)
    written = 0

    def followed() -> bool:
        nonlocal written
        written += 1
        control.put(b"test", b"%d" % written, wait=True)
        return (b"test", b"%d" % written) in following.to_end()

    def read() -> bool:
        return isinstance(inquiries.poll(), list) and reader.watermarks(place)[0] == 0

    asked: dict[str, Callable[[], object]] = {
        "control": followed,
        "groups": lambda: groups.committed("shop.main", [place]) is not None,
        "topics": lambda: topics.describe(["orders"]),
        "inquiries and partitions": read,
    }

    def answers(name: str) -> bool:
        try:
            return bool(asked[name]())
        except RelayError:
            return False

    for password in ("canary-one", "canary-two"):
        changing.change(password)
        if password != "canary-one":
            for name in asked:
                wait_for(lambda name=name: not answers(name), WAIT_S, f"{name}: to be refused")
        changing.says(password)
        for name in asked:
            wait_for(lambda name=name: answers(name), WAIT_S, f"{name}: an answer with {password}")
    for one in (control, following, groups, topics, inquiries, reader):
        one.close()
