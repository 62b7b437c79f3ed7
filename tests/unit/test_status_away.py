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
