"""One directory is one set of local services: starting it twice gives the same services, not two sets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from relay.kafka.probe import brokers_named
from relay.local.jars import KAFKA_VERSION, Tell
from relay.local.kafka import BrokerSettings, ClusterPlan, KafkaCluster, check_name
from relay.local.lock import exclusive
from relay.local.postgres import PostgresServer, check_answers, without_password
from relay.local.process import keep, read_kept
from relay.message.errors import ConfigError, Unreachable


@dataclass(frozen=True)
class LocalServices:
    """Addresses of running services: ``kafka`` as bootstrap servers, ``postgres`` as URL or None."""

    directory: Path
    kafka: str
    postgres: str | None

    @classmethod
    def up(
        cls,
        directory: Path,
        kafka_port: int | None = None,
        advertise: str | None = None,
        brokers: int = 1,
        postgres: bool | str = True,
        *,
        kafka_version: str | None = None,
        settings: BrokerSettings | None = None,
        tell: Tell = lambda _: None,
    ) -> LocalServices:
        """Start what of ``directory`` does not run yet, and return when everything answers.

        ``postgres`` is True for a server of our own, False for none, or the URL of an existing one, which is
        only probed. Several brokers give replication factor 3 and two in-sync replicas at least. Without a
        ``kafka_version`` that of ``RELAY_KAFKA_VERSION`` counts, and without both the directory's own, or the default.
        Raises ConfigError when the directory's services were set up otherwise than asked for now. Where it fails, or is
        interrupted, what it has started is stopped again; brokers that are only late go on.
        """
        if brokers < 1:
            raise ConfigError(f"--brokers {brokers} is too few: give 1 or more.")
        directory = directory.resolve()
        check_name(directory)
        directory.mkdir(parents=True, exist_ok=True)
        with exclusive(directory / ".lock"):
            version = kafka_version or os.environ.get("RELAY_KAFKA_VERSION") or None
            cluster = _cluster(directory, kafka_port, advertise, brokers, version, settings)
            if isinstance(postgres, str):
                check_answers(postgres)
            _keep(directory, postgres)
            server = PostgresServer(directory / "postgres")
            late: Unreachable | None = None
            with _stopped_unless_done(cluster, server, tell):
                cluster.launch(tell)
                if postgres is True:
                    server.start(tell)  # while the brokers boot
                try:
                    cluster.wait_until_ready()
                except Unreachable as error:
                    late = error
            if late is not None:  # nothing of it has failed: it goes on starting, and who calls again waits on
                raise late
        return cls(directory, cluster.bootstrap, _postgres_url(directory))

    @classmethod
    def find(cls, directory: Path) -> LocalServices | None:
        """Return the services set up in ``directory``, running or not; None when there are none."""
        directory = directory.resolve()
        cluster = KafkaCluster.find(directory / "kafka")
        return None if cluster is None else cls(directory, cluster.bootstrap, _postgres_url(directory))

    @classmethod
    @contextmanager
    def passing(cls, directory: Path, *, postgres: bool = True, settings: BrokerSettings | None = None) -> Iterator[LocalServices]:
        """Start services for the time of a ``with`` statement, and stop them, also where an interrupt comes as they start."""
        try:
            yield cls.up(directory, postgres=postgres, settings=settings)
        finally:
            if (found := cls.find(directory)) is not None:
                found.down()

    def down(self) -> dict[str, int]:
        """Stop the brokers and our own PostgreSQL; an existing server given by URL is left alone. The data stays.

        Returns how many servers of each kind were stopped.
        """
        with exclusive(self.directory / ".lock"):
            cluster = KafkaCluster.find(self.directory / "kafka")
            brokers = cluster.stop() if cluster is not None else 0
            return {"kafka": brokers, "postgres": int(PostgresServer(self.directory / "postgres").stop())}

    def status(self) -> dict[str, Any]:
        """Return address (no password), processes and whether each service answers right now."""
        cluster = KafkaCluster.find(self.directory / "kafka")
        planned = cluster.plan.brokers if cluster else ()
        processes = {b.node_id: cluster.process(b.node_id) for b in planned} if cluster else {}
        named = brokers_named(self.kafka, cluster_id=cluster.plan.cluster_id) if cluster and any(processes.values()) else 0
        report: dict[str, Any] = {
            "kafka": {
                "version": cluster.plan.version if cluster else None,
                "address": self.kafka,
                "answers": bool(planned) and named == len(planned),
                "brokers": [
                    {**asdict(broker), "pid": process.pid if (process := processes[broker.node_id]) else None}
                    for broker in planned
                ],
            },
            "postgres": None,
        }
        if self.postgres is not None:
            server = PostgresServer(self.directory / "postgres").process()
            report["postgres"] = {
                "address": without_password(self.postgres),
                "answers": _answers(self.postgres),
                "pid": server.pid if server else None,
            }
        return report


def _cluster(
    directory: Path,
    port: int | None,
    advertise: str | None,
    count: int,
    version: str | None,
    settings: BrokerSettings | None,
) -> KafkaCluster:
    """Return the directory's cluster, planned now or before; what is asked for must agree with what runs."""
    home = directory / "kafka"
    kept = ClusterPlan.read(home / "cluster.json")
    if kept is None:
        return KafkaCluster(home, ClusterPlan.new(count, port, advertise, version or KAFKA_VERSION), settings)
    if len(kept.brokers) != count:
        raise ConfigError(
            f"{directory} was set up with {len(kept.brokers)} broker(s) and --brokers {count} is asked for: use "
            "another directory, or the same number."
        )
    if version not in {None, kept.version}:
        raise ConfigError(
            f"{directory} was set up with Kafka {kept.version} and {version} is asked for, by --kafka-version or "
            "RELAY_KAFKA_VERSION: use another directory, or the same version."
        )
    first = kept.brokers[0]
    if port in {None, first.port} and advertise in {None, first.advertised}:
        return KafkaCluster(home, kept, settings)
    running = KafkaCluster(home, kept, settings)
    if any(running.process(broker.node_id) for broker in kept.brokers):
        raise ConfigError(
            f"{directory} runs a broker on port {first.port} advertised as {first.advertised}, which --kafka-port "
            "or --advertise contradict: run `relay dev down` on it first."
        )
    fresh = ClusterPlan.new(count, port or first.port, advertise)
    return KafkaCluster(home, replace(kept, brokers=fresh.brokers), settings)


