"""A log line is one bounded line and holds no secret, whatever is given to it."""

import io
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import structlog
from pydantic import SecretStr

from relay.message.errors import Unreachable
from relay.run.logging import TEXT_CHARACTERS_MAX, key, setup, text
from relay.world import schedule

CANARY = "canary-7f3a"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def written(**fields: Any) -> dict[str, Any]:
    stream = io.StringIO()
    setup(stream=stream)
    structlog.get_logger().info("it happened", **fields)
    (line,) = stream.getvalue().splitlines()
    return dict(json.loads(line))


@pytest.mark.parametrize(
    "fields",
    [
        {"url": f"cannot connect to postgresql://shop:{CANARY}@db/shop"},
        {"conninfo": f"host=db password={CANARY} dbname=shop"},
        {"conninfo": f"host=db password='{CANARY} {CANARY}' dbname=shop"},
        {"sasl.password": CANARY},
        {"kafka": {"ssl.key.pem": CANARY, "nested": [{"sasl.password": CANARY}]}},
        {"value": SecretStr(CANARY)},
        {"values": [SecretStr(CANARY)]},
        {"api_token": CANARY},
        {"failed": ValueError(f"invalid input syntax: {CANARY}")},
        {"exc_info": ValueError(CANARY)},
    ],
)
def test_no_secret_is_written(fields: dict[str, Any]) -> None:
    assert CANARY not in json.dumps(written(**fields))


def test_a_relay_error_keeps_its_sentence_and_a_driver_s_error_only_its_type() -> None:
    error = Unreachable("no broker answers")
    error.__cause__ = KeyError(CANARY)

    assert written(failed=error)["failed"] == "Unreachable: no broker answers from KeyError"


def test_an_exception_says_where_it_was_raised() -> None:
    try:
        # From None: an interrupt that a test before injected at any instruction may have left an exception being handled.
        raise ValueError(CANARY) from None
    except ValueError as error:
        line = written(exc_info=error)

    assert line["failure"] == "ValueError"
    assert "test_logging.py" in line["where"][-1]


def test_control_characters_are_escaped() -> None:
    line = written(source="a\nb\x1b[31mc\u2028d\u202ee")

    assert line["source"] == r"a\nb\x1b[31mc\u2028d\u202ee"


def test_values_are_cut() -> None:
    line = written(long="x" * 1_000_000, many=list(range(10_000)), key=b"k" * 1000)

    assert len(line["long"]) == TEXT_CHARACTERS_MAX
    assert len(line["many"]) == 50
    assert line["key"] == "k" * 64 + "…"


def test_a_structure_without_end_is_cut() -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless

    assert "…" in json.dumps(written(endless=endless), ensure_ascii=False)


def test_a_key_is_escaped() -> None:
    assert key(b"\xff\x00a\n") == r"\xff\x00a\n"


def test_a_terminal_gets_lines_for_people() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    setup(stream=stream)
    structlog.get_logger().info("it happened", route="r")

    assert "it happened" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_a_terminal_gets_them_from_the_earliest_structlog_that_is_taken_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 25.5 the width of events was called `pad_event`, and `pad_event_to` was unknown."""

    class Earlier(structlog.dev.ConsoleRenderer):
        def __init__(self, pad_event: int = 30, colors: bool = True, **others: bool) -> None:
            assert others.keys() <= {"sort_keys"}
            super().__init__(pad_event, colors, **others)

    monkeypatch.setattr(structlog.dev, "ConsoleRenderer", Earlier)

    test_a_terminal_gets_lines_for_people()


def test_a_reader_that_left_stops_nothing() -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    setup(stream=Gone())

    structlog.get_logger().info("dropped")


def test_a_reader_that_reads_no_more_holds_nobody_up_and_is_told_what_it_missed() -> None:
    """A full pipe held a supervisor for ever, and no signal ended it."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as out:
        setup(stream=out)
        began = time.monotonic()
        for number in range(400):
            structlog.get_logger().info("said", number=number, more=["x" * 1500] * 2)
        took = time.monotonic() - began
        os.set_blocking(reading, False)
        before = b""
        with suppress(BlockingIOError):
            while piece := os.read(reading, 1 << 16):
                before += piece
        structlog.get_logger().info("read again")
        behind = os.read(reading, 1 << 16)
    os.close(reading)

    assert took < 60, "it waits for a reader once"
    whole = [json.loads(line)["number"] for line in before.splitlines()[:-1]]
    assert whole == list(range(len(whole)))
    torn, told, last = behind.split(b"\n", 2)
    assert not torn
    assert json.loads(told)["event"] == "lines dropped: nobody read them"
    assert json.loads(told)["lines"] == 400 - len(whole)
    assert json.loads(last)["event"] == "read again"


def test_threads_that_log_at_once_go_on_when_nobody_reads() -> None:
    """Two that asked the same object at once whether the pipe takes anything got its RuntimeError, out of their log call."""
    reading, writing = os.pipe()
    raised: list[Exception] = []

    def say() -> None:
        try:
            for _ in range(300):
                structlog.get_logger().info("said", more="x" * 900)
        except RuntimeError as error:
            raised.append(error)

    with os.fdopen(writing, "w") as out:
        setup(stream=out)
        threads = [schedule.start_thread(f"says-{number}", say) for number in range(4)]
        for thread in threads:
            thread.join(20)
        os.set_blocking(reading, False)
        os.read(reading, 1 << 20)
    os.close(reading)

    assert not raised


def test_a_slow_reader_gets_every_line_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.run.logging.UNREAD_S", 30.0)  # so long it may stand still on a busy machine
    reading, writing = os.pipe()
    read: list[bytes] = []

    def slowly() -> None:
        while piece := os.read(reading, 2000):
            read.append(piece)
            time.sleep(0.0005)

    reader = schedule.start_thread("slow", slowly)
    with os.fdopen(writing, "w") as out:
        setup(stream=out)
        for number in range(200):
            structlog.get_logger().info("said", number=number, more=["ü" * 1500] * 2)
    reader.join(60)
    os.close(reading)

    assert [json.loads(line)["number"] for line in b"".join(read).splitlines()] == list(range(200))


@pytest.mark.parametrize("piece", ["://:", "://a:b", "password=", "a@"])
def test_a_text_is_made_fit_to_be_shown_in_time_that_grows_with_its_length(piece: str) -> None:
    """A list of dead letters has hundreds of thousands of a publisher's ids."""
    long = piece * 20_000
    began = time.process_time()
    for _ in range(20):
        text(long)
    assert time.process_time() - began < 3


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("a://b:c@d", "a://b:(hidden)@d"),
        ("x a://b:c@d e://:f@g.", "x a://b:(hidden)@d e://:(hidden)@g."),
        ("a://b://c:d@e", "a://b:(hidden)@e"),
        ("a://b:@c", "a://b:@c"),
        ("a://b:c://d:e@f@g", "a://b:(hidden)@f@g"),
        ("mail@host a://b/c:d@e", "mail@host a://b/c:d@e"),
        ("://://:a:b@c", "://:(hidden)@c"),
    ],
)
def test_the_password_of_an_address_is_hidden(said: str, shown: str) -> None:
    assert text(said) == shown
