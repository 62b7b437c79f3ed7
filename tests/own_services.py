"""Services of a test's own, in a directory of their own: settings that others must not meet, brokers that may be killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from relay.chaos.frame_proxy import FrameProxy
from relay.local.kafka import SMALL, BrokerSettings, ClusterPlan
from relay.local.ports import LOOPBACK, free_ports
from relay.local.services import LocalServices
from relay.message.errors import ConfigError, Unreachable


@contextmanager
def or_skipped() -> Iterator[None]:
    """Skip where no broker can be started here, or fail in CI."""
    try:
        yield
    except (ConfigError, Unreachable) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no local broker: {error}")


def further_port(plan: ClusterPlan) -> int:
    """Return a free port that the plan's broker does not have: what is drawn is not held, and may be drawn again."""
    (broker,) = plan.brokers
    return next(port for port in free_ports(4) if port not in (broker.port, broker.internal_port, broker.controller_port))


def further_listener(plan: ClusterPlan, name: str, protocol: str, port: int) -> dict[str, str]:
    """Return the settings of a single broker that listens on one more port, by another protocol."""
    (broker,) = plan.brokers
    ports = {"PLAINTEXT": broker.port, "INTERNAL": broker.internal_port, "CONTROLLER": broker.controller_port, name: port}
    listeners = {one: f"{one}://{LOOPBACK}:{number}" for one, number in ports.items()}
    return {
        "listeners": ",".join(listeners.values()),
        "advertised.listeners": ",".join(address for one, address in listeners.items() if one != "CONTROLLER"),
        "listener.security.protocol.map": ",".join(f"{one}:{protocol if one == name else 'PLAINTEXT'}" for one in ports),
    }


class ProxiedBroker(NamedTuple):
    """A broker by its own address, and the proxy whose address it names to whoever asks it there."""

    proxy: FrameProxy
    broker: str

    @classmethod
    def planned(cls) -> ProxiedBroker:
        """Make the proxy of a broker that is to be started as ``wanted`` says."""
        (port,) = free_ports(1)
        broker = f"{LOOPBACK}:{port}"
        return cls(FrameProxy(broker), broker)

    @property
    def wanted(self) -> dict[str, Any]:
        """What `LocalServices.up` is told."""
        return {"kafka_port": int(self.broker.rpartition(":")[2]), "advertise": self.proxy.address}


@contextmanager
def own_proxied_broker() -> Iterator[ProxiedBroker]:
    """Start a broker and its proxy."""
    planned = ProxiedBroker.planned()
    try:
        with own_brokers("proxied", **planned.wanted):
            yield planned
    finally:
        planned.proxy.close()


@contextmanager
def own_brokers(name: str, settings: BrokerSettings = SMALL, **wanted: Any) -> Iterator[LocalServices]:
    """Start brokers as `LocalServices.up` is told to, without a database; where none can be, skip, or fail in CI."""
    directory = Path(tempfile.mkdtemp(prefix=f"relay-{name}-"))
    try:
        with or_skipped():
            local = LocalServices.up(directory, postgres=False, settings=settings, **wanted)
        yield local
    finally:
        started = LocalServices.find(directory)
        if started is not None:
            started.down()
        shutil.rmtree(directory, ignore_errors=True)
