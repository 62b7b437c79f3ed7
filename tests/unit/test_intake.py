"""Intake: whatever a stranger writes becomes a message with identity and lane, a marker, or a reason."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from structlog.testing import capture_logs

from relay.capture.outcomes import encode_marker, marker_headers
from relay.log.anchor import NewEpoch, anchor_of
from relay.log.holds import HoldBudget, Waiting
from relay.log.intake import HEADERS_MAX, Intake
from relay.message.envelope import LOG_ONLY_HEADERS, ResourceName
from relay.message.errors import MessageRejected
from relay.message.identity import capture_id, digest, position_digest, rules
from relay.message.record import LogPartition

PLACE = LogPartition("orders", 0)
TOPIC_ID = b"i" * 16
SHOP = ResourceName("shop", "u-1")
NONCE = b"n" * 16
CAPTURE = capture_id(NONCE)


class Fake:
    """A record as the client library hands it over."""

    def __init__(
        self,
        offset: int = 0,
        headers: list[tuple[str, bytes | None]] | None = None,
        value: bytes | None = b"v",
        key: bytes | None = b"k",
        place: LogPartition = PLACE,
    ) -> None:
        self._fields = (place, offset, headers, value, key)

    def topic(self) -> str:
        return self._fields[0].topic

    def partition(self) -> int:
        return self._fields[0].partition

    def offset(self) -> int:
        return self._fields[1]

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._fields[2]

    def value(self) -> bytes | None:
        return self._fields[3]

    def key(self) -> bytes | None:
        return self._fields[4]

    def timestamp(self) -> tuple[int, int]:
        return 1, 1000

    def leader_epoch(self) -> int:
        return 0

    def error(self) -> None:
        return None


class BrokenHeaders(Fake):
    """What confluent-kafka does with a header name that is not UTF-8; asked twice, it ends the process."""

    asked = 0

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        self.asked += 1
        assert self.asked == 1, "the second call hands over a list with a hole in it"
        raise SystemError("returned a result with an exception set")


def intake(order: str = "publisher", identity: tuple[str, ...] = ("cloudevents", "position"), **starts: int) -> Intake:
    made = Intake(rules(identity), order, budget=HoldBudget(10_000), marker_wait_s=1, askable=frozenset({"shop"}))
    made.start({PLACE: 0}, {"orders": TOPIC_ID})
    return made


def captured(offset: int, capture: bytes = CAPTURE, resource: bytes | None = None) -> Fake:
    return Fake(
        offset,
        [
            ("ce_id", b"m%d" % offset),
            ("ce_source", b"/s"),
            ("ce_relaycapture", capture.hex().encode()),
            ("ce_relayresource", SHOP.encode() if resource is None else resource),
        ],
    )


def marker(offset: int, nonce: bytes | None, capture: bytes = CAPTURE) -> Fake:
    headers: list[tuple[str, bytes | None]] = [*marker_headers(capture, b"/s", SHOP)]
    return Fake(offset, headers, encode_marker(capture, nonce, None, []), capture)


def holds(made: Intake) -> Mapping[str, int]:
    held = made.partitions[PLACE]
    return {"held": held.held, "ready": len(held.ready), "alarms": held.alarms, "aborted": held.aborted}


@pytest.mark.parametrize(
    "headers",
    [None, [], [("x", b"y")], [("ce_id", b"")], [("ce_id", None)], [("ce_source", b"/s")]],
    ids=["none", "empty", "others", "empty id", "null id", "source only"],
)
def test_without_an_id_the_position_identifies(headers: list[tuple[str, bytes | None]] | None) -> None:
    message = intake().derive(Fake(7, headers), "orders", 0)

    assert message is not None
    assert message.digest == position_digest(TOPIC_ID, 0, 7)
    assert message.fault is None


def test_bytes_that_are_no_text_identify_as_they_are() -> None:
    message = intake().derive(Fake(0, [("ce_id", b"\xff\x00"), ("ce_source", b"\xfe")]), "orders", 0)

    assert message is not None
    assert message.digest == digest(b"c", b"\xfe", b"\xff\x00")
    assert message.lane == b"\xfe"


def test_a_message_of_a_topic_that_was_taken_out_of_the_route_is_known_by_its_id() -> None:
    """A recovery reads it, where the last owner delivered it and an output has lost it since."""
    taken_out = intake().derive(Fake(7, [("ce_id", b"a"), ("ce_source", b"/s")]), "former", 0)
    nameless = intake().derive(Fake(7), "former", 0)

    assert taken_out is not None
    assert nameless is not None
    assert (taken_out.topic, taken_out.digest) == ("former", digest(b"c", b"/s", b"a"))
    assert nameless.digest != position_digest(TOPIC_ID, 0, 7), "nobody knows its topic's id"


class Event(Fake):
    """What comes in a record's place: an error, or the end of a partition."""

    def error(self) -> object:  # type: ignore[override]
        return "an error"


