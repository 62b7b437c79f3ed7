"""A log line is one bounded line and holds no secret, whatever is given to it."""

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from pydantic import SecretStr

from relay.message.errors import Unreachable
from relay.run.logging import TEXT_CHARACTERS_MAX, key, setup

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


def test_a_reader_that_left_stops_nothing() -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    setup(stream=Gone())

    structlog.get_logger().info("dropped")
