"""What is told over HTTP: every fact once, nothing that a stranger wrote as markup, and only to whom it may be told."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from psycopg import OperationalError
from psycopg.errors import QueryCanceled

from relay.config.routes import RouteConfig, TopicDestination
from relay.config.timing import Timing
from relay.control.status import DeadLetters, RouteFacts, view
from relay.message.errors import Unreachable
from relay.message.record import LogPartition
from relay.queue.port import StoreAway
from relay.run.status_record import Counts, PartitionStatus, StatusRecord, Waiting
from relay.serve.http import Door, application
from relay.serve.metrics import CODES_MAX, OTHER, metrics
from relay.serve.page import page
from relay.serve.watching import HUNG_AFTER_S, QUEUES_EVERY_S, STALE_AFTER_S, RelayEyes, Sight, Watching
from relay.world import clock
from tests.routes import wait_for

ALERTS = Path(__file__).parents[2] / "docker" / "prometheus-alerts.yaml"
NOW = 1_000_000
HOSTILE = "<script>alert(1)</script>"
TOKEN = "0123456789abcdef"
QUEUE = {
    "waiting": 3,
    "messages": {"REVEALED": 3, "JOURNALLED": 9},
    "subscribers": [{"subscriber": "ann", "workers": 1, "unusable": 4, "states": {"AVAILABLE": 2, "IN_PROCESS": 1}}],
}


def sight(causes: dict[str, int] | None = None, error: str | None = None) -> Sight:
    route = RouteConfig(name="main", from_=["orders"], to=TopicDestination(topic="out"))
    held = PartitionStatus(
        topic="orders", partition=0, position=4, end=10, lag=6, held=2, in_doubt=1, stuck=error,
        waiting=tuple(Waiting(capture="c", why="slow", since_ms=since_ms) for since_ms in (5_000, 90_000, 7_000)), last_progress_at=NOW - 1000,
    )  # fmt: skip
    record = StatusRecord(
        relay="shop", route="main", worker="shop.main.a.0", started_at=NOW - 9000, at=NOW, state="running",
        partitions=(held,), counts=Counts(delivered=7, duplicates=2, lost=1, recoveries=3), last_error=error, restarts=4,
    )  # fmt: skip
    ends = {LogPartition("orders", 0): 10, LogPartition("orders", 1): 5}
    dead = DeadLetters(sum((causes or {}).values()), causes or {})
    shown = view(RouteFacts(route, [record], ends, {LogPartition("orders", 0): 4}, dead), NOW)
    notes = (error,) if error else ()
    return Sight(NOW, (shown,), (record,), (), {"credit": QUEUE, "mail": None}, notes, alarm_s=60.0)


def samples(seen: Sight | None, *, ready: bool = True) -> dict[tuple[str, ...], float]:
    class All(Collector):
        def collect(self) -> Any:
            return metrics(seen, version="1", age_s=2.5, ready=ready)

    registry = CollectorRegistry()
    registry.register(All())
    told = generate_latest(registry).decode()
    return {
        (one.name, *one.labels.values()): one.value
        for family in text_string_to_metric_families(told)
        for one in family.samples
    }


def test_metrics_tell_what_is_known_and_leave_out_what_is_not() -> None:
    found = samples(sight({"not-decodable": 4}))

    assert found["relay_route_state", "main", "running"] == 1
    assert found["relay_route_state", "main", "stuck"] == 0
    assert found["relay_lag_messages", "0", "main", "orders"] == 6
    assert ("relay_lag_messages", "1", "main", "orders") not in found, "its position is not known"
    assert found["relay_oldest_hold_seconds", "0", "main", "orders"] == 90
    assert found["relay_in_doubt_messages", "0", "main", "orders"] == 1
    assert found["relay_held_messages", "0", "main", "orders"] == 2
    assert found["relay_partition_stuck", "0", "main", "orders"] == found["relay_route_needs_attention", "main"] == 0
    assert found["relay_last_progress_timestamp_seconds", "0", "main", "orders"] == (NOW - 1000) / 1000
    assert found["relay_dead_letters", "not-decodable", "main"] == 4
    assert found["relay_messages_total", "delivered", "main", "shop.main.a.0"] == 7
    assert found["relay_messages_total", "lost", "main", "shop.main.a.0"] == 1
    assert found["relay_recoveries_total", "main", "shop.main.a.0"] == 3
    assert found["relay_restarts_total", "main", "shop.main.a.0"] == 4
    assert ("relay_restarts_created", "main", "shop.main.a.0") not in found, "no process begins it anew"
    assert found["relay_recoveries_created", "main", "shop.main.a.0"] == (NOW - 9000) / 1000
    assert found["relay_queue_subscriber_messages", "credit", "AVAILABLE", "ann"] == 2
    assert found["relay_queue_up", "mail"] == 0
    assert found["relay_queue_waiting", "credit"] == found["relay_queue_messages", "credit", "REVEALED"] == 3
    assert found["relay_queue_workers", "credit", "ann"] == 1
    assert found["relay_queue_unusable", "credit", "ann"] == 4
    assert (found["relay_transactions_total", "main", "shop.main.a.0"], found["relay_resent_total", "main", "shop.main.a.0"]) == (0, 0)
    assert found["relay_sight_age_seconds",] == 2.5


def test_what_waits_for_a_person_is_told_as_that() -> None:
    found, shown = samples(sight(error="its capture")), page("shop", sight({"x": 1}, error="its capture"), None, 1.0)

    assert found["relay_partition_stuck", "0", "main", "orders"] == found["relay_route_needs_attention", "main"] == 1
    assert samples(sight(), ready=False)["relay_sight_ready",] == 0
    assert '<span class="bad">stuck</span>' in shown
    assert "orders[0] is stuck: its capture" in shown
    assert '<span class="good">running</span>' in page("shop", sight(), None, 1.0)
    route = sight({"x": 1}).routes[0]
    aging = replace(route.partitions[0], nears_retention=True)
    some = replace(sight(), routes=(replace(route, partitions=(aging,), dead=DeadLetters(1, {"x": 1}, complete=False)),))
    assert samples(some)["relay_nears_retention", "0", "main", "orders"] == 1
    assert "at least 1 dead letters" in page("shop", some, None, 1.0)


def test_whoever_has_seen_nothing_says_only_that() -> None:
    found = samples(None, ready=False)

    assert {name for name, *_ in found} == {"relay_build_info", "relay_sight_ready"}
    assert found["relay_sight_ready",] == 0


def test_a_database_that_is_away_is_no_success_and_leaves_what_was_seen_to_be_scraped() -> None:
    for whole in (True, False):
        seen = replace(sight(), is_whole=whole)
        watching = Watching(Looking(lambda seen=seen: seen), period_s=0.01)
        wait_for(lambda watching=watching: watching.is_ready, what="a first look")
        app = application("shop", "1", watching, Door())

        assert [json.loads(ask(app, "/status")[2])["ok"], ask(app, "/readyz")[0]] == [whole, 200]
        assert samples(seen)["relay_sight_ready",] == whole
        watching.close()


def test_causes_that_strangers_invent_make_no_label_each() -> None:
    found = samples(sight({f"cause-{n}": 1 + (n == 7) for n in range(500)}))
    codes = {labels[0]: value for (name, *labels), value in found.items() if name == "relay_dead_letters"}

    assert len(codes) == CODES_MAX + 1
    assert codes["cause-7"] == 2
    assert sum(codes.values()) == 501
    assert codes[OTHER] == 500 - CODES_MAX


def test_a_cause_that_is_called_as_the_rare_ones_are_counts_with_them() -> None:
    """A label that comes twice has Prometheus refuse everything that was scraped with it."""
    found = list(metrics(sight({OTHER: 9, **{f"cause-{n}": 2 for n in range(CODES_MAX - 1)}, "rare": 1}), version="1", age_s=1.0, ready=True))
    (dead,) = (metric.samples for metric in found if metric.name == "relay_dead_letters")
    codes = [sample.labels["code"] for sample in dead]

    assert len(set(codes)) == len(codes) == CODES_MAX
    assert sum(sample.value for sample in dead) == 10 + 2 * (CODES_MAX - 1)
    assert {sample.labels["code"]: sample.value for sample in dead}[OTHER] == 10


def test_every_metric_of_the_alerts_exists() -> None:
    named = set(re.findall(r"relay_[a-z_]+", " ".join(re.findall(r"expr: (.*)", ALERTS.read_text()))))
    found = {name for name, *_ in samples(sight({"x": 1}))}

    assert len(named) >= 8
    assert named <= found


def test_an_alert_that_compares_with_earlier_has_a_value_where_there_was_none() -> None:
    # Two vectors are compared where both have the labels: the first dead letters of a route would be told to nobody.
    compared = [one for one in re.findall(r"expr: (.*)", ALERTS.read_text()) if " offset " in one]

    assert compared
    assert [one for one in compared if " or 0 * " not in one] == []


@pytest.mark.parametrize("metric", ["relay_queue_unusable", "relay_route_dead_letters"])
def test_what_there_was_before_nobody_looked_is_no_news_afterwards(metric: str) -> None:
    # Five minutes after its store, or `relay serve`, was away there is nothing to compare with but 0, if the last value is not looked for.
    (compared,) = (one for one in re.findall(r"expr: (.*)", ALERTS.read_text()) if one.startswith(f"{metric} >"))

    assert "relay_queue_unusable" not in {name for name, *_ in samples(replace(sight(), queues={"credit": None}))}
    assert f"last_over_time({metric}[1d] offset 5m)" in compared


def test_a_route_without_dead_letters_says_so() -> None:
    # Else the last value found of one whose letters were redriven would be what it had before, and hide as many new ones for a day.
    assert samples(sight())["relay_route_dead_letters", "main"] == 0
    assert samples(sight({"x": 1, "y": 2}))["relay_route_dead_letters", "main"] == 3


def test_an_alert_for_a_single_one_also_sees_what_was_counted_while_nobody_looked() -> None:
    # A series that begins above 0, as that of a worker's first seconds may, does not increase.
    counted = [one for one in re.findall(r"expr: (.*)", ALERTS.read_text()) if "increase(" in one and "> 0" in one]

    assert counted
    assert [one for one in counted if " or " not in one or " offset " not in one] == []


def test_the_page_shows_words_of_strangers_as_words() -> None:
    made = page("shop", sight({HOSTILE: 1}, error=HOSTILE), HOSTILE, 1.0)

    assert "<script" not in made
    assert made.count("&lt;script&gt;") >= 4
    assert "main" in made
    assert "its store does not answer" in made


class Looking:
    """Sees what each turn gives."""

    def __init__(self, turn: Callable[[], Sight]) -> None:
        self._turn = turn
        self.opened = 0

    def __call__(self) -> Self:
        self.opened += 1
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def look(self) -> Sight:
        return self._turn()


@pytest.mark.parametrize(
    ("failure", "said"), [(Unreachable("the brokers are away"), "the brokers are away"), (KeyError("secret"), "KeyError")]
)
def test_a_look_that_fails_leaves_the_last_one_and_is_repeated_with_new_clients(failure: Exception, said: str) -> None:
    turns: list[Sight | Exception] = [sight(), failure]
    proceed = threading.Semaphore(2)

    def turn() -> Sight:
        assert proceed.acquire(timeout=10)
        one = turns.pop(0) if turns else sight({"later": 1})
        if isinstance(one, Exception):
            raise one
        return one

    eyes = Looking(turn)
    watching = Watching(eyes, period_s=0.001)
    wait_for(lambda: watching.problem == said, what="the failure")
    assert watching.sight is not None
    assert watching.sight.routes[0].dead.count == 0
    assert not watching.is_ready
    assert watching.is_alive, "a broker that is away is no reason to start this process again"

    proceed.release()
    wait_for(lambda: watching.is_ready, what="sight again")
    proceed.release(1000)
    watching.close()
    assert eyes.opened == 2


def ask(app: Any, path: str, host: str = "localhost:8480", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    """Ask an ASGI application; return status, headers and body."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    given = {"host": host, **headers}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "query_string": b"", "scheme": "http", "root_path": "", "server": ("localhost", 8480),
        "client": ("127.0.0.1", 1), "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    body = b"".join(one.get("body", b"") for one in sent)
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}, body.decode()


