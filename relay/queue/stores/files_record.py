"""Messages of a queue kept in files as Avro records of ``schemas/queue_unit.avsc`` and ``queue_content.avsc``, and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from relay.message.errors import Stopped
from relay.message.schemas import OtherVersion, UnknownRecord, codec
from relay.queue.message import Parent
from relay.queue.port import Holder
from relay.queue.states import PublisherState, SubscriberState
from relay.queue.stores.files_message import At, Content, Delivery, Kept

HERE = 0
"""The file number of a content that lies in the same frame as the unit that names it."""
_CHECKSUM_BYTES = 4
# By number: calling the enumeration takes ten times as long, and opening a queue does it for every state it reads.
_PUBLISHER_STATES = {state.value: state for state in PublisherState}
_SUBSCRIBER_STATES = {state.value: state for state in SubscriberState}


@dataclass(slots=True)
class Unit:
    """What one write to the log says; ``contents`` lie behind the record, in one piece."""

    uuid: str
    last: int
    retired: bool
    arrived: list[Kept] = field(default_factory=list)
    stands: list[Kept] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    journals: list[tuple[int, list[int]]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    holders: list[Holder] = field(default_factory=list)
    left: list[bytes] = field(default_factory=list)
    outcomes: list[tuple[str, bool]] = field(default_factory=list)

    def encode(self) -> bytes:
        """Return the record."""
        return codec("queue_unit").encode(
            {
                "uuid": self.uuid,
                "last": self.last,
                "retired": self.retired,
                "arrived": [_arrived(message) for message in self.arrived],
                "stands": [_stand(message) for message in self.stands],
                "gone": self.gone,
                "journals": [{"number": number, "dead": dead} for number, dead in self.journals],
                "dropped": self.dropped,
                "holders": [holder._asdict() for holder in self.holders],
                "left": self.left,
                "outcomes": [{"attempt": name, "committed": committed} for name, committed in self.outcomes],
            }
        )


def encode_content(content: Content) -> bytes:
    """Return what a message carries as bytes that prove themselves."""
    raw = codec("queue_content").encode(
        {
            "key": content.key,
            "value": content.value,
            "headers": [{"name": name, "value": value} for name, value in content.headers],
            "subject": content.subject,
            "parents": [parent._asdict() for parent in content.parents],
        }
    )
    return crc32(raw).to_bytes(_CHECKSUM_BYTES, "big") + raw


def decode_content(raw: bytes, named: str) -> Content:
    """Return what a message carries; raises Stopped, naming the message, if the file was damaged or is another version's."""
    body = raw[_CHECKSUM_BYTES:]
    try:
        if crc32(body).to_bytes(_CHECKSUM_BYTES, "big") != raw[:_CHECKSUM_BYTES]:
            raise UnknownRecord("the checksum differs")
        found = codec("queue_content").decode(body)
    except OtherVersion as error:
        raise Stopped(f"{named} was written by another version ({error}): open the queue with that one") from error
    except UnknownRecord as error:
        raise Stopped(
            f"{named} cannot be read from its file ({error}): restore the queue's directory from a copy"
        ) from error
    return Content(
        found["key"],
        found["value"],
        tuple((header["name"], header["value"]) for header in found["headers"]),
        found["subject"],
        tuple(Parent(**parent) for parent in found["parents"]),
    )


def decode_unit(raw: bytes) -> dict[str, Any]:
    """Return the record of a unit; raises UnknownRecord."""
    return codec("queue_unit").decode(raw)


def message_of(arrived: dict[str, Any], stand: dict[str, Any], here: At) -> Kept:
    """Return a message from its two records; ``here`` is where the contents of their own frame begin."""
    return Kept(
        arrived["handle"],
        arrived["publisher"],
        arrived["id"],
        arrived["lane"],
        arrived["in_order"],
        arrived["child"],
        arrived["put_at"],
        arrived["reveal_at"],
        arrived["expires_at"],
        stand["priority"],
        stand["attempt"],
        stand["size"],
        _place(stand, here),
        [
            _delivery(subscriber, group, found)
            for subscriber, group, found in zip(
                arrived["subscribers"], arrived["groups"], stand["deliveries"], strict=True
            )
        ],
        _PUBLISHER_STATES[stand["state"]],
        stand["times"],
    )


def bring(message: Kept, stand: dict[str, Any], here: At) -> None:
    """Bring a message to what its record says; ``here`` is where the contents of the record's own frame begin."""
    message.state = _PUBLISHER_STATES[stand["state"]]
    message.times, message.priority, message.attempt = stand["times"], stand["priority"], stand["attempt"]
    message.size, message.at = stand["size"], _place(stand, here)
    message.deliveries = [
        _delivery(delivery.subscriber, delivery.group, found)
        for delivery, found in zip(message.deliveries, stand["deliveries"], strict=True)
    ]


def _delivery(subscriber: str, group: str, found: dict[str, Any]) -> Delivery:
    return Delivery(
        subscriber,
        group,
        _SUBSCRIBER_STATES[found["state"]],
        found["times"],
        found["revealed"],
        found["attempt"],
        found["failures"],
        found["holder"],
        found["again_at"],
        found["cause"],
    )


def _place(stand: dict[str, Any], here: At) -> At:
    if stand["file"] == HERE:
        return At(here.file, here.offset + stand["at"], stand["length"])
    return At(stand["file"], stand["at"], stand["length"])


def _arrived(message: Kept) -> dict[str, Any]:
    return {
        "handle": message.handle,
        "publisher": message.publisher,
        "id": message.id,
        "lane": message.lane,
        "in_order": message.in_order,
        "child": message.child,
        "put_at": message.put_at,
        "reveal_at": message.reveal_at,
        "expires_at": message.expires_at,
        "subscribers": [delivery.subscriber for delivery in message.deliveries],
        "groups": [delivery.group for delivery in message.deliveries],
    }


def _stand(message: Kept) -> dict[str, Any]:
    return {
        "handle": message.handle,
        "state": message.state,
        "times": message.times,
        "priority": message.priority,
        "attempt": message.attempt,
        "size": message.size,
        "file": message.at.file,
        "at": message.at.offset,
        "length": message.at.length,
        "deliveries": [
            {
                "state": delivery.state,
                "times": delivery.times,
                "revealed": delivery.revealed,
                "attempt": delivery.attempt,
                "failures": delivery.failures,
                "holder": delivery.holder,
                "again_at": delivery.again_at,
                "cause": delivery.cause,
            }
            for delivery in message.deliveries
        ],
    }
