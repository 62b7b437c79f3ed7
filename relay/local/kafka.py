"""KRaft brokers on the loopback interface that outlive their starter and are found again by their directory."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from relay.kafka.probe import wait_for_brokers
from relay.local.jars import KAFKA_VERSION, Tell, kafka_jars
from relay.local.java import BRIEF_JVM, find_java
from relay.local.ports import LOOPBACK, free_ports, is_free
from relay.local.process import RecordedProcess, keep, read_kept
from relay.message.errors import CheckFailed, ConfigError, Unreachable

START_TIMEOUT_S = 60.0
FORMAT_TIMEOUT_S = 60.0
STOP_GRACE_S = 20.0
PORT_MAX = 65535
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")


@dataclass(frozen=True)
class BrokerSettings:
    """What may differ between brokers for tests, development and measurements.

    ``heap`` is the JVM's maximum heap. The default flags keep full tiered compilation, which serves fastest in the long run.
    ``properties`` override or add to the broker's own.
    """

    heap: str = "768m"
    jvm_flags: tuple[str, ...] = ("-XX:+UseSerialGC",)
    properties: Mapping[str, str] = field(default_factory=dict)


SMALL: Final = BrokerSettings("256m", BRIEF_JVM)
"""Ready sooner, with four tenths less processor time: for brokers that live for minutes, where a second compiler never pays."""
BRIEF: Final = BrokerSettings(jvm_flags=BRIEF_JVM)
"""The same with room for a whole demonstration or suite."""


@dataclass(frozen=True)
class BrokerPlan:
    """Where one broker listens; ``advertised`` is what it tells clients, perhaps a proxy's address."""

    node_id: int
    port: int
    internal_port: int
    controller_port: int
    advertised: str

    @property
    def listener(self) -> str:
        """The address the broker itself listens on for clients."""
        return f"{LOOPBACK}:{self.port}"


@dataclass(frozen=True)
class ClusterPlan:
    """All brokers of one directory; kept in ``cluster.json`` so that a restart uses the same addresses and the same Kafka."""

    cluster_id: str
    brokers: tuple[BrokerPlan, ...]
    version: str = KAFKA_VERSION

    @classmethod
    def new(cls, count: int, port: int | None, advertise: str | None, version: str = KAFKA_VERSION) -> ClusterPlan:
        """Plan ``count`` brokers; ``port`` and ``advertise`` are the first one's, the others count up from it."""
        if port is not None and port + count - 1 > PORT_MAX:
            raise ConfigError(f"--kafka-port {port} leaves no port for {count} brokers: give {PORT_MAX - count + 1} or less.")
        given = () if port is None else range(port, port + count)
        free = [one for one in free_ports(3 * count + len(given)) if one not in given]
        brokers = []
        for index in range(count):
            own, internal, controller = free[3 * index : 3 * index + 3]
            own = own if port is None else port + index
            advertised = f"{LOOPBACK}:{own}" if advertise is None else _shifted(advertise, index)
            brokers.append(BrokerPlan(index + 1, own, internal, controller, advertised))
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if cluster_id.startswith("-"):  # the storage tool would take it for an option
            cluster_id = "A" + cluster_id[1:]
        return cls(cluster_id, tuple(brokers), version)

    @classmethod
    def read(cls, path: Path) -> ClusterPlan | None:
        """Return the plan kept at ``path``, or None when there is none."""
        if not path.exists():
            return None
        kept = read_kept(path)
        if kept is None:
            raise CheckFailed(f"{path} cannot be read: it names the cluster of that directory. Start from another one.")
        brokers = tuple(BrokerPlan(**broker) for broker in kept["brokers"])
        return cls(kept["cluster_id"], brokers, kept.get("version", KAFKA_VERSION))

    def write(self, path: Path) -> None:
        """Keep the plan at ``path``, whole or not at all."""
        keep(path, asdict(self))


def _shifted(address: str, by: int) -> str:
    host, _, port = address.rpartition(":")
    if not _HOST.fullmatch(host) or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) + by <= PORT_MAX:
        raise ConfigError(f"--advertise {address!r} is not HOST:PORT with a port from 1 to 65535.")
    return f"{host}:{int(port) + by}"


