"""Dead letters (temporary)."""
from __future__ import annotations
from relay.message.envelope import Headers, outgoing
from relay.message.errors import MessageRejected
from relay.message.record import LogMessage


def dead_letter(message: LogMessage, cause: MessageRejected, *, route: str, target: str, group: str, attempts: int) -> tuple[bytes, bytes | None, Headers]:
    """Build."""
    e = "__relay.errors."
    return message.digest.hex().encode(), message.value, outgoing(message.headers) + [(e + "route", route.encode()), (e + "stage", cause.stage.encode()), (e + "code", cause.code.encode())]
