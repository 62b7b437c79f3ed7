"""A broker that speaks TLS, and an authority whose certificates it and its clients have."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from relay.local.kafka import SMALL, ClusterPlan, KafkaCluster
from relay.local.ports import LOOPBACK
from tests.cluster_changes import make_topics
from tests.own_services import further_listener, further_port


class Pair(NamedTuple):
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs certificates; ``place`` is the file of its own, which whoever trusts it has."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.place = folder / f"{name}.pem"
        basic = x509.BasicConstraints(ca=True, path_length=None)
        own = self._builder(self._name, self._key, 1.0).add_extension(basic, critical=True).sign(self._key, hashes.SHA256())
        self.place.write_bytes(own.public_bytes(Encoding.PEM))

    def issue(self, name: str, days: float = 1.0) -> Pair:
        """Return a certificate for this machine's address, good for so many days from now: negative if it has ended."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        hosts = x509.SubjectAlternativeName([x509.IPAddress(ip_address(LOOPBACK))])
        made = self._builder(subject, key, days).add_extension(hosts, critical=False).sign(self._key, hashes.SHA256())
        return Pair(
            made.public_bytes(Encoding.PEM), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: float) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + timedelta(days=days))
        )


class Encrypted:
    """Its own listener is plain (``kafka``); ``listener`` wants TLS, and a certificate of whoever connects."""

    def __init__(self, cluster: KafkaCluster, port: int, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self.kafka = cluster.bootstrap
        self._admin = AdminClient({"bootstrap.servers": self.kafka})
        self.listener = f"{LOOPBACK}:{port}"
        self.authority = Authority("authority", folder)
        self._have(self.authority.issue("broker"))
        self.client = {"ssl.ca.location": str(self.authority.place), **self.pair("worker", self.authority.issue("worker"))}

    def pair(self, name: str, pair: Pair) -> dict[str, str]:
        """Write a client's certificate down and return the settings that name it."""
        places = {"ssl.certificate.location": self._folder / f"{name}.crt", "ssl.key.location": self._folder / f"{name}.key"}
        for place, content in zip(places.values(), pair, strict=True):
            place.write_bytes(content)
        return {key: str(place) for key, place in places.items()}

    def topics(self, *names: str) -> None:
        """Create topics."""
        make_topics(self._admin, *(NewTopic(name, 1) for name in names))

    def restart_with(self, pair: Pair) -> None:
        """Give the broker another certificate."""
        self._cluster.stop()
        self._have(pair)
        self._cluster.start()

    def _have(self, pair: Pair) -> None:
        (self._folder / "broker.pem").write_bytes(pair.key + pair.certificate)


@contextmanager
def encrypted_broker() -> Iterator[Encrypted]:
    """Start a broker and stop it at the end. Raises ConfigError, Unreachable if there can be none."""
    folder = Path(tempfile.mkdtemp(prefix="relay-tls-"))
    plan = ClusterPlan.new(1, None, None)
    port = further_port(plan)
    cluster = KafkaCluster(folder / "kafka", plan, replace(SMALL, properties=_properties(plan, port, folder)))
    try:
        made = Encrypted(cluster, port, folder)
        cluster.start()
        yield made
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _properties(plan: ClusterPlan, port: int, folder: Path) -> dict[str, str]:
    return {
        **further_listener(plan, "TLS", "SSL", port),
        "listener.name.tls.ssl.client.auth": "required",
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.location": str(folder / "broker.pem"),
        "listener.name.tls.ssl.truststore.type": "PEM",
        "listener.name.tls.ssl.truststore.location": str(folder / "authority.pem"),
    }
