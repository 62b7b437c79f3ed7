"""What becomes of an audit in a process of its own: its report as it was, or why there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from relay.audit import at_once
from relay.audit.at_once import NotAudited, _Audits
from relay.audit.checker import Findings
from relay.audit.ledger import Place
from relay.audit.verify import Offence, RouteReport
from relay.message.errors import Stopped
from relay.world import schedule
from tests.routes import wait_for

WAIT_S = 30.0


def audits(program: str) -> _Audits:
    """Audits by processes that run ``program``; the route is its first argument."""
    made = _Audits(Path("relay.toml"), lambda *_: None, allow_lag=False)
    made._command = (sys.executable, "-c", program)  # type: ignore[assignment]
    return made


def report() -> RouteReport:
    findings = Findings(captured=3, delivered=2, notes=["a note"])
    findings.blame("duplicates", Place("orders", 1, 7), "a second effect")
    findings.blame("phantoms", "a row of ledger", "no captured message has this identity")
    offence = Offence("duplicates", "orders[1]@7", "ä\x00", "/shop", "a second effect")
    return RouteReport("main", "topic out", "exactly once", findings, [offence], 1.5, allow_lag=True, ordered=False)


def test_a_report_comes_as_it_was(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(at_once, "load", lambda path: path)
    monkeypatch.setattr(at_once, "verify", lambda *_, watch, **__: watch("main: log", 1, 1) or [report()])
    at_once._audit(Path("relay.toml"), "main", allow_lag=True)
    steps: list[tuple[str, int, int]] = []
    heard = audits(f"print({capsys.readouterr().out!r}, end='')")
    heard._watch = lambda *step: steps.append(step)

    found = heard.report("main")

    assert found == report()
    assert [type(one.place) for one in found.findings.offenders] == [Place, str]
    assert steps == [("main: log", 1, 1)]


def test_steps_are_said_ten_times_a_second_and_when_they_are_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def moving(*_: object, watch: at_once.Watch, **__: object) -> list[RouteReport]:
        for done in range(1, 1001):
            watch("main: log", done, 1000)
        raise Stopped("no")

    monkeypatch.setattr(at_once, "load", lambda path: path)
    monkeypatch.setattr(at_once, "verify", moving)
    monkeypatch.setattr(at_once, "SAID_EVERY_S", 3600.0)
    at_once._audit(Path("relay.toml"), "main", allow_lag=True)

    first, last, end = capsys.readouterr().out.splitlines()
    assert ('"done": 1,' in first, '"done": 1000,' in last, end) == (True, True, '{"error": "no", "exit_code": 1}')


@pytest.mark.parametrize(
    ("program", "said", "code"),
    [
        ("""print('{"error": "the broker is away", "exit_code": 3}')""", "the broker is away", 3),
        ("import os; os.kill(os.getpid(), 9)", "routes.main: its audit was killed; if memory ran out, audit fewer routes at once", 1),
        (
            """import os; print('{"report": {"rou', end="", flush=True); os.kill(os.getpid(), 9)""",
            "routes.main: its audit was killed; if memory ran out, audit fewer routes at once",
            1,
        ),
        ("""print('{"step": "log", "done": 1, "total": 2}'); raise SystemExit(7)""", "routes.main: its audit ended without a report (exit code 7)", 1),
    ],
)  # fmt: skip
def test_an_audit_without_a_report_is_said(program: str, said: str, code: int) -> None:
    with pytest.raises(NotAudited) as caught:
        audits(program).report("main")

    assert (str(caught.value), caught.value.exit_code) == (said, code)


def test_an_audit_that_the_system_does_not_start_is_said() -> None:
    made = audits("")
    made._command = ("/there/is/no/python",)  # type: ignore[assignment]

    with pytest.raises(NotAudited, match=r"^routes\.main: its audit cannot be started \(.*no/python'\); audit fewer routes at once$"):
        made.report("main")


@pytest.mark.parametrize("is_heard", [True, False])
def test_what_interrupts_the_audits_ends_their_processes(is_heard: bool) -> None:
    made = audits("import sys, time; print('{}', flush=True); time.sleep(600)")

    def interrupted() -> None:
        with made.ended_unless_done([running, waiting]):
            if is_heard:
                wait_for(lambda: made._running)
            raise KeyboardInterrupt

    with schedule.pool("audit", 1) as pool:
        running, waiting = (pool.submit(made.report, "main") for _ in range(2))
        with pytest.raises(KeyboardInterrupt):
            interrupted()

    assert waiting.cancelled()
    assert running.cancelled() or isinstance(running.exception(WAIT_S), NotAudited)
    assert not made._running
