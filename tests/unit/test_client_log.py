"""A publisher whose brokers are away says so by ``logging``, and not twenty times a second on standard error."""

from __future__ import annotations

import logging

import pytest
from structlog.testing import capture_logs

from relay.kafka.appender import Appender
from relay.kafka.client_log import ClientLog, client_line
from relay.kafka.settings import DefaultTiming
from relay.message.errors import Unreachable
from relay.run.supervisor import Supervisor
from relay.world import clock

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
    # On a machine that takes half a minute for this the client says so again, and how often it did not.
    assert len([one for one in told if "Connection refused" in one and "suppressed" not in one]) == 1, told
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


REFUSED = b"%%3|17955669%d.991|FAIL|rdkafka#consumer-%d| [thrd:127.0.0.1:1/bootstrap]: 127.0.0.1:1/bootstrap: Connect failed (after %dms)"


def test_a_workers_clients_are_heard_as_warnings_and_the_same_sentence_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    supervisor = Supervisor(["main"], 1, lambda *_: [])
    (worker,) = supervisor._workers
    with capture_logs() as told:
        supervisor._pass_on(worker, [REFUSED % (n, n, n) for n in range(1000)])
        supervisor._pass_on(worker, [b"%5|1.2|NOTICE|rdkafka#producer-1| all is well", b"%3 of it is done"])
        now[0] += 60
        supervisor._pass_on(worker, [REFUSED % (7, 7, 7)])

    assert [(one["log_level"], one["event"], one.get("said")) for one in told] == [
        ("warning", "kafka client", "FAIL: 127.0.0.1:1/bootstrap: Connect failed (after 0ms)"),
        ("info", "kafka client", "NOTICE: all is well"),
        ("info", "%3 of it is done", None),
        ("warning", "kafka client", "FAIL: 127.0.0.1:1/bootstrap: Connect failed (after 7ms)"),
    ]
    assert worker.last_line.startswith("FAIL: ")


@pytest.mark.parametrize(
    ("said", "level"),
    [
        ("%1|1.2|TXNERR|p#1| [thrd:main]: Fatal transaction error: This instance has been fenced by a newer instance (_FENCED)", "info"),
        ("%3|1.2|ADDPARTS|p#1| [thrd:main]: Failed: Broker: Producer attempted an operation with an old epoch", "info"),
        ("%1|1.2|TXNERR|p#1| [thrd:main]: Fatal transaction error: Broker: Transactional Id authorization failed", "warning"),
    ],
)
def test_a_client_that_was_fenced_is_no_warning_since_another_has_taken_over(said: str, level: str) -> None:
    line = client_line(said)

    assert line is not None
    assert line.level == level
