"""A broker is ready when the metadata it answers names its cluster and every expected broker; an open port says less."""

from __future__ import annotations

import logging
from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from relay.message.errors import Unreachable
from relay.world import clock

_ATTEMPT_S = 0.2
_LONGEST_ATTEMPT_S = 2.0
_BETWEEN_S = 0.05
_quiet = logging.getLogger("relay.kafka.probe")
_quiet.setLevel(logging.CRITICAL + 1)  # refused connections are what is being waited out


def brokers_named(bootstrap: str, timeout_s: float = 2.0, *, cluster_id: str | None = None) -> int:
    """Return how many brokers the metadata at ``bootstrap`` names; 0 when nothing answers in time.

    With a ``cluster_id``, brokers of another cluster count as nothing: they have a port that ours was to have.
    """
    client = AdminClient(
        {
            "bootstrap.servers": bootstrap,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        },
        logger=_quiet,
    )
    try:
        found = client.list_topics(timeout=timeout_s)
    except KafkaException:
        return 0  # retry: not answering yet is the state being waited out
    return len(found.brokers) if cluster_id in {None, found.cluster_id} else 0


def wait_for_brokers(
    bootstrap: str, count: int, timeout_s: float, check: Callable[[], None] = lambda: None, *, cluster_id: str | None = None
) -> None:
    """Wait until the metadata names ``count`` brokers, of the cluster ``cluster_id`` if one is given.

    Only ``bootstrap`` itself must be reachable: the advertised addresses in the answer (perhaps a proxy that
    does not run yet) are not connected to. ``check`` is called between attempts and may raise.
    Raises Unreachable after ``timeout_s`` seconds.
    """
    deadline = clock.monotonic() + timeout_s
    named, attempt_s = 0, _ATTEMPT_S
    while clock.monotonic() < deadline:
        # Each attempt by a client of its own: one that learned the advertised addresses after its attempt had ended
        # has forgotten ``bootstrap``. Ever longer ones, as a broker under load may need more than the first.
        named = brokers_named(bootstrap, attempt_s, cluster_id=cluster_id)
        if named >= count:
            return
        check()
        clock.sleep(_BETWEEN_S)
        attempt_s = min(attempt_s * 1.5, _LONGEST_ATTEMPT_S)
    raise Unreachable(
        f"Kafka at {bootstrap} named {named} of {count} brokers after {timeout_s:g} s: look into its log."
    )
