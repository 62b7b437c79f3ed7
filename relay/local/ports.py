"""Ports on the loopback interface that were free a moment ago."""

from __future__ import annotations

import socket
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Return ``count`` different free TCP ports; all are held open until the last one is found."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind((LOOPBACK, 0))
        return [int(listener.getsockname()[1]) for listener in listeners]


def is_free(port: int) -> bool:
    """Tell whether a server could listen on ``port`` now (a port in TIME_WAIT counts as free)."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