def test_events_among_records_are_handed_back_and_are_no_messages() -> None:
    made = intake()
    end = Event(7)

    assert made.take([Fake(0), end, Fake(1)], 0) == [end]

    assert [message.offset for message in made.take_ready(10)] == [0, 1]
    assert made.positions() == {PLACE: 2}


def test_a_value_that_hides_the_id_is_a_fault_under_its_place() -> None:
    def unreadable(headers: object, topic: bytes, value: bytes | None) -> bytes | None:
        raise MessageRejected("decode", "schema", "nothing can read it for now")

    made = Intake([unreadable], "publisher", budget=HoldBudget(10_000), marker_wait_s=1, askable=frozenset())
    made.start({PLACE: 0}, {"orders": TOPIC_ID})

    made.take([Fake(3)], 0)

    (message,) = made.take_ready(10)
    assert message.digest == position_digest(TOPIC_ID, 0, 3)
    assert message.fault is not None
    assert message.fault.code == "schema"


def test_the_first_rule_that_finds_an_id_names_the_message() -> None:
    made = intake(identity=("cloudevents", "header:h", "json:/id", "position"))
    json, named, both = b'{"id": 1}', ("h", b"1"), [("ce_id", b"1"), ("ce_source", b"/s")]

    made.take(
        [Fake(0, [*both, named], json), Fake(1, [named], json), Fake(2, [], json), Fake(3, [named], b"v"), Fake(4, [], b"v")], 0
    )

    by_header, by_json = rules(["header:h", "json:/id"])
    assert [message.digest for message in made.take_ready(10)] == [
        digest(b"c", b"/s", b"1"),
        by_header(dict([named]), b"orders", json),
        by_json({}, b"orders", json),
        by_header(dict([named]), b"orders", b"v"),
        position_digest(TOPIC_ID, 0, 4),
    ]


def test_the_last_of_a_repeated_header_counts() -> None:
    message = intake().derive(Fake(0, [("ce_id", b"a"), ("ce_id", b"b")]), "orders", 0)

    assert message is not None
    assert message.digest == digest(b"c", b"orders", b"b")


@pytest.mark.parametrize(
    "raw",
    [b"", b"zz" * 16, b"aa" * 15, b"aa" * 17, b"\xff" * 32, b" a" * 16, b"aa " * 16, None],
    ids=["empty", "no hex", "short", "long", "no text", "blanks", "blanks between", "null"],
)
def test_a_malformed_capture_header_is_a_fault_and_holds_nothing(raw: bytes | None) -> None:
    made = intake()

    made.take([Fake(0, [("ce_id", b"a"), ("ce_relaycapture", raw)])], 0)

    (message,) = made.take_ready(10)
    assert message.fault is not None
    assert (message.fault.stage, message.fault.code) == ("decode", "capture")
    assert made.positions() == {PLACE: 1}


def test_as_many_headers_as_a_message_may_have_are_no_fault() -> None:
    made = intake()
    made.take([Fake(0, [("n", b"%d" % n) for n in range(HEADERS_MAX)])], 0)

    (message,) = made.take_ready(10)
    assert (message.fault, len(message.headers)) == (None, HEADERS_MAX)


def test_too_many_headers_are_a_fault_and_are_cut() -> None:
    made = intake()

    made.take([Fake(0, [("ce_id", b"a"), *(("x", b"y") for _ in range(10_000))])], 0)

    (message,) = made.take_ready(10)
    assert message.fault is not None
    assert message.fault.code == "headers"
    assert len(message.headers) == HEADERS_MAX
    assert message.digest == digest(b"c", b"orders", b"a")


def test_header_names_that_cannot_be_read_are_a_fault_and_are_asked_for_once() -> None:
    made = intake()

    made.take([BrokenHeaders(3)], 0)

    (message,) = made.take_ready(10)
    assert message.fault is not None
    assert message.fault.code == "headers"
    assert message.headers == []
    assert message.digest == position_digest(TOPIC_ID, 0, 3)


def test_a_captured_message_waits_for_its_marker() -> None:
    made = intake()
    made.take([captured(0), captured(1)], 0)
    assert holds(made)["held"] == 2

    made.take([marker(2, NONCE)], 0)

    assert [m.offset for m in made.take_ready(10)] == [0, 1]
    assert made.positions() == {PLACE: 3}


