"""From a sight to metrics in Prometheus' words: base units, few labels, never a message's id or key. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from relay.control.status import RouteView, State
from relay.run.status_record import StatusRecord
from relay.serve.watching import QueueRows, Sight

CODES_MAX: Final = 20
"""Labels of dead letters' causes; the rarer ones count together, for the topic's writers choose the words."""
OTHER: Final = "other"
_PLACE: Final = ("route", "topic", "partition")
_OUTCOMES: Final = {"delivered": "delivered", "duplicates": "duplicate", "dead": "dead", "aborted": "aborted", "lost": "lost"}
"""Count of a worker -> outcome of a message."""
_EVENTS: Final = {
    "conflicts": "Repeats of an identity with other content; the first one counts.",
    "transactions": "Delivery transactions that were committed.",
    "recoveries": "Partitions taken over, each after looking for what was left in doubt.",
    "settled": "Transactions whose outcome had to be found out.",
    "resent": "Batches sent again to a cursor that did not answer in time.",
    "told": "Resolutions by a person that were obeyed.",
}
"""Count of a worker -> what it counts."""


def metrics(sight: Sight | None, *, version: str, age_s: float, ready: bool) -> Iterator[Metric]:
    """Yield every metric; of routes and queues only if something was ever seen."""
    built = GaugeMetricFamily("relay_build_info", "The version that looks; always 1.", labels=["version"])
    built.add_metric([version], 1)
    yield built
    seen = ready and sight is not None and sight.is_whole
    yield GaugeMetricFamily("relay_sight_ready", "Did brokers and all stores answer at the last look?", value=seen)
    if sight is None:
        return
    yield GaugeMetricFamily("relay_sight_age_seconds", "How old is what the other metrics tell?", value=age_s)
    if sight.alarm_s is not None:
        yield GaugeMetricFamily(
            "relay_in_doubt_alarm_seconds", "After how long in doubt the configuration wants an alarm (timing.in_doubt_alarm).", value=sight.alarm_s
        )
    yield from _routes(sight.routes)
    yield from _partitions(sight)
    yield from _workers(sight)
    yield from _queues(sight.queues)


def _routes(routes: Iterable[RouteView]) -> Iterator[Metric]:
    state = GaugeMetricFamily("relay_route_state", "1 for the state that the route is in.", labels=["route", "state"])
    wrong = GaugeMetricFamily(
        "relay_route_needs_attention", "Is it stuck, stalled, without a living worker, with one that fails often, or about to lose messages to retention?", labels=["route"]
    )
    letters = GaugeMetricFamily("relay_route_dead_letters", "Dead letters not redriven, 0 where there are none.", labels=["route"])
    dead = GaugeMetricFamily(
        "relay_dead_letters", "Dead letters not redriven, by cause.", labels=["route", "code"]
    )
    for route in routes:
        for one in State:
            state.add_metric([route.name, one.value], one is route.state)
        wrong.add_metric([route.name], route.needs_attention)
        letters.add_metric([route.name], route.dead.count)
        for code, count in _bounded(route.dead.causes):
            dead.add_metric([route.name, code], count)
    yield from (state, wrong, letters, dead)


def _bounded(causes: Iterable[str] | Counter[str]) -> list[tuple[str, int]]:
    ranked = Counter(causes).most_common()
    rest = sum(count for _, count in ranked[CODES_MAX:])
    shown = dict(ranked[:CODES_MAX])
    if rest:
        # Together with a cause that is called so: Prometheus refuses a label that comes twice, with all that was scraped beside it.
        shown[OTHER] = shown.get(OTHER, 0) + rest
    return list(shown.items())


def _partitions(sight: Sight) -> Iterator[Metric]:
    lag = GaugeMetricFamily(
        "relay_lag_messages", "Messages and markers above the position; missing where it is not known.", labels=_PLACE
    )
    held = GaugeMetricFamily("relay_held_messages", "Messages that wait for undecided captures.", labels=_PLACE)
    oldest = GaugeMetricFamily(
        "relay_oldest_hold_seconds", "For how long the oldest undecided capture has been waited for.", labels=_PLACE
    )
    doubt = GaugeMetricFamily("relay_in_doubt_messages", "Messages whose delivery is in doubt.", labels=_PLACE)
    stuck = GaugeMetricFamily("relay_partition_stuck", "Does the partition wait for a person?", labels=_PLACE)
    aging = GaugeMetricFamily(
        "relay_nears_retention", "Will what the position waits at soon leave the log?", labels=_PLACE
    )
    moved = GaugeMetricFamily(
        "relay_last_progress_timestamp_seconds", "When it last moved or had nothing to do.", labels=_PLACE
    )
    for route in sight.routes:
        for one in route.partitions:
            place = [route.name, one.topic, str(one.partition)]
            if one.lag is not None:
                lag.add_metric(place, one.lag)
            held.add_metric(place, one.held)
            oldest.add_metric(place, max((waiting["since_ms"] for waiting in one.waiting), default=0) / 1000)
            doubt.add_metric(place, one.in_doubt)
            stuck.add_metric(place, one.stuck is not None)
            aging.add_metric(place, one.nears_retention)
            if one.last_progress_at is not None:
                moved.add_metric(place, one.last_progress_at / 1000)
    yield from (lag, held, oldest, doubt, stuck, aging, moved)


def _workers(sight: Sight) -> Iterator[Metric]:
    living = GaugeMetricFamily("relay_workers", "Workers by what they do.", labels=["route", "state"])
    for route in sight.routes:
        for state, count in Counter(worker.state.value for worker in route.workers).items():
            living.add_metric([route.name, state], count)
    yield living
    restarts = CounterMetricFamily(
        "relay_restarts",
        "Processes of a worker that failed and were followed by another, since `relay run` began; of `relay work` the route is QUEUE/SUBSCRIBER.",
        labels=["route", "worker"],
    )
    for record in (*sight.records, *sight.handlers):
        restarts.add_metric([record.route, record.worker], record.restarts)
    yield restarts
    yield _counter("relay_messages", "Messages by what became of them.", sight.records, _OUTCOMES, by="outcome")
    for event, text in _EVENTS.items():
        yield _counter(f"relay_{event}", text, sight.records, {event: event})


def _counter(
    name: str, text: str, records: Iterable[StatusRecord], counts: dict[str, str], *, by: str | None = None
) -> Metric:
    """Return a counter that each worker's process begins anew, with the time at which it did."""
    found = CounterMetricFamily(name, text, labels=["route", "worker", *([by] if by else [])])
    for record in records:
        for count, word in counts.items():
            labels = [record.route, record.worker, *([word] if by else [])]
            found.add_metric(labels, getattr(record.counts, count), created=record.started_at / 1000)
    return found


