"""Topics, settings and rights that a test gives a broker: in force there before anything rests on them.

A broker applies what the controller has answered for a while later, on a busy machine a long while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

SHOWN_S = 60.0


def shown(is_so: Callable[[], object], what: str) -> None:
    """Wait until the broker shows a change."""
    deadline = time.monotonic() + SHOWN_S
    while not is_so():
        assert time.monotonic() < deadline, f"{what} does not show after {SHOWN_S:g} s"
        time.sleep(0.02)


def make_topics(admin: AdminClient, *topics: NewTopic) -> None:
    """Create topics; return when each has its leaders."""
    for made in admin.create_topics(list(topics)).values():
        made.result(30)
    for topic in topics:
        shown(lambda topic=topic: _is_led(admin, topic), f"topic {topic.topic} with leaders")


def add_partitions(admin: AdminClient, topic: str, total: int) -> None:
    """Let a topic have so many partitions; return when each has its leader."""
    admin.create_partitions([NewPartitions(topic, total)])[topic].result(30)
    shown(lambda: _is_led(admin, NewTopic(topic, total)), f"topic {topic} with {total} partitions")


def set_topic(admin: AdminClient, topic: str, name: str, value: object) -> None:
    """Change one setting of a topic."""
    _set(admin, ConfigResource.Type.TOPIC, topic, name, value)


def set_brokers(admin: AdminClient, name: str, value: object) -> None:
    """Change one setting of every broker."""
    for node in admin.list_topics(timeout=10).brokers:
        _set(admin, ConfigResource.Type.BROKER, str(node), name, value)


def give_rights(admin: AdminClient, rights: Sequence[AclBinding]) -> None:
    """Let somebody do something, or forbid it."""
    for done in admin.create_acls(list(rights)).values() if rights else ():
        done.result(30)
    for right in rights:
        shown(lambda right=right: has_right(admin, right), f"that {right}")


def has_right(admin: AdminClient, right: AclBinding) -> bool:
    """Does the broker go by this rule?"""
    return bool(admin.describe_acls(exactly(right)).result(30))


def exactly(right: AclBinding) -> AclBindingFilter:
    """Return what finds this rule and no other."""
    given = (right.restype, right.name, right.resource_pattern_type, right.principal, right.host, right.operation)
    return AclBindingFilter(*given, right.permission_type)


def _set(admin: AdminClient, kind: ResourceType, of: str, name: str, value: object) -> None:
    entry = ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
    for done in admin.incremental_alter_configs([ConfigResource(kind, of, incremental_configs=[entry])]).values():
        done.result(30)
    asked = ConfigResource(kind, of)
    shown(lambda: admin.describe_configs([asked])[asked].result(30)[name].value == str(value), f"{name} = {value} of {of}")


def _is_led(admin: AdminClient, topic: NewTopic) -> bool:
    found = admin.list_topics(topic.topic, timeout=10).topics[topic.topic].partitions
    wanted = len(topic.replica_assignment or ()) or topic.num_partitions
    return len(found) == wanted and all(one.leader >= 0 for one in found.values())
