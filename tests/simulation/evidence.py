"""What a simulated run left behind, as its storage holds it: the only thing the auditor looks at.

Nothing here comes from a worker's own bookkeeping: no counters, no monitor, no memory of a process. What publishers
were told is kept to be held against what is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

Partition = tuple[str, int]
MessageId = tuple[str, str]
"""(source, id)"""


class Told(Enum):
    """What a publisher was told when its block ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "in doubt, or it died before it heard"


class Logged(NamedTuple):
    """One record of the log that is no marker. ``aborted``: its producer's Kafka transaction was."""

    partition: Partition
    offset: int
    id: MessageId
    capture: str | None = None
    aborted: bool = False
    poison: bool = False
    """The destination cannot take it: it belongs among the dead letters."""
    sequence: int | None = None
    incarnation: str | None = None
    gone: bool = False
    """It has left the log: by retention, or with the topic."""


class Effect(NamedTuple):
    """One effect at the destination: a visible record of the output, or a committed row.

    ``lane`` is where order counts (an output partition, or the table), ``place`` its order there, ``writer`` who made
    it (a producer instance, a connection), ``at`` when it became visible.
    """

    lane: str
    place: tuple[int, ...]
    id: MessageId
    writer: str = ""
    at: float = 0.0


class Seen(NamedTuple):
    """One record that a concurrent reader got, in the order in which it got them."""

    reader: str
    lane: str
    place: tuple[int, ...]
    id: MessageId
    at: float


class Sample(NamedTuple):
    """Durable positions and visible effects at one moment, a crash above all."""

    at: float
    positions: dict[Partition, int]
    effects: frozenset[MessageId]


class Decided(NamedTuple):
    """A decision row at the end, and when it was committed; ``placed`` is (partition, how many messages)."""

    committed: bool
    at: float
    placed: tuple[tuple[Partition, int], ...] = ()


class Marked(NamedTuple):
    """An outcome marker in the log, and whether its nonce proves it."""

    partition: Partition
    offset: int
    capture: str
    committed: bool
    proved: bool


class Held(NamedTuple):
    """A committed write of a table's position: who wrote, under which epoch, up to where."""

    partition: Partition
    epoch: int
    owner: str
    by: str
    position: int | None
    claim: bool
    at: float


@dataclass
class Evidence:
    """All of it. ``decisions`` are those of every publisher's database by capture id (hex)."""

    log: list[Logged] = field(default_factory=list)
    log_ends: dict[Partition, int] = field(default_factory=dict)
    decisions: dict[str, Decided] = field(default_factory=dict)
    told: dict[str, Told] = field(default_factory=dict)
    undone: set[MessageId] = field(default_factory=set)
    """Messages of savepoints that were rolled back."""
    marked: list[Marked] = field(default_factory=list)
    unmarked: list[str] = field(default_factory=list)
    """Committed captures with messages whose markers are not noted, though their publisher lived long enough."""
    conflicts: list[list[str]] = field(default_factory=list)
    """For each row that captures of one publisher wrote: their ids, in the order of their commits."""
    effects: list[Effect] = field(default_factory=list)
    redriven: set[MessageId] = field(default_factory=set)
    """What died and was redriven once the destination takes it: it has its effect, behind what was sent after it."""
    delayed: set[MessageId] = field(default_factory=set)
    """What readers get later than its place says, and nothing earlier that is not delayed behind it."""
    unordered: set[MessageId] = field(default_factory=set)
    """What may overtake and be overtaken."""
    dead: list[MessageId] = field(default_factory=list)
    positions: dict[Partition, int] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    """Records outside the log that still name a capture, in words."""
    torn: list[str] = field(default_factory=list)
    """Committed transactions of a table that hold effects without their inbox rows, or the reverse, in words."""
    passed: dict[Partition, list[tuple[int, int]]] = field(default_factory=dict)
    """Offsets, first and next, that persons have let go as lost, and that the owner has said to pass."""
    quiescent: bool = True
    """Faults healed, publishers stopped, and the workers were given time: then everything must have arrived."""
    markers_due: bool = True
    """Every publisher was started once more after its last COMMIT could land."""
    restored: bool = False
    """The destination went back to a backup: positions may fall, what was seen may vanish once."""