@contextmanager
def _stopped_unless_done(cluster: KafkaCluster, server: PostgresServer, tell: Tell) -> Iterator[None]:
    """Stop what was started inside where it comes to nothing: whoever is told so looks for no processes. What ran before goes on."""
    brokers = [broker.node_id for broker in cluster.plan.brokers if cluster.process(broker.node_id) is None]
    postgres_ran = server.is_running()
    try:
        yield
    except BaseException:
        begun = [node for node in brokers if cluster.process(node) is not None]
        for node in begun:
            cluster.kill(node)  # as they boot, they obey no SIGTERM
        said = [f"broker {node}" for node in begun]
        if not postgres_ran and server.stop():
            said.append("PostgreSQL")
        if said:
            tell(f"Stopped again, since not all of it came up: {', '.join(said)}")
        raise


def _keep(directory: Path, postgres: bool | str) -> None:
    keep(directory / "services.json", {"postgres": postgres})


def _postgres_url(directory: Path) -> str | None:
    """Return the kept URL of an existing server, that of our own, or None when there is neither."""
    path = directory / "services.json"
    # Without content, as a crash of the machine leaves a file: what lies in the directory tells.
    found = read_kept(path) or {"postgres": path.exists()}
    kept = found["postgres"]
    if isinstance(kept, str):
        return kept
    own = PostgresServer(directory / "postgres")
    return own.url if kept and read_kept(own.directory / "access.json") else None


def _answers(url: str) -> bool:
    try:
        check_answers(url)
    except Unreachable:
        return False
    return True