@pytest.fixture
def watching() -> Any:
    made = Watching(Looking(sight), period_s=0.01)
    wait_for(lambda: made.is_ready, what="a first look")
    yield made
    made.close()


def test_a_name_that_a_page_elsewhere_made_up_for_this_machine_gets_nothing(watching: Watching) -> None:
    app = application("shop", "1", watching, Door())

    assert ask(app, "/status")[0] == 200
    assert ask(app, "/status", host="127.0.0.1:8480")[0] == 200
    assert ask(app, "/status", host="[::1]:8480")[0] == 200
    status, _, body = ask(app, "/status", host="shop.example:8480")
    assert (status, "main" in body) == (400, False)


@pytest.mark.parametrize("path", ["/", "/status", "/metrics", "/nothing", "/livezz"])
def test_without_the_token_nothing_is_told(watching: Watching, path: str) -> None:
    app = application("shop", "1", watching, Door(TOKEN, None))
    wrong = b64encode(b"ann:wrong").decode()

    for authorization in ("", "Bearer", f"Bearer {TOKEN[:-1]}", f"Basic {wrong}", "Basic \xff", f"Digest {TOKEN}"):
        status, headers, body = ask(app, path, host="shop.example", authorization=authorization)
        assert (status, "relay_" in body or "main" in body) == (401, False), authorization
        assert "www-authenticate" in headers


