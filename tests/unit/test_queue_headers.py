"""Headers that queues go by: whoever publishes one that none could read learns of it at once, by the same reading."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.capture.block import CaptureBlock
from relay.capture.testing import CaptureInMemory
from relay.delivery.queue.mapping import QueueMapping
from relay.message.errors import CaptureError, MessageRejected
from relay.message.identity import content_digest, digest
from relay.message.queue_headers import MODES, READERS
from relay.message.record import LogMessage
from relay.queue.settings import QueueSettings
from tests.unit.test_capture_publish import Admitting
from tests.unit.test_queue_mapping import AUDIENCE, configured

HEADERS: Final = sorted(READERS.keys() - {"ce_source", "ce_id", "ce_subject"})
"""What `publish` has an argument for is no header of the application's."""
QUEUES: Final = (QueueSettings("credit", AUDIENCE), configured("balance"), configured("publish-subscribe"))
UNKNOWN: Final = "names a subscriber that queue"
"""Which subscribers there are only the queue knows."""
LONG: Final = b"9" * 5000

UNREADABLE: Final = [
    ("ce_relaypriority", "10", "'10' is not a number from 0 to 9"),
    ("ce_relaypriority", "high", "'high' is not a number from 0 to 9"),
    ("ce_relaypriority", "", "'' is not a number from 0 to 9"),
    ("ce_relaydelay", "60s", "'60s' is not a number from 0 to 31622400000"),
    ("ce_relaydelay", "-1", "'-1' is not a number"),
    ("ce_relaydelay", b"\xff", r"'\\xff' is not a number"),
    ("ce_relaydelay", LONG, f"'{'9' * 60}'... is not a number"),
    ("ce_expirytime", "2026-11-21T10:00:00", "'2026-11-21T10:00:00' is not a time with its zone, as in RFC 3339"),
    ("ce_expirytime", "tomorrow", "'tomorrow' is not a time with its zone"),
    ("ce_expirytime", b"\xff", r"'\\xff' is not UTF-8 text"),
    ("ce_relaymode", "everywhere", "'everywhere' is none of combined, publish-subscribe, balance and in-order"),
    ("ce_relayaudience", "ann,,bob", "'ann,,bob' lacks a name"),
    ("ce_relayaudience", "a\0b", r"'a\x00b' holds a zero character"),
]


@pytest.fixture
def publisher() -> Admitting:
    return Admitting()


def block_of(publisher: Any) -> CaptureBlock:
    return CaptureBlock(publisher).__enter__()


@pytest.mark.parametrize(("name", "value", "words"), UNREADABLE)
def test_a_header_that_no_queue_could_read_is_refused_when_it_is_published(name: str, value: Any, words: str, publisher: Admitting) -> None:
    with pytest.raises(CaptureError) as refused:
        block_of(publisher).publish("orders", {}, headers={"tenant": "a", name: value})

    sentence = str(refused.value)
    assert sentence.startswith(f"headers: {name} = {words}")
    assert sentence.endswith(", so that no queue could take the message; correct it, or leave the header out")
    assert publisher.admitted == []


def test_a_block_with_such_a_header_commits_nothing(tmp_path: Path) -> None:
    with CaptureInMemory(f"sqlite:///{tmp_path}/shop.db") as capture:
        with pytest.raises(CaptureError, match="a message was refused"), capture.transaction() as tx:  # noqa: PT012
            tx.publish("orders", 1)
            with suppress(CaptureError):
                tx.publish("orders", 2, headers={"ce_relaydelay": "1min"})
        with capture.transaction() as tx:
            with suppress(CaptureError), tx.savepoint():
                tx.publish("orders", 3, headers={"ce_relaypriority": "11"})
            tx.publish("orders", 4, headers={"ce_relaydelay": "60000"})

        assert [(one.data, one.headers["ce_relaydelay"]) for one in capture.published] == [(4, b"60000")]


def faults_of(headers: list[tuple[str, bytes]]) -> list[MessageRejected]:
    """Return what several queues find wrong with a message."""
    given = dict(headers)
    identity = digest(b"c", given.get("ce_source", b"orders"), given["ce_id"])
    message = LogMessage("orders", 2, 7, b"k", b"v", headers, identity, content_digest(b"k", b"v"), b"/till", None, 0)
    return [fault for queue in QUEUES for fault in QueueMapping(queue, dict).map([message], tuple).faults.values()]  # type: ignore[arg-type]


ZONES = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
VALUES = st.one_of(
    st.text(),
    st.binary(),
    st.integers(-2, 12).map(str),
    st.integers(0, 10**12).map(str),
    st.datetimes(timezones=st.none() | ZONES).map(lambda moment: moment.isoformat().lower()),
    st.sampled_from([*MODES, "in-order", "Balance", "IN-ORDER"]),
    st.lists(st.sampled_from(["approval", "clerks", "ann", "bob", "eve", "", " ann "])).map(",".join),
)


@given(headers=st.dictionaries(st.sampled_from(HEADERS), VALUES), identifier=st.text(), subject=st.none() | st.text())
@example(headers={"ce_expirytime": "9999-12-31T23:59:59-23:59"}, identifier="a", subject=None)
@example(headers={"ce_expirytime": "2016-12-31T23:59:60Z"}, identifier="a", subject=None)
@example(headers={"ce_relaypriority": "\u0665"}, identifier="a", subject="")
def test_what_publish_takes_queues_read_and_what_it_refuses_they_do_not(
    headers: dict[str, str | bytes], identifier: str, subject: str | None
) -> None:
    publisher = Admitting()
    with suppress(CaptureError):
        block_of(publisher).publish("orders", {}, id=identifier, subject=subject, headers=headers)
    if publisher.admitted:
        assert [fault for fault in faults_of(publisher.admitted[0].headers) if UNKNOWN not in str(fault)] == []
        return
    raw = [(name, value.encode() if isinstance(value, str) else value) for name, value in headers.items()]
    named = [("ce_id", identifier.encode()), *([] if subject is None else [("ce_subject", subject.encode())])]
    assert identifier == "" or len(faults_of([*named, *raw])) == len(QUEUES)