def _queues(queues: QueueRows) -> Iterator[Metric]:
    up = GaugeMetricFamily("relay_queue_up", "Does the queue's store answer?", labels=["queue"])
    waiting = GaugeMetricFamily("relay_queue_waiting", "Messages that are PUT or REVEALED.", labels=["queue"])
    states = GaugeMetricFamily(
        "relay_queue_messages", "Messages by their state for the publisher.", labels=["queue", "state"]
    )
    of_subscriber = GaugeMetricFamily(
        "relay_queue_subscriber_messages", "Messages by their state for a subscriber.", labels=["queue", "subscriber", "state"]
    )
    unusable = GaugeMetricFamily(
        "relay_queue_unusable", "Messages that a subscriber found UNUSABLE, until they are redriven.", labels=["queue", "subscriber"]
    )
    workers = GaugeMetricFamily("relay_queue_workers", "Workers of a subscriber.", labels=["queue", "subscriber"])
    for name, row in queues.items():
        up.add_metric([name], row is not None)
        if row is None:
            continue
        waiting.add_metric([name], row["waiting"])
        for state, count in row["messages"].items():
            states.add_metric([name, state], count)
        for one in row["subscribers"]:
            workers.add_metric([name, one["subscriber"]], one["workers"])
            if one["unusable"] is not None:
                unusable.add_metric([name, one["subscriber"]], one["unusable"])
            for state, count in one["states"].items():
                of_subscriber.add_metric([name, one["subscriber"], state], count)
    yield from (up, waiting, states, of_subscriber, unusable, workers)
