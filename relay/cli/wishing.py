"""What pause and resume of publishers and subscribers have in common: a wish for each queue meant, recorded and said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from relay.cli.choosing import me
from relay.cli.report import print_json, print_line
from relay.config.loading import load
from relay.control.queue_desk import QueueDesk
from relay.control.queue_views import wish_row
from relay.message.errors import ConfigError
from relay.queue.desired import Kind, Wanted, Wish

Queues = Callable[[QueueDesk], Sequence[str]]
Obeyed = Callable[[QueueDesk, Sequence[Wish]], dict[str, int]]


def nothing_more(_desk: QueueDesk, _wishes: Sequence[Wish]) -> dict[str, int]:
    """Leave it to the workers to obey."""
    return {}


def record(
    config: str,
    kind: Kind,
    name: str,
    wanted: Wanted,
    queues: Queues,
    *,
    reason: str,
    who: str | None,
    as_json: bool,
    obeyed: Obeyed = nothing_more,
) -> dict[str, int]:
    """Record what is wanted of ``name`` in each of the queues; ``obeyed`` does at once what needs no worker, and counts it.

    Returns these counts.
    """
    with QueueDesk(load(Path(config)), who or me()) as desk:
        meant = queues(desk)
        if not meant:
            raise ConfigError(f"{config}: there are no queues; nothing was recorded of {kind.value.lower()} {name!r}")
        wishes = [desk.wish(kind, queue, name, wanted, reason) for queue in meant]
        counts = obeyed(desk, wishes)
    if as_json:
        print_json({"wishes": [wish_row(wish) for wish in wishes], **counts})
        return counts
    for wish in wishes:
        print_line(f"{kind.value.lower()} {name} in queue {wish.subject.queue}: {wanted.value.lower()}")
    return counts
