"""What a queue needs now and then besides its workers: delayed messages, expired ones, the journal's retention.

Each step is small and may be done by several processes at once, or by none for a while: late is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from relay.config.model import RelayConfig
from relay.queue import journal
from relay.queue.port import QueueStore

AT_ONCE: Final = 1000
JOURNAL_AT_ONCE: Final = 5000


@dataclass(slots=True)
class Tended:
    """How many messages one turn revealed, expired (for one subscriber each) and let go of."""

    revealed: int = 0
    expired: int = 0
    archived: int = 0


def tend(store: QueueStore, config: RelayConfig, now: int) -> Tended:
    """Do one turn of all that is due; ``now`` is wall milliseconds. Call again at once if much was done."""
    return Tended(store.reveal_due(now, AT_ONCE), store.expire(now, AT_ONCE), archive(store, config, now).messages)


def archive(store: QueueStore, config: RelayConfig, now: int, most: int = JOURNAL_AT_ONCE) -> journal.Archived:
    """Let go of what is past the retention; with an archive period it is written to files first."""
    period = config.queues[store.settings.name].archive
    if period == "none":
        return journal.let_go(store, None, "day", now, most=most)
    return journal.let_go(store, archive_folder(config), period, now, most=most)


def archive_folder(config: RelayConfig) -> Path:
    """Return where the archived periods of all queues lie."""
    return config.relay.state / "journal"