class KafkaCluster:
    """The brokers of one directory: start, stop, crash, and find again from another process."""

    def __init__(self, directory: Path, plan: ClusterPlan, settings: BrokerSettings | None = None) -> None:
        self.directory = directory
        self.plan = plan
        self.settings = settings or BrokerSettings()

    @classmethod
    def find(cls, directory: Path, settings: BrokerSettings | None = None) -> KafkaCluster | None:
        """Return the cluster planned in ``directory``, running or not; None when there never was one."""
        plan = ClusterPlan.read(directory / "cluster.json")
        return None if plan is None else cls(directory, plan, settings)

    @property
    def bootstrap(self) -> str:
        """``bootstrap.servers`` naming every broker's own listener (not the advertised address)."""
        return ",".join(broker.listener for broker in self.plan.brokers)

    def is_running(self) -> bool:
        """Tell whether every broker's process is alive."""
        return all(self.process(broker.node_id) is not None for broker in self.plan.brokers)

    def process(self, node_id: int) -> RecordedProcess | None:
        """Return the live process of a broker, or None."""
        path = self._home(node_id) / "process.json"
        recorded = RecordedProcess.read(path)
        return recorded if recorded is not None and recorded.is_alive() else None

    def start(self, tell: Tell = lambda _: None) -> None:
        """Start what does not run, and return when the metadata of each listener names every broker.

        Raises JavaMissingError, Unreachable (jars or broker) or CheckFailed with the end of the broker's log.
        """
        self.launch(tell)
        self.wait_until_ready()

    def launch(self, tell: Tell = lambda _: None) -> list[BrokerPlan]:
        """Start the processes that do not run, without waiting until they answer, and return which brokers these are."""
        java, jars = str(find_java().executable), kafka_jars(self.plan.version, tell)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.plan.write(self.directory / "cluster.json")
        started = [broker for broker in self.plan.brokers if self.process(broker.node_id) is None]
        for broker in started:
            for port in (broker.port, broker.internal_port, broker.controller_port):
                if not is_free(port):
                    raise CheckFailed(
                        f"Port {port}, which broker {broker.node_id} of {self.directory} uses, is taken by another "
                        "process: stop that one, or start from another directory or with another --kafka-port."
                    )
        for broker in started:
            self._format(broker, java, jars)
        for broker in started:
            self._spawn(broker, java, jars)
        return started

    def wait_until_ready(self) -> None:
        """Return when the metadata of each listener names every broker; CheckFailed when a broker ends before."""
        for broker in self.plan.brokers:
            count, cluster_id = len(self.plan.brokers), self.plan.cluster_id
            wait_for_brokers(broker.listener, count, START_TIMEOUT_S, self._check_alive, cluster_id=cluster_id)

    def stop(self) -> int:
        """Stop every broker cleanly (SIGTERM, then SIGKILL after a grace); the data stays. Returns how many ran."""
        processes = [self.process(broker.node_id) for broker in self.plan.brokers]
        running = [process for process in processes if process is not None and process.send(signal.SIGTERM)]
        for process in running:
            process.end(STOP_GRACE_S)
        return len(running)

    def kill(self, node_id: int = 1) -> None:
        """SIGKILL one broker, as a crash would."""
        process = self.process(node_id)
        if process is not None:
            process.kill()

    def _home(self, node_id: int) -> Path:
        return self.directory / str(node_id)

    def _check_alive(self) -> None:
        # All of them, whoever is asked: without one that has ended no other ever names every broker.
        for broker in self.plan.brokers:
            if self.process(broker.node_id) is None:
                log = self._home(broker.node_id) / "broker.log"
                raise CheckFailed(f"Broker {broker.node_id} ended while starting; the end of {log}:\n{tail(log)}")

    def _format(self, broker: BrokerPlan, java: str, jars: Sequence[Path]) -> None:
        """Write the broker's settings, and on first use format its storage."""
        home = self._home(broker.node_id)
        home.mkdir(parents=True, exist_ok=True)
        properties = broker_properties(self.plan, broker, home / "data", self.settings.properties)
        settings_path = home / "server.properties"
        settings_path.write_text("".join(f"{key}={_escaped(value)}\n" for key, value in properties.items()), "ascii")
        (home / "log4j2.properties").write_text(_LOG4J)
        # Native libraries that the broker unpacks; a killed one leaves them behind.
        shutil.rmtree(home / "tmp", ignore_errors=True)
        (home / "tmp").mkdir()
        if (home / "data" / "meta.properties").exists():
            return
        shutil.rmtree(home / "data", ignore_errors=True)  # half formatted: nothing can be in it yet
        command = [java, *BRIEF_JVM, "-cp", classpath(jars)]
        command += ["kafka.tools.StorageTool", "format", "-t", self.plan.cluster_id, "-c", str(settings_path)]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=FORMAT_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise Unreachable(
                f"Formatting {home / 'data'} did not end in {FORMAT_TIMEOUT_S:g} s: see what keeps machine or disk busy, and start again."
            ) from error
        if answer.returncode != 0:
            raise CheckFailed(
                f"Formatting {home / 'data'} failed: {(answer.stderr or answer.stdout).strip()[-500:]}"
            )

    def _spawn(self, broker: BrokerPlan, java: str, jars: Sequence[Path]) -> None:
        home = self._home(broker.node_id)
        command = [java, f"-Xmx{self.settings.heap}", *self.settings.jvm_flags]
        command += [
            f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}",
            f"-Djava.io.tmpdir={home / 'tmp'}",
        ]
        command += ["-cp", classpath(jars), "kafka.Kafka", str(home / "server.properties")]
        RecordedProcess.start(command, home / "process.json", home / "broker.log", home)


