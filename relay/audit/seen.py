"""What an audit has seen of a route beside its log and its destination."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from relay.audit.deaths import Deaths
from relay.audit.evidence import Evidence
from relay.audit.memory import Memory
from relay.kafka.scan import Range
from relay.message.record import LogPartition

Watch = Callable[[str, int, int], None]
"""(step, offsets done, offsets in all); called often."""


@dataclass
class Seen:
    """What was read before the log; ``later`` is the evidence and ``lows`` are the log's beginnings after it.

    Of what is ``replaced`` the log has a repeat only.
    """

    positions: dict[LogPartition, int]
    evidence: Evidence
    deaths: Deaths
    foreign: set[bytes] = field(default_factory=set)
    outputs: dict[LogPartition, Range] = field(default_factory=dict)
    begins: dict[LogPartition, int] = field(default_factory=dict)
    lows: dict[LogPartition, int] = field(default_factory=dict)
    later: Evidence = field(default_factory=Evidence)
    memory: Memory = field(default_factory=Memory)
    replaced: set[bytes] = field(default_factory=set)