@pytest.mark.parametrize("authorization", [f"Bearer {TOKEN}", f"Basic {b64encode(f'ann:{TOKEN}'.encode()).decode()}"])
def test_with_the_token_everything_is_told(watching: Watching, authorization: str) -> None:
    app = application("shop", "1", watching, Door(TOKEN, None))

    for path in ("/", "/status", "/metrics"):
        status, headers, body = ask(app, path, host="shop.example", authorization=authorization)
        assert (status, "main" in body) == (200, True)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"


def test_a_token_beyond_ascii_is_known(watching: Watching) -> None:
    token = "über-sechzehn-Zeichen"
    app = application("shop", "1", watching, Door(token, None))

    for authorization in (f"Bearer {token}", f"Basic {b64encode(f'ann:{token}'.encode()).decode()}"):
        assert ask(app, "/metrics", host="shop.example", authorization=authorization)[0] == 200, authorization


def test_probes_need_no_token_and_tell_no_more_than_a_word(watching: Watching) -> None:
    app = application("shop", "1", watching, Door(TOKEN, None))

    assert ask(app, "/livez", host="10.0.0.1")[::2] == (200, "alive\n")
    assert ask(app, "/healthz", host="10.0.0.1")[0] == 200
    assert ask(app, "/readyz", host="10.0.0.1")[::2] == (200, "ready\n")


