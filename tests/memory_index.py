"""An index of a monitor partition that tests fill: empty, in memory, under no budget."""

from __future__ import annotations

from relay.monitor.index import DedupIndex
from relay.monitor.rows import MemoryRows


def memory_index(partition: int) -> DedupIndex:
    """Return an empty index that stays in memory."""
    return DedupIndex(partition, MemoryRows())
