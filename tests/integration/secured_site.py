"""A broker that asks who somebody is and allows what README's table "Rights" gives to that role, and nothing more."""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from relay.local.kafka import SMALL, ClusterPlan, KafkaCluster
from tests.cluster_changes import exactly, give_rights, has_right, make_topics, shown
from tests.own_services import further_listener, further_port

READ, WRITE, DESCRIBE, CREATE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE
ALTER, ALTER_CONFIGS, DESCRIBE_CONFIGS = AclOperation.ALTER, AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS
TOPIC, GROUP, TRANSACTION = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID


class Right(NamedTuple):
    """What one role may do; ``name`` may end with a star, which makes it a prefix."""

    kind: ResourceType
    name: str
    operation: AclOperation


def rights(kind: ResourceType, names: str | Iterable[str], *operations: AclOperation) -> list[Right]:
    """Return the rights to do each of these with each of those."""
    listed = [names] if isinstance(names, str) else list(names)
    return [Right(kind, name, operation) for name in listed for operation in operations]


class Secured:
    """Its own listener asks nobody (``admin``, who may do all); ``listener`` is for those who have a name and a password."""

    def __init__(self, cluster: KafkaCluster, listener: str) -> None:
        self.cluster = cluster
        self.kafka = cluster.bootstrap
        self.listener = listener
        self.admin = AdminClient({"bootstrap.servers": self.kafka})

    def topics(self, *names: str, partitions: int = 1) -> None:
        """Create topics."""
        make_topics(self.admin, *(NewTopic(name, partitions) for name in names))

    def user(self, name: str, allowed: Sequence[Right] = ()) -> None:
        """Let somebody in, with the name for a password, who may do what is given."""
        self.change(name, password(name))
        self.grant(name, *allowed)

    def change(self, name: str, to: str) -> None:
        """Let somebody in with this password, and with no former one; connections that are open stay."""
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        for done in self.admin.alter_user_scram_credentials([UserScramCredentialUpsertion(name, credential, to.encode())]).values():
            done.result(30)
        shown(lambda: self._lets_in(name, to), f"the password of {name}")

    def grant(self, user: str, *allowed: Right) -> None:
        """Give rights."""
        give_rights(self.admin, [_binding(user, right) for right in allowed])

    def revoke(self, user: str, *denied: Right) -> None:
        """Take rights away."""
        for right in denied:
            rule = _binding(user, right)
            for done in self.admin.delete_acls([exactly(rule)]).values():
                assert done.result(30), f"{user} did not have {right}"
            shown(lambda rule=rule: not has_right(self.admin, rule), f"that {user} has {right} no more")

    @contextmanager
    def without(self, user: str, *denied: Right) -> Iterator[None]:
        """Take rights away for a while."""
        self.revoke(user, *denied)
        try:
            yield
        finally:
            self.grant(user, *denied)

    def _lets_in(self, user: str, to: str) -> bool:
        try:
            return bool(AdminClient({**self.login(user), "sasl.password": to}).list_topics(timeout=5).brokers)
        except KafkaException:
            return False

    def settings(self, user: str) -> str:
        """Return the lines of a section [kafka] for somebody."""
        return "".join(f'"{key}" = "{value}"\n' for key, value in self.login(user).items())

    def login(self, user: str) -> dict[str, str]:
        """Return the client settings of somebody who has a password."""
        return {
            "bootstrap.servers": self.listener,
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password(user),
        }

    def bearer(self, tokens: Path) -> dict[str, str]:
        """Return the client settings of whoever has the token in that file."""
        return {
            "bootstrap.servers": self.listener,
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "OAUTHBEARER",
            "token_file": str(tokens),
        }


def token(user: str, life_s: float) -> str:
    """Return a JWT without a signature, which this broker takes: a real one is told from others by its validator, not by the client."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": user, "iat": now, "exp": now + life_s})
    return ".".join([*(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts), ""])


def password(user: str) -> str:
    """Return somebody's password; no output may have it."""
    return f"canary-of-{user}"


@contextmanager
def secured_broker(shown_every_s: float = 3600) -> Iterator[Secured]:
    """Start a broker, which wants to see passwords so often, and stop it at the end. Raises ConfigError, Unreachable if there can be none."""
    directory = Path(tempfile.mkdtemp(prefix="relay-secured-"))
    plan = ClusterPlan.new(1, None, None)
    port = further_port(plan)
    cluster = KafkaCluster(directory, plan, replace(SMALL, properties=_properties(plan, port, shown_every_s)))
    try:
        cluster.start()
        yield Secured(cluster, f"127.0.0.1:{port}")
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _properties(plan: ClusterPlan, port: int, shown_every_s: float) -> dict[str, str]:
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    bearer = 'org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
    return {
        **further_listener(plan, "SASL", "SASL_PLAINTEXT", port),
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        "connections.max.reauth.ms": str(round(shown_every_s * 1000)),
        "listener.name.sasl.scram-sha-512.sasl.jaas.config": scram,
        "listener.name.sasl.oauthbearer.sasl.jaas.config": bearer,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "false",
        "super.users": "User:ANONYMOUS",
    }


def _binding(user: str, right: Right) -> Any:
    prefix = right.name.endswith("*")
    pattern = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
    name = right.name.removesuffix("*")
    return AclBinding(right.kind, name, pattern, f"User:{user}", "*", right.operation, AclPermissionType.ALLOW)
