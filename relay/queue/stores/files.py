"""A queue in flat files: append-only segments, states in memory for living messages only, one process at a time.

The directory holds ``*.log`` (the newest says how all that lives stands; older ones are kept for contents that are still
needed), ``*.journal`` (what has ended, sorted and with an index) and ``lock``. Durability: a unit is one frame with a
checksum, and its return means fdatasync.
"""

from __future__ import annotations

from pathlib import Path

from relay.queue.settings import QueueSettings
from relay.queue.stores.files_publishing import Publishing
from relay.queue.stores.files_subscribing import Subscribing
from relay.queue.stores.files_viewing import Viewing


class FilesQueue(Publishing, Subscribing, Viewing):
    """The `QueueStore` over a directory of files."""


def open_files(settings: QueueSettings, directory: Path) -> FilesQueue:
    """Open a queue in a directory of its own under ``directory``, which is made if need be.

    Raises StoreAway if another process has it open, Stopped if its files are damaged.
    """
    return FilesQueue(settings, directory / settings.name)
