"""A publisher whose brokers are away says so by ``logging``, and not twenty times a second on standard error."""

from __future__ import annotations

import logging

import pytest

from relay.capture.publisher import DefaultTiming
from relay.kafka.appender import Appender
from relay.kafka.client_log import ClientLog
from relay.message.errors import Unreachable
from relay.run import clock

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}


def test_brokers_that_are_away_are_told_by_logging_and_once(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Appender(NOBODY, DefaultTiming())
    deadline = clock.monotonic() + 10
    try:
        with pytest.raises(Unreachable):
            publisher.topic("orders")
        while not caplog.records and clock.monotonic() < deadline:
            clock.sleep(0.05)
        clock.sleep(1)
    finally:
        publisher.close()

    told = [one.getMessage() for one in caplog.records if one.name == "relay.kafka"]
    assert len([one for one in told if "Connection refused" in one]) == 1, told
    # Clients of other tests in this process may still speak there of brokers that are gone.
    assert [line for line in capfd.readouterr().err.splitlines() if f"{NOBODY['bootstrap.servers']}/" in line] == []


class Broken(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError(record.getMessage())


def test_a_handler_that_fails_does_not_end_what_the_client_was_doing() -> None:
    broken = Broken()
    logging.getLogger("relay.kafka").addHandler(broken)
    try:
        ClientLog().log(logging.ERROR, "%s", "away")
    finally:
        logging.getLogger("relay.kafka").removeHandler(broken)
