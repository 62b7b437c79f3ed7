"""When a worker process is started again, when later, and when no more."""

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from relay.config.routes import RouteConfig, TopicDestination
from relay.run.assembly import _identity
from relay.run.restarts import JITTER, LATELY_S, PAST, Budget, ExitCode, Next, Past, Restarts, drained
from relay.run.status_record import StatusRecord

BUDGET = Budget(restarts=3, window_s=60, first_s=1, most_s=8)


def restarts(chance: float = 0.0, budget: Budget = BUDGET) -> Restarts:
    return Restarts(budget, lambda: chance)


def fail(worker: Restarts, at: float, code: int = 1, ran_s: float = 0.1) -> Next:
    worker.started(at - ran_s)
    return worker.ended(at, code).next


@pytest.mark.parametrize(
    ("code", "follows"),
    [
        (0, Next.DONE),
        (2, Next.STOP_ALL),
        (3, Next.RESTART),
        (10, Next.STOPPED),
        (11, Next.STOPPED),
        (1, Next.RESTART),
        (139, Next.RESTART),
        (-signal.SIGKILL, Next.RESTART),
        (-signal.SIGTERM, Next.RESTART),
        (-64, Next.RESTART),
    ],
)
def test_each_way_to_end_has_one_consequence(code: int, follows: Next) -> None:
    assert fail(restarts(), 1, code) is follows


def test_the_budget_runs_out_within_its_window() -> None:
    worker = restarts()

    assert [fail(worker, at) for at in (10, 20, 30, 40)] == [*[Next.RESTART] * 3, Next.GIVE_UP]


def test_a_worker_that_ran_for_the_window_has_its_budget_back() -> None:
    worker = restarts()
    for at in (10, 20, 30):
        fail(worker, at)

    assert [fail(worker, at, ran_s=60) for at in (91,)] == [Next.RESTART]
    assert [fail(worker, at) for at in (92, 93, 94)] == [Next.RESTART, Next.RESTART, Next.GIVE_UP]


def test_pauses_double_up_to_a_bound_and_begin_again_after_a_good_run() -> None:
    worker = restarts(budget=Budget(restarts=9, window_s=60, first_s=1, most_s=4))
    pauses = []
    for at in (1.0, 2.0, 3.0, 4.0):
        worker.started(at)
        pauses.append(worker.ended(at, 1).pause_s)
    worker.started(5)
    pauses.append(worker.ended(70, 1).pause_s)

    assert pauses == [1, 2, 4, 4, 1]


def test_jitter_only_stretches() -> None:
    least, most = (restarts(chance).ended(0, 1).pause_s for chance in (0.0, 0.999))

    assert least == 1
    assert 1 < most <= 1 + JITTER


@pytest.mark.parametrize(
    ("code", "reason"),
    [(ExitCode.UNREACHABLE, "a broker, a database or a resource of this machine is unreachable"), (ExitCode.MOVED, "its queue goes on in another store")],
)
def test_what_is_no_failure_never_uses_the_budget_up(code: ExitCode, reason: str) -> None:
    worker = restarts()
    decisions = []
    for at in range(2000):
        worker.started(at)
        decisions.append(worker.ended(at, code))

    assert {(decision.next, decision.reason) for decision in decisions} == {(Next.RESTART, reason)}
    assert worker.past(2000).restarts_lately == 0
    assert decisions[0].pause_s == 1
    assert decisions[-1].pause_s == BUDGET.most_s
    assert fail(worker, 2001) is Next.RESTART


def test_an_outage_that_was_over_for_long_makes_no_later_pause_longer() -> None:
    worker = restarts()
    for at in range(5):
        worker.started(at)
        worker.ended(at, ExitCode.UNREACHABLE)

    worker.started(100)

    assert worker.ended(100 + BUDGET.window_s, ExitCode.UNREACHABLE).pause_s == 1


def test_a_default_budget_with_its_longest_pauses_fits_into_its_window() -> None:
    """Else a worker that fails at once would be started for ever."""
    worker, now = restarts(0.999, Budget()), 0.0
    follows = Next.RESTART
    while follows is Next.RESTART and now < 600:
        worker.started(now)
        decision = worker.ended(now + 0.5, 1)
        follows, now = decision.next, now + 0.5 + decision.pause_s

    assert follows is Next.GIVE_UP
    assert now < 60


def test_the_reason_names_the_signal() -> None:
    assert restarts().ended(0, -9).reason == "killed by SIGKILL"
    assert restarts().ended(0, 7).reason == "exit code 7"


@pytest.mark.parametrize(
    ("code", "is_drained"), [(0, True), (-15, True), (143, True), (-9, False), (1, False)]
)
def test_what_counts_as_drained(code: int, is_drained: bool) -> None:
    assert drained(code) is is_drained


def test_a_process_is_told_how_the_earlier_ones_failed() -> None:
    """A worker that dies less often than its budget allows is started for ever: this alone tells of it."""
    worker = restarts()
    for at in (0, 1000, 2000, 3599):
        fail(worker, at, -signal.SIGKILL)
    fail(worker, 3600, ExitCode.UNREACHABLE)

    assert worker.past(3599) == Past(4, 4, "killed by SIGKILL")
    assert worker.past(LATELY_S) == Past(4, 3, "killed by SIGKILL"), "what is away is no failure of a worker's"
    assert Past.told(worker.past(9999).environment()) == Past(4, 0, "killed by SIGKILL")
    assert Past.told({PAST: '{"restarts": 2, "of_a_newer_version": 1}'}) == Past(2, 0, None)
    assert Past.told({}) == restarts().past(1) == Past()


def test_what_a_process_is_told_of_its_worker_is_in_what_it_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PAST, Past(7, 4, "exit code 1").environment()[PAST])
    route = RouteConfig(name="main", from_=["orders"], to=TopicDestination(topic="ledger"))
    config: Any = SimpleNamespace(relay=SimpleNamespace(name="shop"))

    said = StatusRecord.model_validate({**_identity(config, route, "shop.main.a.0"), "started_at": 0, "at": 0, "state": "running"})

    assert (said.restarts, said.restarts_lately, said.ended_by) == (7, 4, "exit code 1")
