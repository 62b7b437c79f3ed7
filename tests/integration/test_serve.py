"""`relay serve` as a process on a real relay: what it tells, to whom, and how it begins and ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from relay.cli.main import app
from tests.routes import Route, TopicRoute, ce, publish, wait_for

TOKEN = "0123456789abcdef-token"


class Served:
    """A running `relay serve`."""

    def __init__(self, config: Path, *options: str, log: Path) -> None:
        command = [sys.executable, "-m", "relay.cli.main", "serve", str(config), "--port", "0", "--json", *options]
        with log.open("wb") as said:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, log.read_text()
        self.url = json.loads(line)["url"]

    def get(self, path: str, token: str | None = None) -> tuple[int, str]:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def start(config: Path, *options: str) -> Served:
        made.append(Served(config, *options, log=tmp_path / f"serve-{len(made)}.log"))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.wait()
        assert one.process.stdout is not None
        one.process.stdout.close()


def value(told: str, name: str, **labels: str) -> float | None:
    """Return the one sample with these labels among others."""
    for family in text_string_to_metric_families(told):
        for one in family.samples:
            if one.name == name and labels.items() <= one.labels.items():
                return one.value
    return None


def test_what_a_route_does_is_told_to_probes_scrapes_and_people(
    make_route: Callable[..., TopicRoute], serve: Callable[..., Served], tmp_path: Path
) -> None:
    extra = f"""
[queues.credit]
store = "sqlite:///{tmp_path}/credit.db"
subscribers = {{ approval = {{}} }}
"""
    route = make_route(extra)
    publish(route.kafka, route.log, [(0, ce("/s", f"m-{n}"), b"v") for n in range(3)])
    assert route.finish() == 0, route.said()
    publish(route.kafka, route.log, [(0, ce("/s", f"n-{n}"), b"v") for n in range(2)])

    served = serve(route.path)
    wait_for(lambda: served.get("readyz")[0] == 200, what="readiness")
    assert served.get("livez") == (200, "alive\n")
    told = served.get("metrics")[1]
    status: dict[str, Any] = json.loads(served.get("status")[1])

    assert value(told, "relay_messages_total", route="main", outcome="delivered") == 3
    assert value(told, "relay_lag_messages", route="main", topic=route.log) == 2
    assert value(told, "relay_route_state", route="main", state="stopped") == 1
    assert value(told, "relay_route_needs_attention", route="main") == 1
    assert value(told, "relay_queue_up", queue="credit") == 1
    assert value(told, "relay_queue_subscriber_messages", queue="credit", subscriber="approval") in (0, None)
    assert (status["ok"], status["routes"]["main"]["lag"]) == (False, 2)
    assert list(status["queues"]) == ["credit"]
    assert "exactly once for read_committed readers" in served.get("")[1]

    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(20) == 0, "a signal ends it as something that it was to do"


def test_brokers_that_are_away_make_it_unready_and_not_dead(tmp_path: Path, serve: Callable[..., Served]) -> None:
    route = Route(tmp_path, "127.0.0.1:1", "log", '{ topic = "out" }')
    served = serve(route.path)

    wait_for(lambda: "127.0.0.1:1" in served.get("status")[1] or "brokers" in served.get("status")[1], what="the reason")
    assert served.get("readyz")[0] == 503
    assert served.get("livez")[0] == 200
    assert value(served.get("metrics")[1], "relay_sight_ready") == 0


def test_a_signal_in_the_moment_in_which_it_says_where_it_listens_ends_it(tmp_path: Path, serve: Callable[..., Served]) -> None:
    served = serve(Route(tmp_path, "127.0.0.1:1", "log", '{ topic = "out" }').path)

    served.process.send_signal(signal.SIGTERM)

    assert served.process.wait(20) == 0


def test_a_database_that_is_away_is_told_and_keeps_nobody_from_scraping(
    make_route: Callable[..., TopicRoute], serve: Callable[..., Served]
) -> None:
    route = make_route()
    more = f"""
[resources.shop]
url = "postgresql://clerk@127.0.0.1:1/shop"

[queues.credit]
store = "shop"
subscribers = {{ approval = {{}} }}

[routes.to-credit]
from = ["{route.log}"]
to = {{ queue = "credit" }}
"""
    route.path.write_text(route.path.read_text() + more)

    served = serve(route.path)
    wait_for(lambda: served.get("readyz")[0] == 200, what="readiness")

    told = served.get("metrics")[1]
    assert (value(told, "relay_sight_ready"), value(told, "relay_queue_up", queue="credit")) == (0, 0)
    assert value(told, "relay_route_state", route="main", state="stopped") == 1


def test_other_machines_need_a_token(tmp_path: Path, make_route: Callable[..., TopicRoute], serve: Callable[..., Served]) -> None:
    route = make_route()
    text = route.path.read_text()
    route.path.write_text(text.replace("[kafka]", "allow_plaintext = true\n\n[kafka]", 1))
    secret = tmp_path / "token"
    secret.write_text(TOKEN + "\n")

    served = serve(route.path, "--host", "0.0.0.0", "--token-file", str(secret))
    served.url = served.url.replace("0.0.0.0", "127.0.0.1")
    wait_for(lambda: served.get("readyz")[0] == 200, what="readiness")
    assert served.get("metrics")[0] == 401
    assert served.get("metrics", TOKEN)[0] == 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "--token-file"),
        (["--host", "0.0.0.0", "--token-file", "{good}"], "allow_plaintext"),
        (["--token-file", "{short}"], "16 to 1000 characters"),
        (["--token-file", "{absent}"], "the file cannot be read (No such file or directory)"),
        (["--tls-certificate", "{good}"], "go together"),
        (["--tls-certificate", "{absent}", "--tls-key", "{good}"], "No such file"),
        (["--tls-certificate", "{good}", "--tls-key", "{good}"], "in PEM"),
        (["--host", "127.1.2.3", "--port", "{port}"], "a free port"),
    ],
)  # fmt: skip
def test_what_would_be_open_or_cannot_be_is_refused_with_a_sentence(tmp_path: Path, options: list[str], said: str) -> None:
    files = {"good": tmp_path / "good", "short": tmp_path / "short", "absent": tmp_path / "absent"}
    files["good"].write_text(TOKEN)
    files["short"].write_text("secret")
    route = Route(tmp_path, "127.0.0.1:1", "log", '{ topic = "out" }')

    with socket.create_server(("127.1.2.3", 0)) as taken:
        words = [one.format(port=taken.getsockname()[1], **files) for one in options]
        result = CliRunner().invoke(app, ["serve", str(route.path), *words])

    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert TOKEN not in result.stderr