def test_a_committed_marker_with_another_nonce_is_ignored_and_alarms() -> None:
    made = intake()
    made.take([captured(0), marker(1, b"x" * 16)], 0)

    assert holds(made) == {"held": 1, "ready": 0, "alarms": 1, "aborted": 0}


@pytest.mark.parametrize("broken", [b"", b"garbage", None])
def test_a_broken_marker_is_no_message_and_alarms(broken: bytes | None) -> None:
    made = intake()
    headers: list[tuple[str, bytes | None]] = [*marker_headers(CAPTURE, b"/s", SHOP)]

    made.take([captured(0), Fake(1, headers, broken, CAPTURE)], 0)

    assert holds(made) == {"held": 1, "ready": 0, "alarms": 1, "aborted": 0}


def test_whoever_writes_false_markers_does_not_fill_the_log() -> None:
    made = intake()

    with capture_logs() as logs:
        made.take([captured(0), *(marker(offset, b"x" * 16) for offset in range(1, 65)), marker(65, NONCE)], 0)

    assert [line["seen"] for line in logs if "reason" in line] == [1, 2, 4, 8, 16, 32, 64]


def test_an_aborted_marker_of_a_resource_in_reach_is_only_a_reason_to_ask() -> None:
    made = intake()
    made.take([captured(0), marker(1, None)], 5)

    assert holds(made) == {"held": 1, "ready": 0, "alarms": 0, "aborted": 0}
    assert [hold.capture for hold in made.due(5)] == [CAPTURE]


def test_an_aborted_marker_is_a_reason_to_ask_at_once_although_the_resource_was_silent_a_moment_ago() -> None:
    made = intake()
    made.take([captured(0)], 0)
    made.partitions[PLACE].scan_to(1, 5)
    (hold,) = made.due(5)
    made.postpone(hold.capture, hold.resource, Waiting.UNREACHABLE, 5)
    made.postpone(hold.capture, hold.resource, Waiting.UNREACHABLE, 5)
    assert made.due(6) == []

    made.take([marker(1, None)], 6)

    assert made.due(6) == [hold]


def test_an_aborted_marker_of_a_resource_out_of_reach_is_believed() -> None:
    made = intake()
    made.take([captured(0, resource=b"elsewhere/u-2"), marker(1, None)], 5)

    assert holds(made) == {"held": 0, "ready": 0, "alarms": 0, "aborted": 1}


def test_a_record_that_only_calls_itself_an_outcome_is_a_message() -> None:
    message = intake().derive(Fake(0, [("ce_id", b"a"), ("ce_type", b"relay.outcome")]), "orders", 0)

    assert message is not None
    assert message.capture is None


@pytest.mark.parametrize("key", [None, b"42", b"o" * 16], ids=["none", "short", "as long as a marker's"])
def test_a_captured_message_of_the_markers_type_is_delivered_with_its_capture(key: bytes | None) -> None:
    made = intake()
    headers: list[tuple[str, bytes | None]] = [*(captured(0).headers() or []), ("ce_type", b"relay.outcome")]

    made.take([Fake(0, headers, key=key), marker(1, NONCE)], 0)

    assert holds(made) == {"held": 0, "ready": 1, "alarms": 0, "aborted": 0}


@pytest.mark.parametrize(
    ("order", "lanes"),
    [("publisher", [b"/a", b"/b"]), ("key", [b"k", b""]), ("partition", [b"orders/0"] * 2)],
)
def test_the_order_names_the_lane(order: str, lanes: list[bytes]) -> None:
    made = intake(order)

    made.take([Fake(0, [("ce_source", b"/a")], key=b"k"), Fake(1, [("ce_source", b"/b")], key=None)], 0)

    assert [m.lane for m in made.take_ready(10)] == lanes


def test_what_names_a_capture_or_a_delivery_is_taken_off_a_message_that_is_of_none() -> None:
    """An output that another route made is this one's input: what counts as present in an output goes by these headers."""
    strange: list[tuple[str, bytes | None]] = [(name, b"x") for name in sorted(LOG_ONLY_HEADERS)]
    own: list[tuple[str, bytes | None]] = [("ce_source", b"/shop"), ("relay", b"kept"), ("ce_id", b"7")]

    message = intake().derive(Fake(3, [own[0], *strange, *own[1:]]), "orders", 0)
    plain = intake().derive(Fake(3, own), "orders", 0)

    assert message is not None
    assert plain is not None
    assert message.headers == plain.headers == own
    assert (message.digest, message.lane, message.capture) == (plain.digest, plain.lane, None)


