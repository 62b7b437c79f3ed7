"""A database that does not answer is waited for once in a look, however many routes lead into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relay.control import status_reading
from relay.control.status_reading import StatusReader
from relay.message.errors import Unreachable
from tests.unit.configurations import BASE, good

ROUTES = 12
OTHER = """
[resources.other]
url = "sqlite:///other.db"
"""
ROUTE = """\
[routes.{name}]
from = ["orders"]
to = {{ table = "ledger_{name}", resource = "{resource}", columns = {{ id = "ce:id" }} }}
"""


def test_a_silent_database_is_waited_for_once_in_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {**{f"r{n}": "shop" for n in range(ROUTES)}, "last": "other"}
    routes = "".join(ROUTE.format(name=name, resource=on) for name, on in names.items())
    config, asked = good(BASE + OTHER + routes, tmp_path), list[str]()

    def silent(name: str, *_: object) -> Any:
        asked.append(name)
        if name == "shop":
            raise Unreachable(f"resources.{name}: the database does not answer")
        return {}

    monkeypatch.setattr(status_reading, "stored_positions", silent)
    with StatusReader(config) as reader:
        found = [reader._positions(route, {}, {}) for route in config.routes.values()]

        assert asked == ["shop", "other"]
        assert found == [*[None] * ROUTES, {}]
        assert len(reader.notes) == ROUTES, "each route still says that its positions are not known"
        assert "resources.shop" in str(reader.unseen)
        monkeypatch.setattr(reader._topics, "describe", lambda *_, **__: {})
        with pytest.raises(Exception, match="relay migrate"):
            reader.read()
        assert reader._positions(config.routes["r0"], {}, {}) is None
        assert asked == ["shop", "other", "shop"], "and at the next look it is asked again"


def test_a_record_that_cannot_be_read_is_noted_once_however_often_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`relay serve` and `relay indoubt list` ask for the records as well as for the routes."""
    config = good(BASE + ROUTE.format(name="r", resource="shop"), tmp_path)
    with StatusReader(config) as reader:
        topics = {name: object() for name in (config.control_topic, config.deadletter_topic)}
        monkeypatch.setattr(reader._topics, "describe", lambda *_, **__: topics)
        monkeypatch.setattr(reader, "_read_tail", lambda *_: None)
        monkeypatch.setattr(reader, "_read_retention", lambda *_: None)
        monkeypatch.setattr(reader, "_facts", lambda *_: None)
        monkeypatch.setattr(reader._control, "complete", True)
        monkeypatch.setattr(status_reading, "view", lambda *_: None)
        reader._latest[b"status/w"] = b"nonsense", 0

        reader.read()

        assert reader.records() == reader.records() == []
        assert len(reader.notes) == 1
        assert "is no status record of this version" in reader.notes[0]
