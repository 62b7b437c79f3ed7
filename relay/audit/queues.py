"""A queue as a route's destination: what of the log is in it, by (publisher, id), and what is in it of no log."""

from __future__ import annotations

from collections.abc import Iterator

from relay.audit.ledger import Ledger
from relay.audit.tables import Store
from relay.config.model import QueueConfig
from relay.message import identity
from relay.message.envelope import ID, SOURCE

_DIGEST_CHARACTERS = 2 * identity.DIGEST_BYTES


def digests(store: Store, ledger: Ledger, queue: str, strangers: list[list[bytes]]) -> Iterator[bytes]:
    """Yield what each message that a route has put is known by in the log, also of an aborted or undecided capture.

    Of one that is in no log, ``strangers`` gets what it may have been known by.
    """
    for publisher, identifier in store.queued(queue):
        names = [_digest(publisher, identifier)]
        if len(identifier) == _DIGEST_CHARACTERS:
            names.append(_hex(identifier))
        known = next((name for name in names if _lies_in(ledger, name)), None)
        if known is None:
            strangers.append(names)
        else:
            yield known


def lets_go(queue: QueueConfig) -> bool:
    """Whether messages leave the queue, so that one that is missing may have been there."""
    retain = queue.retain
    return (retain.age_s, retain.count, retain.bytes) != (None, None, None)


def _lies_in(ledger: Ledger, digest: bytes) -> bool:
    return digest in ledger.index or digest in ledger.refused


def _digest(publisher: str, identifier: str) -> bytes:
    headers = {SOURCE: publisher.encode(), ID: identifier.encode()}
    return identity.cloudevents(headers, b"", None) or b""


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