@pytest.mark.parametrize(
    ("order", "headers", "key", "lane"),
    [
        ("publisher", [("ce_source", b"/shop")], b"k", b"/shop"),
        ("publisher", None, b"k", b"orders"),
        ("key", [("ce_source", b"/shop")], b"k", b"k"),
        ("key", None, None, b""),
        ("partition", [("ce_source", b"/shop")], b"k", b"orders/0"),
    ],
)
def test_lanes_are_named_as_ever_since_outputs_are_placed_by_them(
    order: str, headers: list[tuple[str, bytes | None]] | None, key: bytes | None, lane: bytes
) -> None:
    message = intake(order).derive(Fake(3, headers, key=key), "orders", 0)

    assert message is not None
    assert message.lane == lane


def test_without_order_every_message_has_a_lane_of_its_own() -> None:
    made = intake("none")

    made.take([Fake(n, [("ce_id", b"%d" % n)]) for n in range(5)], 0)

    assert len({m.lane for m in made.take_ready(10)}) == 5


def test_records_of_a_partition_that_went_away_are_dropped() -> None:
    made = intake()

    made.take([Fake(0, place=LogPartition("orders", 1))], 0)

    assert made.ready() == 0


def test_partitions_of_the_same_number_are_told_apart_by_their_topics() -> None:
    made = intake()
    other = LogPartition("returns", 0)
    made.start({PLACE: 0, other: 7}, {"orders": TOPIC_ID, "returns": b"r" * 16})

    made.take([Fake(0), Fake(7, place=other), Fake(1), Fake(8, place=other)], 0)

    assert made.positions() == {PLACE: 0, other: 7}
    assert [(message.topic, message.offset) for message in made.take_ready(10)] == [
        ("orders", 0), ("orders", 1), ("returns", 7), ("returns", 8)
    ]  # fmt: skip
    assert made.positions() == {PLACE: 2, other: 9}


def test_an_end_of_partition_passes_what_is_no_message_and_never_goes_back() -> None:
    made = intake()
    made.take([Fake(0)], 0)
    made.take_ready(10)

    for end in (3, 2):  # the marker of a transaction lies at 1 and 2
        made.passed(PLACE, end)
        made.passed(LogPartition("gone", 0), end)
        assert made.positions() == made.reached() == {PLACE: 3}


class Led(Fake):
    """A record that the leader of an epoch has written."""

    def __init__(self, offset: int, epoch: int, place: LogPartition = PLACE) -> None:
        super().__init__(offset, place=place)
        self._epoch = epoch

    def leader_epoch(self) -> int:
        return self._epoch


def test_another_leaders_records_are_told_once_with_what_was_read_before_and_not_beyond_a_new_start() -> None:
    made = intake()
    made.take([Led(0, 3), Led(1, 3)], 0)
    assert made.new_epochs() == {PLACE: NewEpoch(3, None)}
    made.take([Led(2, 3)], 0)
    assert made.new_epochs() == {}

    for offset, epoch in [(3, 4), (4, 4), (5, 6)]:
        made.take([Led(offset, epoch)], 0)
    assert made.new_epochs() == {PLACE: NewEpoch(4, anchor_of(Led(2, 3)))}, "the first one since it was asked for"
    assert made.new_epochs() == {}

    made.take([Led(6, 7)], 0)
    made.start({PLACE: 6}, {"orders": TOPIC_ID})
    assert made.new_epochs() == {}


def test_what_is_no_longer_assigned_is_dropped_wherever_it_lies_between_what_is() -> None:
    made, other, gone = intake(), LogPartition("orders", 1), LogPartition("orders", 2)
    made.start({PLACE: 0, other: 0}, {"orders": TOPIC_ID})

    made.take([Led(0, 3), Led(7, 9, gone), Led(0, 4, other), Led(8, 9, gone)], 0)
    made.take([Led(9, 9, gone)], 0)

    assert [(one.partition, one.offset) for one in made.take_ready(10)] == [(0, 0), (1, 0)]
    assert made.new_epochs() == {PLACE: NewEpoch(3, None), other: NewEpoch(4, None)}
    assert made.anchors({PLACE: 1, other: 1}) == {PLACE: anchor_of(Led(0, 3)), other: anchor_of(Led(0, 4, other))}


@pytest.mark.parametrize("order", ["publisher", "partition"])
def test_what_a_recovery_reads_of_a_topic_that_was_taken_out_is_the_message_that_it_was(order: str) -> None:
    record = Fake(3, [("ce_specversion", b"1.0"), ("ce_id", b"m")], place=LogPartition("former", 0))
    there, gone = intake(order), intake(order)
    there.start({}, {"former": TOPIC_ID})

    before, after = there.derive(record, "former", 0), gone.derive(record, "former", 0)

    assert before is not None
    assert before == after
