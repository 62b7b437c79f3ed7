"""A handler that waits for several messages that belong together and publishes one made of them, exactly once.

What has come is a row of the handler's own database, written in the transaction of each message's DONE: a crash returns the
message and its row together. Source: document 003, [64]: correlation services.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson

from relay.message.errors import ConfigError
from relay.work.desks import Database
from relay.work.message import Message
from relay.work.subscriber import Handler, Unusable, subscriber

Joined = bytes | Mapping[str, Any]
_ADD: Final = {
    # One statement, which locks the row: two parts that come at once see each other.
    "postgresql": """
insert into relay_correlation (correlation, key, parts) values (%s, %s, %s)
on conflict (key, correlation) do update
set parts = (relay_correlation.parts::jsonb || excluded.parts::jsonb)::text returning parts""",
    "sqlite": """
insert into relay_correlation (correlation, key, parts) values (?, ?, ?)
on conflict (key, correlation) do update
set parts = json_patch(relay_correlation.parts, excluded.parts) returning parts""",
}
_REMOVE: Final = {
    "postgresql": "delete from relay_correlation where correlation = %s and key = %s",
    "sqlite": "delete from relay_correlation where correlation = ? and key = ?",
}


def correlate(
    queue: str,
    *,
    to: str,
    resource: str,
    parts: Sequence[str],
    part_of: Callable[[Message], str],
    key_of: Callable[[Message], str],
    join: Callable[[Mapping[str, bytes]], Joined],
    name: str | None = None,
) -> Handler:
    """Return a handler that publishes ``join(values by part)`` to ``to`` once all parts of a key have come.

    A later message of the same part and key takes the earlier one's place while others are missing. All messages are
    recorded as parents. ``name`` tells several correlations in one database apart; without it each subscriber of each queue, or
    pool, joins for itself.
    """
    if len(set(parts)) < 2:
        raise ConfigError(f"correlate({queue!r}): give at least two parts, each with a name of its own")
    wanted = frozenset(parts)

    def correlated(message: Message, db: Database) -> None:
        part = part_of(message)
        if part not in wanted:
            raise Unusable(f"the message is none of the parts {', '.join(sorted(wanted))}")
        correlation = name if name is not None else f"{queue}/{message.taken.group}"
        key = key_of(message)
        stored = [message.handle, b64encode(message.value or b"").decode()]
        come = _add(db, correlation, key, {part: stored})
        if not wanted <= come.keys():
            # Beside what is missing there may be a part of an earlier declaration.
            return
        db.execute(_REMOVE[db.kind], (correlation, key))
        for handle, _ in come.values():
            message.also_from(handle)
        values = {one: b64decode(value) for one, (_, value) in come.items() if one in wanted}
        message.publish(to, join(values), key=key)

    return subscriber(queue, resource=resource)(correlated)


def _add(db: Database, correlation: str, key: str, part: Mapping[str, Any]) -> dict[str, Any]:
    ((parts,),) = db.execute(_ADD[db.kind], (correlation, key, orjson.dumps(part).decode())).fetchall()
    return dict(orjson.loads(parts))
