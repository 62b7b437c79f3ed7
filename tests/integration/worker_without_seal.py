"""A worker of the protocol that sealing replaces: an entry counts as soon as it shows, and nothing is settled.

Run as ``python -m tests.integration.worker_without_seal`` in place of ``relay.run.process``. The seal is not written;
since then no begin ever has one, a missing seal cannot mean anything either, nor what an output shows of such a begin.
"""

from __future__ import annotations

import os

from relay.delivery.topic import recovery as topic_recovery
from relay.delivery.topic.sealed import SealedProducer
from relay.monitor.entries import Entry, Page, Proof
from relay.monitor.evidence import Evidence
from relay.run.process import main

_add = Evidence.add


def _trusting(self: Evidence, offset: int, entry: Entry) -> None:
    if isinstance(entry, Page) and entry.proof is Proof.SEALED:
        self.on_rows(entry)
    else:
        _add(self, offset, entry)


SealedProducer._seal = lambda self, touched: None  # type: ignore[method-assign]
Evidence.add = _trusting  # type: ignore[method-assign]
Evidence.unsealed = lambda self: []  # type: ignore[method-assign]
topic_recovery.vanished = lambda *_: []  # type: ignore[assignment]

if __name__ == "__main__":
    os._exit(main())