def check_name(directory: Path) -> None:
    """Refuse a directory that no broker's settings can name: they are texts, and ``log.dirs`` is a list."""
    try:
        lawful = "," not in directory.as_posix() and bool(directory.as_posix().encode("utf-8"))
    except UnicodeEncodeError:
        lawful = False
    if not lawful:
        raise ConfigError(f"--dir {str(directory)!r}: Kafka cannot use a path with a comma, or one that is not UTF-8: name another.")


def _escaped(value: str) -> str:
    """Return a value as Java reads it from a properties file, which is Latin-1 with escapes as JSON has them."""
    return json.dumps(value)[1:-1]


def classpath(jars: Sequence[Path]) -> str:
    """Return the jars as a class path, in a fixed order."""
    return os.pathsep.join(str(jar) for jar in jars)


def tail(path: Path, lines: int = 15) -> str:
    """Return the last lines of a log, for an error's sentence."""
    if not path.exists():
        return "(no log)"
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def broker_properties(
    plan: ClusterPlan, broker: BrokerPlan, data: Path, overrides: Mapping[str, str]
) -> dict[str, str]:
    """Return the broker's settings (names as in Kafka's documentation, "Broker Configs")."""
    replicas = min(3, len(plan.brokers))
    in_sync_min = max(1, replicas - 1)
    listeners = {
        "PLAINTEXT": broker.port,
        "INTERNAL": broker.internal_port,
        "CONTROLLER": broker.controller_port,
    }
    settings = {
        "process.roles": "broker,controller",
        "node.id": broker.node_id,
        "controller.quorum.voters": ",".join(
            f"{b.node_id}@{LOOPBACK}:{b.controller_port}" for b in plan.brokers
        ),
        "listeners": ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in listeners.items()),
        # Brokers talk among themselves (also transaction markers to their own partitions) past any proxy.
        "advertised.listeners": f"PLAINTEXT://{broker.advertised},INTERNAL://{LOOPBACK}:{broker.internal_port}",
        "inter.broker.listener.name": "INTERNAL",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
        "log.dirs": data,
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync_min,
        "offsets.topic.num.partitions": 4,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": 4,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync_min,
        "share.coordinator.state.topic.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync_min,
        "group.initial.rebalance.delay.ms": 0,
        # A broker killed with SIGKILL is fenced, and may register again, after this long (default 9 s).
        "broker.session.timeout.ms": 2000,
        "broker.heartbeat.interval.ms": 300,
        # Transactions past their timeout are aborted within a second, not ten: crash tests wait for that.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
        "log.cleaner.dedupe.buffer.size": 32 * 1024 * 1024,
    }
    return {key: str(value) for key, value in settings.items()} | dict(overrides)


_LOG4J = """\
status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{1}: %m%n
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
"""
