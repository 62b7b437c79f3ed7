"""What a group says of one partition may be an error although it answers: that is no word of a position that was never stored."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from relay.kafka import group as group_module
from relay.kafka.group import GroupConsumer
from relay.message.errors import Unreachable
from relay.message.record import LogPartition

PLACES = [LogPartition("log", 0), LogPartition("log", 1)]


class Client:
    """Answers for each partition; ``error`` is that of the second one."""

    error: KafkaError | None = None
    is_lost = False

    def __init__(self, _settings: dict[str, Any], **_: Any) -> None: ...

    def subscribe(self, *_: object, **__: object) -> None: ...

    def committed(self, wanted: list[Any], **_: object) -> list[Any]:
        said = (SimpleNamespace(topic=one.topic, partition=one.partition, offset=7, metadata="note", error=None) for one in wanted)
        first, second = said
        if self.error is not None:
            second.offset, second.metadata, second.error = -1001, None, self.error
        return [first, second]

    def commit(self, *, offsets: list[Any], asynchronous: bool) -> list[Any] | None:
        return None if asynchronous else self.committed(offsets)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> GroupConsumer:
    monkeypatch.setattr(group_module, "Consumer", Client)
    return GroupConsumer({"group.id": "g"}, ["log"], lambda: None)


def test_positions_are_told_with_their_notes(group: GroupConsumer) -> None:
    assert group.committed(PLACES) == dict.fromkeys(PLACES, (7, "note"))
    group.commit(dict.fromkeys(PLACES, 7), {}, wait=True)


def test_a_position_that_is_not_told_now_is_waited_for_and_is_no_first_start(
    group: GroupConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a transaction that stores one is open: taken for none, the log would be read from its beginning."""
    monkeypatch.setattr(Client, "error", KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT, "open"))
    with pytest.raises(Unreachable, match=r"log\[1\]"):
        group.committed(PLACES)
    with pytest.raises(Unreachable, match=r"log\[1\]"):
        group.commit(dict.fromkeys(PLACES, 7), {}, wait=True)
