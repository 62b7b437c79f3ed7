"""Rules between a queue and the rest of the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from relay.config.faults import Fault, shown
from relay.config.quantities import spoken
from relay.config.queues import PUBLISHER_CHARACTERS_MAX, QueueConfig
from relay.config.routes import QueueDestination, RouteConfig
from relay.queue.modes import BALANCED_GROUP


def queue_faults(queue: QueueConfig, resources: set[str]) -> Iterator[Fault]:
    """Yield every broken rule of one queue."""
    key = f"queues.{queue.name}"
    if queue.resource is not None and queue.resource not in resources:
        known = ", ".join(sorted(resources)) or "one that you add"
        remedy = f'add [resources.{queue.resource}], name {known}, or write an address such as "sqlite:///{queue.name}.db"'
        yield Fault(f"{key}.store", repr(queue.store), "there is no such resource", remedy)
    balancing = queue.balancing
    if balancing and balancing.off_below >= balancing.on_above:
        problem = f"it would switch back and forth at on_above ({balancing.on_above})"
        yield Fault(f"{key}.balancing.off_below", str(balancing.off_below), problem, "set it well below on_above")
    if balancing and queue.mode == "balance":
        yield Fault(f"{key}.balancing", "", 'mode = "balance" balances always', "leave one of them out")
    if BALANCED_GROUP in queue.subscribers and (balancing or queue.mode == "balance"):
        problem = f"{BALANCED_GROUP!r} names the pool of all subscribers while the queue balances"
        yield Fault(f"{key}.subscribers", "", problem, "give it another name")
    if queue.in_order and queue.mode == "balance":
        problem = "one pool of all has no order of subscribers"
        yield Fault(f"{key}.in_order", "true", problem, 'leave it out, or use another mode than "balance"')
    if queue.retry_max_s < queue.retry_after_s:
        problem = f"shorter than retry_after ({spoken(queue.retry_after_s)})"
        yield Fault(f"{key}.retry_max", spoken(queue.retry_max_s), problem, "set it to retry_after or longer")
    for publisher in queue.publishers or ():
        if not 0 < len(publisher) <= PUBLISHER_CHARACTERS_MAX:
            problem = "not a publisher's name"
            yield Fault(f"{key}.publishers", shown(f"{key}.publishers", publisher), problem, "write the ce_source of its messages")


def queue_route_faults(
    route: RouteConfig, to: QueueDestination, queues: Mapping[str, QueueConfig | None]
) -> Iterator[Fault]:
    """Yield what keeps a route from delivering into its queue; a queue at fault itself is None."""
    key = f"routes.{route.name}.to.queue"
    if to.queue not in queues:
        known = ", ".join(sorted(queues)) or "one that you add"
        yield Fault(key, repr(to.queue), "there is no such queue", f"add [queues.{to.queue}] or name {known}")
        return
    queue = queues[to.queue]
    if queue is None:
        return
    if queue.store.startswith("files:"):
        problem = "a queue in flat files cannot take position and message in one transaction"
        yield Fault(key, repr(to.queue), problem, "keep the queue in SQLite or PostgreSQL, and its values in the log")
