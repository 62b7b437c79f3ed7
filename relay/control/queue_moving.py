"""``relay queue migrate``: the cut-over is a recorded wish that every worker obeys, and each step may be done again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from relay.config.faults import Wrong
from relay.config.model import QueueDestination, RelayConfig
from relay.config.queues import QueueConfig, in_folder, store_rule
from relay.control.queue_cursor_copy import check_cursors, copy_cursors
from relay.control.queue_desk import QueueDesk
from relay.message.errors import CheckFailed, ConfigError
from relay.queue import moving
from relay.queue.desired import Move, Step
from relay.queue.port import QueueStore
from relay.run.queues import address_of, open_at, queue_of
from relay.setup.queue_tables import create_tables
from relay.world import clock
from relay.world.crash import crash_point

OBEY_S: Final = 1.0
"""Workers follow the control topic within this time."""
LOOK_S: Final = 0.2


def move_queue(desk: QueueDesk, name: str, target: str, *, wait_s: float, tell: Callable[[str], None]) -> dict[str, Any]:
    """Move a queue to the store ``target`` (as the configuration writes it); begin again after a crash by the same call.

    Raises ConfigError if it cannot go there, CheckFailed if the stores differ in the end (the queue then stays stopped).
    """
    queue = queue_of(desk.config, name)
    _check_target(desk.config, queue, target)
    target = in_folder(target, desk.config.path.absolute().parent)
    begun = desk.desired.moves.get(name)
    if begun is not None and begun.step is Step.MOVED and desk.desired.store_of(name, queue.store) == target:
        return {"queue": name, "to": target, "messages": 0, "moved": False}
    _check(desk, name, target, begun)
    create_tables(desk.config, queue, target)
    check_cursors(desk.config, name, target)
    source = open_at(desk.config, queue, queue.store)
    new = open_at(desk.config, queue, target)
    try:
        run = _Run(desk, name, source.uuid, target, begun)
        count = _move(run, source, new, wait_s=wait_s, tell=tell)
    finally:
        source.close()
        new.close()
    return {"queue": name, "to": target, "messages": count, "moved": True}


class _Run:
    """One run of the command; ``last`` is the last word that it knows of the move.

    It goes on while that is the last one. A run that stood still may wake up behind another one that has finished, and would
    put the new store, which is the queue by then, back to what the old one had.
    """

    def __init__(self, desk: QueueDesk, name: str, uuid: str, target: str, last: Move | None) -> None:
        self.desk = desk
        self.name = name
        self.target = target
        self.last = last
        self._uuid = uuid

    def record(self, step: Step) -> None:
        """Write down how far the move has come."""
        self.check()
        configured = self.desk.config.queues[self.name].store
        at = clock.wall_ms() if self.last is None else max(clock.wall_ms(), self.last.at + 1)  # no two words are alike
        self.last = Move(self.name, self._uuid, configured, self.target, step, self.desk.who, at)
        self.desk.moved(self.last)
        crash_point(f"move.{step.value.lower()}")

    def check(self) -> None:
        """Raise CheckFailed if another run has said anything since."""
        found = self.desk.latest().moves.get(self.name)
        if found != self.last:
            by = "somebody" if found is None else found.who
            raise CheckFailed(
                f"queue {self.name!r} is being moved, or was moved, by another run of this command ({by}), which came later; this one "
                "has stopped: run it again if that one ended before it was done"
            )


def _move(run: _Run, source: QueueStore, new: QueueStore, *, wait_s: float, tell: Callable[[str], None]) -> int:
    count = 0
    if run.last is None or run.last.step is not Step.RETIRING:
        run.record(Step.COPYING)
        tell("copying what is over, while the queue goes on")
        count = moving.copy_ended(source, new, lambda _: None, run.check)
    run.record(Step.RETIRING)
    tell("waiting for the workers to give back what they have")
    _wait_for_workers(source, wait_s)
    tell("copying the rest")
    done = moving.cut_over(source, new, lambda _: None, run.check)
    run.check()
    copy_cursors(run.desk.config, run.name, run.target)
    crash_point("move.cursors")
    different = next(moving.differences(source, new), None)
    run.check()  # behind another run, what the new store has by now differs
    if different is not None:
        raise CheckFailed(f"queue {run.name!r}: {different}; the old store is retired, so run the command again")
    run.record(Step.MOVED)
    return count + done.messages


def _check_target(config: RelayConfig, queue: QueueConfig, target: str) -> None:
    try:
        resource = queue.model_copy(update={"store": store_rule(target)}).resource
    except Wrong as wrong:
        raise ConfigError(f"--to {target!r}: {wrong.problem}; {wrong.remedy}") from None
    if resource is not None and resource not in config.resources:
        known = ", ".join(sorted(config.resources)) or "there is none"
        raise ConfigError(f"--to {target}: there is no such resource; add it to [resources], or name one of those: {known}")


def _check(desk: QueueDesk, name: str, target: str, begun: Move | None) -> None:
    queue = queue_of(desk.config, name)
    if begun is not None and begun.step is not Step.MOVED and begun.target != target:
        raise ConfigError(f"queue {name!r} is on its way to {begun.target!r}; finish that first: --to {begun.target}")
    if desk.desired.store_of(name, queue.store) != queue.store:
        lies = desk.desired.store_of(name, queue.store)
        raise ConfigError(f"queue {name!r} lies in {lies!r}; write store = {lies!r} into the configuration first")
    addresses = [address_of(desk.config, queue, store).removeprefix("log+") for store in (queue.store, target)]
    if addresses[0] == addresses[1]:
        raise ConfigError(f"--to {target}: the queue lies in that database already; name another one")
    routed = any(
        isinstance(route.to, QueueDestination) and route.to.queue == name for route in desk.config.routes.values()
    )
    if routed and target.startswith("files:"):
        raise ConfigError(f"--to {target}: a route goes into queue {name!r}, and flat files take none; name a database")


def _wait_for_workers(source: QueueStore, wait_s: float) -> None:
    """Wait until everybody has read the wish and holds nothing; what is still held then moves with its holder."""
    limit = clock.monotonic() + max(OBEY_S, wait_s)
    clock.sleep(OBEY_S)
    while clock.monotonic() < limit and any(source.held(holder.id) for holder in source.holders()):
        clock.sleep(LOOK_S)
