"""A route that got another name does not deliver all that the log has once more, unless somebody says so."""

from __future__ import annotations

from relay.run.restarts import ExitCode
from tests.conftest import MakeRoute
from tests.routes import TopicRoute, ce, ids, publish


def test_a_renamed_route_delivers_nothing_again_unasked(make_route: MakeRoute) -> None:
    route = make_route()
    publish(route.kafka, route.log, [(0, ce("/s", f"m-{n}"), b"v") for n in range(5)])
    assert route.finish() == 0, route.said()
    main = route.path.read_text()

    call(route, "other", main.replace("[routes.main]", "[routes.other]"))
    assert route.finish() == ExitCode.PERSON, route.said()
    assert f"'main', which is not configured any more, has led {route.log} to topic {route.out}" in route.said()
    assert len(route.outputs()) == 5

    call(route, "main", main)
    publish(route.kafka, route.log, [(0, ce("/s", "m-5"), b"v")])
    assert route.finish() == 0, route.said()
    assert ids(route.outputs()) == [f"m-{n}" for n in range(6)]

    call(route, "other", main.replace("[routes.main]", '[routes.other]\nstart = "earliest"'))
    assert route.finish() == 0, route.said()
    assert ids(route.outputs()) == [f"m-{n}" for n in [*range(6), *range(6)]]
    call(route, "other", main.replace("[routes.main]", "[routes.other]"))
    assert route.finish() == 0, "what has run before is not asked again"


def call(route: TopicRoute, name: str, configuration: str) -> None:
    route.called = name
    route.path.write_text(configuration)
    route.migrate()
