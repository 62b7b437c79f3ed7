"""A database that does not answer is waited for once in a look, however many routes lead into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relay.control import status_reading
from relay.control.status_reading import StatusReader
from relay.message.errors import Unreachable
from relay.message.record import LogPartition
from relay.run.status_record import decode
from tests.unit.configurations import BASE, good
from tests.unit.memory_kafka import Stored, Unit

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


def test_a_record_is_decoded_once_however_often_one_looks_and_noted_at_each_look_if_it_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`relay serve` looks for weeks, and asks for the records as well as for the routes; whoever left for good stays in the topic."""
    decoded = list[bytes]()

    def said(value: bytes | None) -> Stored:
        return Stored(LogPartition("control", 0), 0, b"status/w", value, [], Unit())

    config = good(BASE + ROUTE.format(name="r", resource="shop"), tmp_path)
    with StatusReader(config) as reader:
        topics = {name: object() for name in (config.control_topic, config.deadletter_topic)}
        monkeypatch.setattr(reader._topics, "describe", lambda *_, **__: topics)
        monkeypatch.setattr(reader, "_read_tail", lambda *_: None)
        monkeypatch.setattr(reader, "_read_retention", lambda *_: None)
        monkeypatch.setattr(reader, "_facts", lambda *_: None)
        monkeypatch.setattr(reader._control, "complete", True)
        monkeypatch.setattr(status_reading, "view", lambda *_: None)
        monkeypatch.setattr(status_reading, "decode", lambda value, at: decoded.append(value) or decode(value, at))
        for value in (b"an earlier word", b"nonsense"):
            reader._take_status(said(value))

        for _ in range(2):
            reader.read()

            assert reader.records() == reader.records() == []
            assert len(reader.notes) == 1
            assert "is no status record of this version" in reader.notes[0]
        assert decoded == [b"nonsense"]
        reader._take_status(said(None))
        reader.read()
        assert reader.notes == []