def seen(sight: Sight | None, *, ready: bool = True, alive: bool = True) -> Any:
    problem = None if ready else "the brokers are away"
    return SimpleNamespace(sight=sight, problem=problem, is_ready=ready, is_alive=alive, age_s=lambda: 90.0)


def test_what_is_no_success_has_no_status_of_one() -> None:
    for told, ok, status in (
        (seen(sight()), True, 200),
        (seen(sight(error="waits for a person")), False, 200),
        (seen(sight(), ready=False), False, 503),
        (seen(None, ready=False), False, 503),
    ):
        answer = ask(application("shop", "1", told, Door()), "/status")
        body = json.loads(answer[2])
        assert (answer[0], body["ok"], body["problem"]) == (status, ok, told.problem)


def test_brokers_that_are_away_are_no_reason_to_end_a_process_and_one_that_hangs_is() -> None:
    for ready, alive in ((True, False), (False, True)):
        app = application("shop", "1", seen(sight(), ready=ready, alive=alive), Door())
        assert [ask(app, path)[0] for path in ("/readyz", "/livez", "/healthz")] == [200 if ready else 503, *[200 if alive else 503] * 2]


def test_what_is_old_or_does_not_end_is_told_from_what_was_just_seen(watching: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    watching._stop.set()
    watching._thread.join(10.0)
    assert (watching.is_ready, watching.is_alive) == (True, False), "nobody looks any more"
    monkeypatch.setattr(watching, "_thread", SimpleNamespace(is_alive=lambda: True, join=lambda _: None))
    assert watching.is_alive
    now = clock.monotonic()
    for later, is_ready, is_alive in ((STALE_AFTER_S, False, True), (HUNG_AFTER_S, False, False)):
        monkeypatch.setattr(clock, "monotonic", lambda later=later: now + later)
        assert (watching.is_ready, watching.is_alive) == (is_ready, is_alive)


def test_brokers_that_have_been_away_for_hours_are_no_reason_to_start_the_process_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = [0.0], list[float]()
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])

    def away() -> Any:
        looks.append(now[0])
        raise Unreachable("the brokers are away")

    made = Watching(away, period_s=0.001)
    for now[0] in (1.0, HUNG_AFTER_S, 2 * HUNG_AFTER_S):
        for _ in range(5_000):
            if looks.count(now[0]) > 1:  # the first of them has ended
                break
            time.sleep(0.001)
        assert (made.is_alive, made.is_ready) == (True, False)
    made.close()


