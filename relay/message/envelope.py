"""The envelope: CloudEvents headers in Kafka binary mode, and which of them may leave the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, TypeVar

from relay.message.errors import HeadersRefused

Headers = list[tuple[str, bytes]]
"""Header names with raw values, in the order of the record; a name may repeat (the last one counts)."""

SPECVERSION: Final = "ce_specversion"
ID: Final = "ce_id"
SOURCE: Final = "ce_source"
TYPE: Final = "ce_type"
TIME: Final = "ce_time"
SUBJECT: Final = "ce_subject"
SEQUENCE: Final = "ce_sequence"
PARTITION_KEY: Final = "ce_partitionkey"
EXPIRY_TIME: Final = "ce_expirytime"
CONTENT_TYPE: Final = "content-type"
CAPTURE: Final = "ce_relaycapture"
RESOURCE: Final = "ce_relayresource"
INCARNATION: Final = "ce_relayincarnation"
PRIORITY: Final = "ce_relaypriority"
PARENTS: Final = "ce_relayparents"
MODE: Final = "ce_relaymode"
AUDIENCE: Final = "ce_relayaudience"
CAPTURE_HEX_CHARS: Final = 32
"""What a capture's name has in ``CAPTURE``."""
DELAY: Final = "ce_relaydelay"

HEADERS_MAX: Final = 256
"""A message with more of them becomes a dead letter."""

RESOURCE_BYTES_MAX: Final = 2048
"""A longer header names no resource."""

_Value = TypeVar("_Value")
_Content = str | bytes | bytearray | memoryview
_Pairs = Mapping[str, _Value] | Sequence[tuple[str, _Value]] | Iterator[tuple[str, _Value]] | AbstractSet[tuple[str, _Value]]
"""Any iterable of pairs will do; named so a type checker takes no mapping for one, and finds the types of a literal's values."""
GivenHeaders = _Pairs[_Content | None]
"""What an application gives as headers: a mapping, or pairs if a name repeats."""
FilledHeaders = _Pairs[_Content]
"""The same where each has a value, as in the log: CloudEvents know no attribute without one."""

OUT_INSTANCE: Final = "relay_instance"
OUT_N: Final = "relay_n"
OUT_DIGEST: Final = "relay_digest"
"""What settlement believes about an output record: the sealed transaction and the message it belongs to."""

OUTCOME_TYPE: Final = "relay.outcome"
"""``ce_type`` of an outcome marker; its claims are checked against the nonce or the resource, never believed."""
DEAD_ROUTE: Final = "__relay.errors.route"
DEAD_CODE: Final = "__relay.errors.code"
DEAD_REPLAY: Final = "__relay.errors.replay_count"
REDRIVEN: Final = "redriven"
"""The code of the record that takes dead letters back."""
UNTOLD_CODE: Final = "untold"
"""The code of the letter which says that nobody can tell whether a redrive delivered its message."""

CAPTURE_HEADERS: Final = frozenset({CAPTURE, RESOURCE})
OUTPUT_HEADERS: Final = frozenset({OUT_INSTANCE, OUT_N, OUT_DIGEST})
LOG_ONLY_HEADERS: Final = CAPTURE_HEADERS | OUTPUT_HEADERS
"""Never copied out of the log: a second relay would look for a decision, a settlement believe a stranger."""


def capture_of(raw: bytes | None) -> bytes | None:
    """Return the capture that the header ``CAPTURE`` names; None unless it has 32 hex characters: a header may be null, too."""
    if raw is None or len(raw) != CAPTURE_HEX_CHARS:
        return None
    try:
        capture = bytes.fromhex(raw.decode("ascii"))
    except ValueError:
        return None
    return capture if len(capture) == CAPTURE_HEX_CHARS // 2 else None  # fromhex passes over blanks



def outgoing(headers: Iterable[tuple[str, bytes]]) -> Headers:
    """Return the headers that may accompany a message out of the log."""
    return [header for header in headers if header[0] not in LOG_ONLY_HEADERS]


def given_headers(given: GivenHeaders | None) -> list[tuple[str, bytes | None]]:
    """Return an application's headers as a record has them; raises HeadersRefused for what is none.

    Text is iterable too, and so are the names of a mapping: taken for pairs, two letters would be a header.
    """
    if given is None:
        return []
    if isinstance(given, str | bytes | bytearray) or not isinstance(given, Iterable):
        raise HeadersRefused(f"headers: a {type(given).__name__} is neither a mapping nor a list of pairs of name and value")
    found: list[tuple[str, bytes | None]] = []
    for pair in given.items() if isinstance(given, Mapping) else given:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise HeadersRefused("headers: give a mapping, or a list of pairs of name and value")
        name, value = pair
        # The client would cut the name at a NUL, and ends the process at what is no UTF-8.
        if not isinstance(name, str) or "\0" in name or not is_utf8(name):
            raise HeadersRefused(f"headers: {name!r} is no name of a header; use letters that UTF-8 has, and no NUL")
        if isinstance(value, str) and is_utf8(value):
            value = value.encode()
        elif isinstance(value, bytearray | memoryview):
            value = bytes(value)
        if value is not None and not isinstance(value, bytes):
            raise HeadersRefused(f"headers: the value of {name!r} is neither bytes nor text that UTF-8 has")
        found.append((name, value))
    return found


def is_utf8(text: str) -> bool:
    """Has UTF-8 all of it? Half of a surrogate pair it has not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class ResourceName:
    """A resource as a message names it: the configured name and the uuid the database itself holds."""

    name: str
    uuid: str

    def encode(self) -> bytes:
        """Return the header value ``name/uuid``."""
        return f"{self.name}/{self.uuid}".encode()

    @classmethod
    def decode(cls, raw: bytes) -> ResourceName | None:
        """Read a header value; None if it is not of the form ``name/uuid``, or longer than any: holds keep it."""
        if len(raw) > RESOURCE_BYTES_MAX:
            return None
        name, slash, uuid = raw.decode("utf-8", "replace").rpartition("/")
        return cls(name, uuid) if slash and name and uuid else None
