"""Where a queue's journal goes once it is past its retention: to files of its archive, or nowhere.

Each step is small and may be done by several processes at once, or by none for a while: late is allowed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from relay.config.model import RelayConfig
from relay.message.errors import CheckFailed
from relay.message.limits import raise_limit
from relay.queue import journal
from relay.queue.port import QueueStore

JOURNAL_AT_ONCE: Final = 5000


def archive(store: QueueStore, config: RelayConfig, now: int, most: int = JOURNAL_AT_ONCE) -> journal.Archived:
    """Let go of what is past the retention; with an archive period it is written to files first.

    Raises CheckFailed where these cannot be written, Unreachable at a limit of this process, and what the store raises.
    """
    period = config.queues[store.settings.name].archive
    if period == "none":
        return journal.let_go(store, None, "day", now, most=most)
    folder = archive_folder(config)
    try:
        return journal.let_go(store, folder, period, now, most=most)
    except OSError as error:
        raise_limit(error)
        raise CheckFailed(
            f"{folder} cannot be written ({error.strerror}): make room there, or let the relay write there; nothing unwritten was trimmed"
        ) from error


def archive_folder(config: RelayConfig) -> Path:
    """Return where the archived periods of all queues lie."""
    return config.relay.state / "journal"