class Desk:
    """Two queues, of which one's store may be away."""

    def __init__(self) -> None:
        self.counted, self.is_away = 0, False

    def reach(self) -> None:
        self.counted += 1

    def names(self) -> list[str]:
        return ["mail", "credit"]

    def place(self, name: str) -> str:
        return name

    def row(self, name: str) -> dict[str, Any]:
        if self.is_away and name == "mail":
            raise Unreachable("its store does not answer")
        return QUEUE


def test_a_look_is_whole_if_every_store_answered_and_counts_queues_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now, desk, given = [0.0], Desk(), sight()
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    ended = given.records[0].model_copy(update={"worker": "one that is no more"})
    status = SimpleNamespace(read=lambda: given.routes, records=lambda: (*given.records, ended), notes=("a note",), unseen=None)
    eyes: Any = RelayEyes(SimpleNamespace(queues={"mail": None}, timing=Timing(in_doubt_alarm=90.0)))  # type: ignore[arg-type]
    eyes._status, eyes._desk = status, desk

    first = eyes.look()
    assert (first.is_whole, first.notes, first.queues) == (True, ("a note",), {"mail": QUEUE, "credit": QUEUE})
    assert samples(first)["relay_in_doubt_alarm_seconds",] == 90
    assert first.records == given.records, "counters of workers that ended are no worker's"
    desk.is_away, now[0] = True, QUEUES_EVERY_S - 1
    assert (eyes.look().is_whole, desk.counted) == (True, 1)
    now[0] = QUEUES_EVERY_S
    away = eyes.look()
    assert (away.is_whole, away.queues, desk.counted) == (False, {"mail": None, "credit": QUEUE}, 2)
    assert away.notes == ("a note", "queue mail: its store does not answer")
    desk.is_away, now[0], status.unseen = False, 3 * QUEUES_EVERY_S, "a database"
    assert not eyes.look().is_whole


class Counting:
    """Twelve queues, every other one in each of two databases, which answer a question about a queue as they are told."""

    def __init__(self, now: list[float], patience_s: float, cause: Exception) -> None:
        self.asked = list[str]()
        self._now, self._patience_s, self._cause = now, patience_s, cause

    def reach(self) -> None:
        pass

    def names(self) -> list[str]:
        return [f"queue-{n}" for n in range(12)]

    def place(self, name: str) -> str:
        return "away" if int(name[6:]) % 2 else "shop"

    def row(self, name: str) -> dict[str, Any]:
        self.asked.append(name)
        if self.place(name) == "shop":
            return QUEUE
        self._now[0] += self._patience_s
        raise StoreAway("the queue's database does not answer") from self._cause


@pytest.mark.parametrize(
    ("patience_s", "cause", "asked"),
    [
        (50.0, OperationalError("the connection is lost"), 1),
        (0.1, OperationalError("refused"), 6),
        (50.0, QueryCanceled("counting took too long"), 6),
    ],
)
def test_a_store_that_is_silent_is_waited_for_once_in_a_look(
    patience_s: float, cause: Exception, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each of a dozen queues it would be ten minutes, in which nothing else is seen and /livez has the process ended."""
    now = [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    eyes: Any = RelayEyes(SimpleNamespace(queues={"queue-0": None}, timing=Timing()))  # type: ignore[arg-type]
    desk = Counting(now, patience_s, cause)
    eyes._status = SimpleNamespace(read=list, records=list, notes=(), unseen=None)
    eyes._desk = desk

    seen = eyes.look()

    assert len([name for name in desk.asked if desk.place(name) == "away"]) == asked
    assert [name for name, row in seen.queues.items() if row is None] == [f"queue-{n}" for n in range(1, 12, 2)]
    assert len(seen.notes) == 6
    assert not seen.is_whole


def test_nothing_can_be_changed(watching: Watching) -> None:
    app = application("shop", "1", watching, Door())

    for path in ("/", "/status", "/metrics", "/livez", "/readyz"):
        assert {ask(app, path, method=method)[0] for method in ("POST", "PUT", "DELETE", "PATCH")} == {405}


def test_a_version_that_is_not_understood_is_answered_in_the_first_one(watching: Watching) -> None:
    app, version = application("shop", "1", watching, Door()), 'application/openmetrics-text; version="1.0.0"'

    assert ask(app, "/metrics", accept=version)[1]["content-type"].startswith("text/plain; version=0.0.4")
