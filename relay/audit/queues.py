"""A queue as a route's destination: what of the log is in it, by (publisher, id), whoever else puts messages there."""

from __future__ import annotations

from collections.abc import Iterator

from relay.audit.ledger import Ledger
from relay.audit.tables import Store
from relay.config.model import QueueConfig
from relay.message import identity
from relay.message.envelope import ID, SOURCE

_DIGEST_CHARACTERS = 2 * identity.DIGEST_BYTES


def digests(store: Store, ledger: Ledger, queue: str) -> Iterator[bytes]:
    """Yield what each message of the queue is known by in the log, also of an aborted or undecided capture.

    Messages of other origins are passed over.
    """
    for publisher, identifier in store.queued(queue):
        known = _digest(publisher, identifier)
        if _lies_in(ledger, known):
            yield known
        elif len(identifier) == _DIGEST_CHARACTERS and _lies_in(ledger, _hex(identifier)):
            yield _hex(identifier)


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
