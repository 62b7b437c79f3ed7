"""Ports on the loopback interface that were free a moment ago."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from random import SystemRandom

from relay.message.errors import CheckFailed

LOOPBACK = "127.0.0.1"
SERVERS = range(10_000, 32_768)
"""Below the ports that outgoing connections are given (32768 and above on Linux, 49152 elsewhere): from among those a
client that connects again to a broker that is down may be given the very port which the broker is about to open."""
_TRIES_EACH = 200


def free_ports(count: int) -> list[int]:
    """Return ``count`` different free TCP ports of SERVERS; all are held open until the last one is found.

    They are drawn at random, as several processes may look at once. Raises CheckFailed when too few are found.
    """
    with ExitStack() as held:
        found: list[int] = []
        for port in SystemRandom().sample(SERVERS, min(len(SERVERS), count * _TRIES_EACH)):
            if len(found) == count:
                break
            listener = held.enter_context(socket.socket())
            try:
                listener.bind((LOOPBACK, port))
            except OSError:
                continue  # Retry with another: taken by somebody.
            found.append(port)
    if len(found) < count:
        raise CheckFailed(
            f"Fewer than {count} ports between {SERVERS[0]} and {SERVERS[-1]} are free on {LOOPBACK}: stop what "
            "listens there (`relay dev down --dir DIR` ends services that were left running)."
        )
    return found


def is_free(port: int) -> bool:
    """Tell whether a server could listen on ``port`` now (a port in TIME_WAIT counts as free)."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
