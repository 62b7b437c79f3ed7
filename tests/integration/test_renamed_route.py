"""A route that got another name does not deliver all that the log has once more, unless somebody says so."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from relay.cli.main import app
from relay.run.restarts import ExitCode
from tests.conftest import MakeRoute
from tests.routes import TopicRoute, ce, ids, publish


def test_a_renamed_route_delivers_nothing_again_unasked(make_route: MakeRoute) -> None:
    route = make_route()
    publish(route.kafka, route.log, [(0, ce("/s", f"m-{n}"), b"v") for n in range(5)])
    assert route.finish() == 0, route.said()
    main = route.path.read_text()

    call(route, "other", main.replace("[routes.main]", "[routes.other]"))
    assert faults(route) == [
        {
            "key": "routes.other",
            "value": "",
            "problem": f"route 'other' has not run before, and route 'main', which is not configured any more, has led {route.log} to "
            f"topic {route.out}: all that the log has would be delivered there once more",
            "remedy": "if it is that route, give it the name 'main' back; if not, set start = \"earliest\" to deliver all, or "
            'start = "latest" for what is written from now on',
        }
    ]
    assert route.finish() == ExitCode.PERSON, route.said()
    assert f"'main', which is not configured any more, has led {route.log} to topic {route.out}" in route.said()
    assert len(route.outputs()) == 5

    call(route, "main", main)
    publish(route.kafka, route.log, [(0, ce("/s", "m-5"), b"v")])
    assert route.finish() == 0, route.said()
    assert ids(route.outputs()) == [f"m-{n}" for n in range(6)]

    call(route, "other", main.replace("[routes.main]", '[routes.other]\nstart = "earliest"'))
    assert not faults(route)
    assert route.finish() == 0, route.said()
    assert ids(route.outputs()) == [f"m-{n}" for n in [*range(6), *range(6)]]
    call(route, "other", main.replace("[routes.main]", "[routes.other]"))
    assert route.finish() == 0, "what has run before is not asked again"


def faults(route: TopicRoute) -> list[dict[str, str]]:
    result = CliRunner().invoke(app, ["check", str(route.path), "--connect", "--json"])
    report = json.loads(result.stdout)
    assert (result.exit_code == 0) is report["ok"] is (not report["faults"])
    found: list[dict[str, str]] = report["faults"]
    return found


def call(route: TopicRoute, name: str, configuration: str) -> None:
    route.called = name
    route.path.write_text(configuration)
    route.migrate()
