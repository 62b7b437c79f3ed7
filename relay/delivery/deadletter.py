"""The dead-letter record: the message as it was, with the cause in headers of our own that no stranger can pre-set.

A redrive that succeeds is followed by a record under the same key, without a value and with the code ``redriven``: the
letters of that route and key with a lower ``replay_count`` count no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from relay.delivery.lane_outputs import place_of
from relay.message.envelope import ID, REDRIVEN, UNTOLD_CODE, Headers, outgoing
from relay.message.errors import MessageRejected
from relay.message.record import LogMessage, LogPartition

PREFIX: Final = "__relay.errors."
SENTENCE_CHARACTERS_MAX: Final = 1000
ID_BYTES_MAX: Final = 4_096
TAKEN_BACK: Final = MessageRejected("redrive", REDRIVEN, "a redrive delivered it: its earlier dead letters count no more")
"""Stands for the cause in the record, without a value, that takes dead letters back."""
UNTOLD: Final = MessageRejected(
    "redrive",
    UNTOLD_CODE,
    "whether a redrive delivered it can no longer be told; look for it at the destination before you redrive it again",
)
"""The cause of a redrive that was torn and whose outputs have left their topic since."""

LETTER_LOST: Final = MessageRejected(
    "apply",
    "letter_lost",
    "it died, and its first dead letter is lost with a transaction that a broker left open; redrive it to learn why",
)
"""Stands for a cause that only the lost letter knew."""
OUTPUT_LOST: Final = MessageRejected(
    "apply",
    "output_lost",
    "its output is lost with a transaction that a broker left open, and it has left the log since: publish it again",
)


@dataclass(slots=True)
class DeadRecord:
    """A dead letter on its way, or what takes one back: where it goes and what it says."""

    partition: LogPartition
    key: bytes
    value: bytes | None
    headers: Headers


class Letters:
    """The dead letters of one route, whose ``target`` and consumer ``group`` they name; those of a lane lie in one partition."""

    def __init__(self, *, route: str, target: str, group: str, topic: str, partitions: int) -> None:
        self.places = [LogPartition(topic, p) for p in range(partitions)]
        self._route = route
        self._target = target
        self._group = group

    def of(self, message: LogMessage, cause: MessageRejected, replay: int) -> DeadRecord:
        """Return the letter of a message that died after so many redrives.

        The key is the digest in hexadecimal: the record is written at least once on table routes, so readers key by it. No
        worker's clock dates it: the topic's time is the brokers'.
        """
        facts = {
            "route": self._route,
            "target": self._target,
            "stage": cause.stage,
            "code": cause.code,
            "class": type(cause.__cause__ or cause).__name__,
            "message": _one_line(str(cause))[:SENTENCE_CHARACTERS_MAX],
            "topic": message.topic,
            "partition": str(message.partition),
            "offset": str(message.offset),
            "timestamp": str(message.timestamp_ms),
            "group": self._group,
            "attempts": "1",
            "replay_count": str(replay),
        }
        headers = [header for header in outgoing(message.headers) if not header[0].startswith(PREFIX)]
        headers += [(PREFIX + name, fact.encode()) for name, fact in facts.items()]
        headers.append((PREFIX + "message_id", _cut(message.header(ID) or b"")))
        return DeadRecord(place_of(message.lane, self.places), message.digest.hex().encode(), message.value, headers)

    def taking_back(self, message: LogMessage, replay: int) -> DeadRecord:
        """Return the record that takes the letters of a message back, which this redrive has delivered."""
        return self.of(message._replace(value=None), TAKEN_BACK, replay)


def _cut(identifier: bytes) -> bytes:
    """Return an id for people. The original stands beside it: twice, a long one would take more room than the topic has."""
    if len(identifier) <= ID_BYTES_MAX:
        return identifier
    return identifier[:ID_BYTES_MAX].decode("utf-8", "ignore").encode() + "…".encode()


def _one_line(sentence: str) -> str:
    """Replace what could forge a line in a log or a terminal (CWE-117)."""
    return "".join(character if character.isprintable() else " " for character in sentence)
