"""Resolve: whoever writes the decision row first decides, and a living publisher is waited for, never fenced.

Any number of resolvers may race. Each inserts (capture, aborted) unless there is a row, one id per statement, and
reads the row in a statement of its own: an answer always comes from a committed row (design section 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from relay.message.envelope import ResourceName
from relay.message.errors import ConfigError, Unreachable
from relay.resources.port import DecisionRow, Decisions, Resource, RowLocked
from relay.world.crash import crash_point

LOCKED_MAX: Final = 4
"""After so many rows that living publishers hold, each a wait for a lock, the others are left to the next question."""
WAITED_MAX: Final = 10_000
"""Of so many captures it is known that their rows were held; the oldest are forgotten, and count as new ones."""


class State(Enum):
    """What a resolver can find out."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNDECIDED = "its publisher still holds the decision: ask again later"
    UNREACHABLE = "the resource does not answer: ask again later"
    WRONG_RESOURCE = "the resource is unknown here, or another database answers under its name: stuck"


class Resolution(NamedTuple):
    """The answer for one capture; ``nonce`` only for COMMITTED, ``detail`` is for people.

    ``of_row``: the decision row says so, and nobody has to believe anybody; anyone may then tell the log.
    """

    state: State
    nonce: bytes | None = None
    detail: str = ""
    of_row: bool = False


def settle(decisions: Decisions, capture: bytes) -> DecisionRow | None:
    """Abort the capture unless it is decided, then read the decision; None if there is still no row.

    Raises RowLocked while a living publisher holds the row, Unreachable.
    """
    decisions.abort_if_undecided(capture)
    crash_point("capture.resolved")
    return decisions.read([capture]).get(capture)


class Resolver:
    """Asks the resources for decisions. For one thread; keeps one connection per resource."""

    def __init__(self, resources: Mapping[str, Resource]) -> None:
        self._resources = resources
        self._connections: dict[str, Decisions] = {}
        self._waited: dict[bytes, None] = {}
        """Captures whose rows were held, in the order in which that was found."""

    def resolve(self, captures: Sequence[tuple[bytes, ResourceName]]) -> dict[bytes, Resolution]:
        """Find out how each capture ended, aborting those that nobody has decided."""
        by_resource: dict[ResourceName, list[bytes]] = {}
        for capture, resource in captures:
            by_resource.setdefault(resource, []).append(capture)
        found: dict[bytes, Resolution] = {}
        for resource, wanted in by_resource.items():
            found.update(self._resolve_in(resource, wanted))
        return found

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _resolve_in(self, resource: ResourceName, captures: list[bytes]) -> dict[bytes, Resolution]:
        if resource.name not in self._resources:
            detail = (
                f"resources.{resource.name} is not configured here; add it, or let another relay resolve it"
            )
            return dict.fromkeys(captures, Resolution(State.WRONG_RESOURCE, detail=detail))
        found: dict[bytes, Resolution] = {}
        try:
            decisions = self._connection(resource.name)
            uuid = decisions.uuid()
            if uuid != resource.uuid:
                detail = (
                    f"resources.{resource.name} is the database {uuid}, the messages name {resource.uuid}; "
                    "configure the database that they were captured with"
                )
                return dict.fromkeys(captures, Resolution(State.WRONG_RESOURCE, detail=detail))
            rows = decisions.read(captures)
            found.update({capture: _resolution(rows[capture]) for capture in rows})
            missing = dict.fromkeys(capture for capture in captures if capture not in found)
            fresh = [capture for capture in missing if capture not in self._waited]
            again = [capture for capture in self._waited if capture in missing]
            # Each with a bound of its own: those of slow publishers hold up no new ones, and new ones not those of the dead.
            for some in (fresh, again):
                self._settle_some(decisions, resource.name, some, found)
        except (Unreachable, ConfigError) as error:
            # Retry, on a new connection: what is found so far stands, the rest is unknown.
            self._forget(resource.name)
            for capture in captures:
                found.setdefault(capture, Resolution(State.UNREACHABLE, detail=str(error)))
        return found

    def _settle_some(
        self, decisions: Decisions, name: str, captures: Sequence[bytes], found: dict[bytes, Resolution]
    ) -> None:
        locked = 0
        for capture in captures:
            if locked == LOCKED_MAX:
                found[capture] = Resolution(State.UNDECIDED, detail="other rows are held: it comes with the next question")
                continue
            found[capture] = self._settle(decisions, name, capture)
            self._waited.pop(capture, None)
            if found[capture].state is State.UNDECIDED:
                locked += 1
                self._waited[capture] = None
        while len(self._waited) > WAITED_MAX:
            del self._waited[next(iter(self._waited))]

    def _settle(self, decisions: Decisions, name: str, capture: bytes) -> Resolution:
        try:
            row = settle(decisions, capture)
        except RowLocked as locked:
            # Retry later: the publisher lives, or its database still thinks so.
            writer = self._resources[name].frozen_writer()
            holder = f" (process {writer} holds the file)" if writer is not None else ""
            return Resolution(State.UNDECIDED, detail=f"{locked}{holder}")
        return Resolution(State.UNDECIDED, detail="no row yet") if row is None else _resolution(row)

    def _connection(self, name: str) -> Decisions:
        connection = self._connections.get(name)
        if connection is None:
            connection = self._connections[name] = self._resources[name].decisions()
        return connection

    def _forget(self, name: str) -> None:
        connection = self._connections.pop(name, None)
        if connection is not None:
            connection.close()


def _resolution(row: DecisionRow) -> Resolution:
    if row.committed:
        return Resolution(State.COMMITTED, row.nonce, of_row=True)
    return Resolution(State.ABORTED, of_row=True)
