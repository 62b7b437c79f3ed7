"""The dead letters of one route: which of them stand, and which stand beside an effect that no redrive explains. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from relay.audit.evidence import Proven
from relay.message import identity
from relay.message.envelope import REDRIVEN, UNTOLD_CODE
from relay.message.record import LogPartition
from relay.monitor.entries import DELIVERED
from relay.monitor.redrive import Order

SLACK_MS: Final = 600_000
"""Far more than the clocks of brokers differ, and than a transaction takes."""
HEX: Final = "(?:[0-9a-fA-F]{2})*"
"""What names a message in a letter's key. Not by ``bytes.fromhex`` alone, which passes over blanks."""


def named(key: bytes) -> bytes:
    """Return the digest that a letter's key names; where it names none, one that no message has."""
    if re.fullmatch(HEX.encode(), key) is None:
        return identity.digest(b"?", key)
    return bytes.fromhex(key.decode("ascii"))


class Letters:
    """Takes letters, and what takes them back, in any order: of either the one with the highest number counts."""

    def __init__(self) -> None:
        self._died: dict[bytes, tuple[int, bool]] = {}
        self._taken_back: dict[bytes, int] = {}

    def take(self, digest: bytes, number: int, code: str) -> None:
        """Take a record; ``number`` is that of the redrive in which the message died, or which takes its deaths back."""
        if code == REDRIVEN:
            self._taken_back[digest] = max(number, self._taken_back.get(digest, 0))
        else:
            self._died[digest] = max((number, code != UNTOLD_CODE), self._died.get(digest, (0, False)))

    @property
    def standing(self) -> set[bytes]:
        """Digests of the messages whose last letter no redrive has taken back."""
        return {digest for digest, (number, _) in self._died.items() if number >= self._taken_back.get(digest, 0)}

    @property
    def redriven(self) -> set[bytes]:
        """Digests of the messages whose letters a redrive has taken back."""
        return self._taken_back.keys() - self.standing

    def takes_back(self, digest: bytes, number: int) -> bool:
        """Does a redrive take back the letters of this number?"""
        return number < self._taken_back.get(digest, 0)

    def deaths_of(self, digests: Iterable[bytes]) -> dict[bytes, int]:
        """Return the numbers of their letters that stand and say that the message died, not that nobody can tell."""
        standing = self.standing
        return {digest: self._died[digest][0] for digest in digests if digest in standing and self._died[digest][1]}


@dataclass
class Trimmed:
    """What the dead-letter topic has forgotten: ``lows`` are where its partitions begin, ``oldest`` when what lies there came."""

    lows: Mapping[LogPartition, int] = field(default_factory=dict)
    oldest: dict[LogPartition, int] = field(default_factory=dict)

    def may_cover(self, death: Proven) -> bool:
        """Might the letter of a recorded death be among what was forgotten?

        Not if its transaction began when the topic's end lay above all that. Where its begin is not known, not if it was
        entered later than the oldest letter that is left in each partition that lost some: letters are written just before.
        A recovery may enter a death at any time after it: of such ones nothing is known.
        """
        trimmed = {place: low for place, low in self.lows.items() if low > 0}
        if death.begun is not None:
            starts = {LogPartition(start.topic, start.partition): start.offset for start in death.begun.outputs}
            return any(low > starts.get(place, low) for place, low in trimmed.items())
        return any(not 0 <= self.oldest.get(place, -1) < death.at - SLACK_MS for place in trimmed)


class SecondOutcomes(NamedTuple):
    """Messages with an effect whose death stands; of those ``redriving`` a redrive under way will take it back."""

    faults: frozenset[bytes] = frozenset()
    redriving: frozenset[bytes] = frozenset()


def second_outcomes(deaths: Mapping[bytes, int], entries: Iterable[Proven], orders: Iterable[Order]) -> SecondOutcomes:
    """Judge the deaths of messages that have an effect.

    A death is over when a later redrive is entered as delivered: a recovery that found it done writes no more than that.
    One that is ordered, and whose order has not ended, may have its effect before the record that takes the letter back.
    """
    over = {
        entry.digest for entry in entries if entry.outcome == DELIVERED and entry.replay > deaths.get(entry.digest, entry.replay)
    }
    ordered = {one.digest for order in orders for one in order.wanted if one.replay > deaths.get(one.digest, one.replay)}
    left = deaths.keys() - over
    return SecondOutcomes(frozenset(left - ordered), frozenset(left & ordered))
