"""A route under a new name that would deliver once more what it delivered under its former one: refused unless that is meant."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import orjson

from relay.config.routes import RouteConfig
from relay.message.errors import Stopped
from relay.run.starts import STARTS


def refuse_repeats(
    recorded: Callable[[], Iterable[tuple[bytes, bytes | None]]], route: RouteConfig, configured: Collection[str], topics: Collection[str]
) -> None:
    """Raise Stopped if a route that never ran reads what one that is not configured any more has led to the same place.

    ``recorded`` returns the control topic's records of first starts, with others or without, and is called where they are needed;
    ``topics`` are those that the route reads, as first starts name them. Positions, and what is known of repeats, are kept under a route's name, so all that the log
    has would come there a second time. Whoever means that says where the route starts.
    """
    if route.says_where_to_start:
        return
    for name, again in led_there(recorded(), route, topics):
        if name not in configured:
            raise Stopped(
                f"route {route.name!r} has not run before, and route {name!r}, which is not configured any more, has led "
                f"{', '.join(again)} to {route.to.place}: all that the log has would be delivered there once more; if it is that "
                f'route, give it the name {name!r} back; if not, set start = "earliest" to deliver all, or start = "latest" for '
                "what is written from now on"
            )


def led_there(
    recorded: Iterable[tuple[bytes, bytes | None]], route: RouteConfig, topics: Collection[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield each route whose first start is recorded as to the place of this one, with those of ``topics`` that it led there."""
    for name, start in first_starts(recorded):
        again = sorted(key.split("/")[0] for key in start.get("starts", {}) if key in topics)
        if again and start.get("place") == route.to.place:
            yield name, again


def first_starts(records: Iterable[tuple[bytes, bytes | None]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield route and content of each record of a first start; of two for one route the first counts."""
    for key, value in records:
        if not key.startswith(STARTS):
            continue
        try:
            start = orjson.loads(value or b"{}")
        except orjson.JSONDecodeError:
            continue  # no worker of this version wrote it, so it says of no place
        if isinstance(start, dict):
            yield key.removeprefix(STARTS).decode(errors="replace"), start
