"""What a block takes for a message, before anything is appended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from relay.capture.block import CaptureBlock
from relay.capture.message import Buffered
from relay.kafka.topics import TopicFacts
from relay.message.errors import CaptureError


class Admitting:
    """As much of a Capture as a block needs to begin and to buffer."""

    source_bytes = b"/checkout"
    common_headers = ()
    is_here = True

    def __init__(self) -> None:
        self.admitted: list[Buffered] = []
        self.enter = self.leave = self.give_back = self.check_process = lambda *_: None

    def begin(self) -> tuple[Any, bytes, bytes]:
        return SimpleNamespace(rollback=lambda: None), bytes(16), b"n" * 16

    def topic(self, name: str, wait_s: float = 0.0) -> TopicFacts:
        return TopicFacts(name, b"", 4, 1)

    def admit(self, found: Buffered, *_: object) -> int:
        self.admitted.append(found)
        return 1


@pytest.fixture
def publisher() -> Admitting:
    return Admitting()


@pytest.fixture
def block(publisher: Any) -> Iterator[CaptureBlock]:
    made = CaptureBlock(publisher).__enter__()
    yield made
    made.__exit__(ValueError, ValueError(), None)


def test_the_type_of_the_relays_own_markers_is_refused(block: CaptureBlock, publisher: Admitting) -> None:
    with pytest.raises(CaptureError, match=r"^type = 'relay.outcome' is that of the relay's own markers; choose another"):
        block.publish("orders", {}, type="relay.outcome")

    assert publisher.admitted == []


@pytest.mark.parametrize("identifier", ["", 0, 42, b"a"])
def test_an_id_that_would_not_name_the_message_again_is_refused(
    block: CaptureBlock, publisher: Admitting, identifier: Any
) -> None:
    with pytest.raises(CaptureError, match=r"^id = .* leave it out for a new one"):
        block.publish("orders", {}, id=identifier)

    assert publisher.admitted == []


@pytest.mark.parametrize("given", [{"a": "1", "b": b"2"}, [("a", "1"), ("b", bytearray(b"2"))]], ids=["mapping", "pairs"])
def test_headers_are_published_as_they_are_given(block: CaptureBlock, publisher: Admitting, given: Any) -> None:
    block.publish("orders", {}, headers=given)

    assert publisher.admitted[0].headers[-2:] == [("a", b"1"), ("b", b"2")]


@pytest.mark.parametrize("given", ["ab", b"ab", ["ab"], [("a", "b", "c")], {7: "a"}, 7])
def test_headers_that_are_no_pairs_of_name_and_value_are_refused(block: CaptureBlock, given: Any) -> None:
    with pytest.raises(CaptureError, match=r"^headers: "):
        block.publish("orders", {}, headers=given)


@pytest.mark.parametrize("name", ["type", "subject", "content_type", "time"])
def test_what_is_no_text_where_text_is_wanted_is_refused_by_its_name(block: CaptureBlock, name: str) -> None:
    given: dict[str, Any] = {name: datetime(2026, 11, 25, tzinfo=UTC)}
    with pytest.raises(CaptureError, match=rf"^{name} = datetime.* is no text; give one"):
        block.publish("orders", {}, **given)


@pytest.mark.parametrize("given", [5, None, b"orders", ""])
def test_what_names_no_topic_is_refused_by_its_name(block: CaptureBlock, publisher: Admitting, given: Any) -> None:
    with pytest.raises(CaptureError, match=r"^topic = .* (is no text; give one|names nothing; give a text)"):
        block.publish(given, {})

    assert publisher.admitted == []


def test_a_type_that_says_nothing_is_refused(block: CaptureBlock) -> None:
    with pytest.raises(CaptureError, match=r"^type = '' names nothing; give a text"):
        block.publish("orders", {}, type="")


@pytest.mark.parametrize("given", [1.0, "1", 1.5])
def test_a_partition_that_is_no_whole_number_is_refused(block: CaptureBlock, publisher: Admitting, given: Any) -> None:
    with pytest.raises(CaptureError, match=r"^partition = .* is no whole number"):
        block.publish("orders", {}, partition=given)

    assert publisher.admitted == []


@pytest.mark.parametrize(("given", "is_there"), [(-1, False), (0, True), (3, True), (4, False)])
def test_a_partition_that_the_topic_does_not_have_is_refused(
    block: CaptureBlock, publisher: Admitting, given: int, *, is_there: bool
) -> None:
    with nullcontext() if is_there else pytest.raises(CaptureError, match=rf"^partition = {given}: topic orders has 0 to 3"):
        block.publish("orders", {}, partition=given)

    assert [one.partition for one in publisher.admitted] == ([given] if is_there else [])


def test_a_partition_may_be_a_whole_number_of_a_library(block: CaptureBlock, publisher: Admitting) -> None:
    given: Any = type("int64", (), {"__index__": lambda _: 3})()
    block.publish("orders", {}, partition=given)

    assert publisher.admitted[0].partition == 3
    assert type(publisher.admitted[0].partition) is int


def test_a_schema_that_no_capture_made_is_refused(block: CaptureBlock) -> None:
    given: Any = {"type": "string"}
    with pytest.raises(CaptureError, match=r"^schema: .* Capture.avro"):
        block.publish("orders", "tea", schema=given)


def test_the_key_of_a_text_is_its_text(block: CaptureBlock, publisher: Admitting) -> None:
    class Region(str, Enum):  # noqa: UP042 - whose `str()` is its name
        NORTH = "north"

    block.publish("orders", {}, key=Region.NORTH)

    assert publisher.admitted[0].key == b"north"


class Order:
    id = 42


@dataclass
class Written:
    id: int = 42
    status: str = "paid"


class Modelled(BaseModel):
    id: int = 42


@pytest.mark.parametrize("key", [Order(), Order, Written(), Modelled(), {"id": 42}, {42}, [42], (42,), 4.2, float("nan"), len])
def test_a_key_whose_text_is_no_name_is_refused(key: Any, publisher: Any) -> None:
    """It would be another one with each state of the object, or in each process."""
    block = CaptureBlock(publisher).__enter__()
    with pytest.raises(CaptureError, match=rf"^key: a {type(key).__name__} is neither text, bytes nor a whole number; give what names it"):
        block.publish("orders", {}, key=key)

    assert publisher.admitted == []


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (UUID(int=1), b"00000000-0000-0000-0000-000000000001"), (7, b"7"), (1 << 70, b"1180591620717411303424"), (Decimal("1.50"), b"1.50"),
        (date(2026, 1, 2), b"2026-01-02"), (type("int64", (int,), {})(7), b"7"),
    ],
)  # fmt: skip
def test_a_key_may_be_what_has_a_text_of_its_own(key: Any, text: bytes, block: CaptureBlock, publisher: Admitting) -> None:
    block.publish("orders", {}, key=key)

    assert publisher.admitted[0].key == text


@pytest.mark.parametrize("key", ["a\udcff", PurePath("a\udcff")])
def test_a_key_whose_text_has_no_form_in_the_log_is_refused(key: Any, publisher: Any) -> None:
    with pytest.raises(CaptureError, match=r"^key: it holds half of a surrogate pair"):
        CaptureBlock(publisher).__enter__().publish("orders", {}, key=key)

    assert publisher.admitted == []


@pytest.mark.parametrize("name", ["id", "type", "subject", "content_type", "time"])
def test_a_nul_is_refused_where_neither_queues_nor_databases_would_take_it(name: str, publisher: Any) -> None:
    with pytest.raises(CaptureError, match=rf"^{name}: it holds a NUL"):
        CaptureBlock(publisher).__enter__().publish("orders", {}, **{name: "a\0b"})

    assert publisher.admitted == []


def test_a_message_without_an_id_is_given_one(block: CaptureBlock) -> None:
    assert [block.publish("orders", {}) for _ in range(2)] == [f"{block.id.hex()}-0", f"{block.id.hex()}-1"]
    assert block.publish("orders", {}, id="a") == "a"
