"""The composition root: from a configuration to one worker of one route, every part named once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

import structlog

from relay.capture.resolver import Resolver
from relay.config.model import RelayConfig
from relay.config.routes import QueueDestination, RouteConfig, TableDestination, TopicDestination
from relay.delivery.deadletter import Letters
from relay.delivery.destination import Destination
from relay.delivery.queue.effects import HeldPublishers
from relay.delivery.queue.route import QueueDelivery
from relay.delivery.table.postgresql.cursor import PostgresqlCursor
from relay.delivery.table.route import TableDelivery
from relay.delivery.table.sqlite.cursor import SqliteCursor
from relay.delivery.table.verdicts import TablePlan
from relay.delivery.topic.route import TopicDelivery
from relay.delivery.topic.unshown import Derive
from relay.kafka import settings
from relay.kafka.appending import Appending
from relay.kafka.control import ControlTopic
from relay.kafka.decisions import DecisionLog
from relay.kafka.group import GroupConsumer
from relay.kafka.reading import PartitionReader
from relay.kafka.registry import Registry
from relay.kafka.topics import VISIBLE_S, TopicFacts, Topics, fitting_batches
from relay.kafka.transactions import TransactionalInstance
from relay.kafka.unawaited import UnawaitedAppender
from relay.log.holds import HoldBudget
from relay.log.intake import Intake
from relay.message.avro_values import AvroDecoder
from relay.message.errors import ConfigError, Stopped
from relay.message.identity import Rule, rules
from relay.message.record import LogPartition
from relay.monitor.checkpoint import CheckpointStore
from relay.monitor.index import Budget
from relay.monitor.ranges import RangeLimits
from relay.resources import open_resource
from relay.resources.port import Resource
from relay.run import status_record
from relay.run.anchorage import Anchorage
from relay.run.appetite import Bounds
from relay.run.asking import AddingMarkers, AskingWithBook, Inquiring
from relay.run.book import ControlBook
from relay.run.following import control_records, follow
from relay.run.progress import Progress
from relay.run.queue_cursor import cursor_limits, queue_cursor
from relay.run.redriving import Redriving
from relay.run.reloading import Reloading
from relay.run.renamed import refuse_repeats
from relay.run.resolving import Resolving
from relay.run.restarts import Past
from relay.run.starts import STARTS, StartPolicy
from relay.run.status_record import StatusRecord
from relay.run.topic_watch import TopicWatch, described, keeps_all, kept
from relay.run.twins import Twins
from relay.run.units import AskingUnits
from relay.run.unread import Unread
from relay.run.views import ViewKeeper
from relay.run.worker import RouteWorker
from relay.transfer.cursor import TableCursor
from relay.transfer.sending import Sending
from relay.transfer.timers import ResendTimes
from relay.world import clock, randomness

log = structlog.get_logger("relay.worker")

READ_DEADLINE_S = 30.0
TELL_S = 5.0
INDEX_ENTRIES_IN_MEMORY = 2_000_000


class RoutePorts:
    """Makes the clients of one route's worker from the configuration; ``registry`` is None if none is named.

    ``over`` are settings of the producers that write what is delivered.
    """

    def __init__(self, config: RelayConfig, route: RouteConfig, over: Mapping[str, Any] | None = None) -> None:
        self._config = config
        self._over = {**(over or {})}
        self._group = config.group_id(route.name)
        self.registry = Registry(config.registry) if config.registry else None

    def transaction(self, transactional_id: str) -> TransactionalInstance:
        """Make a producer instance; nothing is sent before its ``init``."""
        timing = self._config.timing
        made = settings.producer(self._config.kafka, timing, transactional_id, **self._over)
        absent = self._config.relay.partition_verification == "absent"
        return TransactionalInstance(made, transactional_id, timing.transaction_timeout, one_each=absent)

    def appending(self) -> Appending:
        """Make a producer of records outside any transaction."""
        return Appending(settings.producer(self._config.kafka, self._config.timing, **self._over))

    def reader(self, *, committed: bool, meanwhile: Callable[[], object] = bool) -> PartitionReader:
        """Make a reader by hand; it belongs to no group."""
        made = settings.consumer(self._config.kafka, self._config.timing, f"{self._group}.reader")
        return PartitionReader(
            made, committed=committed, clock=clock.monotonic, deadline_s=READ_DEADLINE_S, meanwhile=meanwhile, denied=Stopped
        )

    def group(self, topics: list[str], on_revoked: Callable[[], None]) -> GroupConsumer:
        """Make the worker's consumer and subscribe it."""
        return GroupConsumer(settings.consumer(self._config.kafka, self._config.timing, self._group), topics, on_revoked)

    def control(self, deadline_s: float = READ_DEADLINE_S) -> ControlTopic:
        """Open the control topic."""
        config = self._config
        return ControlTopic(
            settings.consumer(config.kafka, config.timing, f"{self._group}.reader"),
            settings.producer(config.kafka, config.timing),
            config.control_topic,
            clock.monotonic,
            deadline_s,
            Stopped,
        ).connect()


def assemble(config: RelayConfig, route_name: str, number: int) -> RouteWorker:
    """Build worker ``number`` of a route. Raises ConfigError, Stopped or Unreachable before anything is read.

    What a person must mend is told to ``relay status``, as by a worker that has run.
    """
    route = config.routes.get(route_name)
    if route is None:
        raise ConfigError(f"--route {route_name}: there is no such route; there are: {', '.join(config.routes)}")
    try:
        return _assembled(config, route, number)
    except (ConfigError, Stopped) as refused:
        with suppress(Exception):  # whatever it fails for, it is the supervisor's to say in any case
            _tell_refused(config, route, number, str(refused))
        raise


def _assembled(config: RelayConfig, route: RouteConfig, number: int) -> RouteWorker:
    topics = Topics(config.kafka, config.timing)
    ports = RoutePorts(config, route, _fitting(config, route, topics))
    output = route.to.topic if isinstance(route.to, TopicDestination) else None
    watch = TopicWatch(topics, route.from_, config.monitor_topic(route.name), output)
    facts = watch.facts()
    monitor = config.monitor_topic(route.name)
    worker_id = config.transactional_id(route.name, number)
    resources = {
        name: open_resource(name, resource.url.get_secret_value()) for name, resource in config.resources.items()
    }
    scanner = ports.reader(committed=False)
    anchorage = Anchorage(scanner)
    control = ports.control()
    book = ControlBook(lambda: control, worker_id)
    intake = Intake(
        _identity_rules(route, ports.registry),
        route.order,
        budget=HoldBudget(route.inflight.hold_bytes),
        marker_wait_s=config.timing.marker_wait,
        askable=frozenset(resources),
    )
    destination = _destination(config, route, ports, topics, worker_id, book, intake.derive, control.brokers_ms)
    twins = Twins(control, worker_id)
    twins.announce()
    reloading = Reloading(
        lambda: ports.reader(committed=True),
        lambda place, first, following: book.pass_lost(route.name, place, first, following, count=0),
    )
    group = ports.group(route.from_, lambda: worker.revoked())  # noqa: PLW0108 - there is no worker yet
    worker = RouteWorker(
        group=group,
        intake=intake,
        destination=destination,
        views=_views(config, route, number, facts[monitor].topic_id, scanner),
        resolving=_resolving(config, ports, resources, worker_id, lambda partition: scanner.watermarks(partition)[1]),
        reloading=reloading,
        redriving=_redriving(config, route, ports, worker_id, control, intake, destination),
        progress=Progress(
            _identity(config, route, worker_id),
            _status_writer(control, route, worker_id),
            lambda: book.lost + reloading.lost,
            Unread(scanner.ends, group.stable_ends),
        ),
        starts=_starts(config, route, facts, control, book, scanner, anchorage).resolve,
        check_twin=twins.check,
        topic_ids=watch.ids,
        check_topics=watch.check,
        check_epochs=anchorage.check,
        decided=book.has_changed,
        bounds=Bounds(route.batch.messages, route.batch.bytes, route.batch.linger_s, route.inflight.messages),
    )
    return worker


def _starts(
    config: RelayConfig,
    route: RouteConfig,
    facts: Mapping[str, TopicFacts],
    control: ControlTopic,
    book: ControlBook,
    scanner: PartitionReader,
    anchorage: Anchorage,
) -> StartPolicy:
    return StartPolicy(
        control,
        route=route.name,
        policy=route.start,
        topics={name: facts[name].partitions for name in route.from_},
        topic_ids={name: facts[name].topic_id for name in route.from_},
        watermarks=scanner.watermarks,
        may_pass=lambda place, first, low: book.pass_lost(route.name, place, first, low, count=low - first),
        end_anew=scanner.end_anew,
        undecided=lambda place, first, low: book.undecided(route.name, place, first, low),
        replaced=anchorage.replaced,
        place=route.to.place,
        check_new=lambda topics: refuse_repeats(lambda: control.under([STARTS]), route, config.routes, topics),
    )


def _fitting(config: RelayConfig, route: RouteConfig, topics: Topics) -> dict[str, int]:
    """Let no batch be larger than a topic takes that this worker writes to; without the right to see that, the client's own are."""
    written = [config.monitor_topic(route.name), config.deadletter_topic]
    written += [route.to.topic] if isinstance(route.to, TopicDestination) else []
    try:
        return fitting_batches(config.kafka, topics.describe(written).values())
    except ConfigError:
        return {}


def _redriving(
    config: RelayConfig,
    route: RouteConfig,
    ports: RoutePorts,
    worker_id: str,
    control: ControlTopic,
    intake: Intake,
    destination: Destination,
) -> Redriving:
    return Redriving(
        route.name,
        worker_id,
        control_records(config),
        lambda key, value: control.put(key, value, wait=True),
        intake.derive,
        lambda: ports.reader(committed=True),
        destination.entering,
        batch_bytes=route.batch.bytes,
    )


def _views(config: RelayConfig, route: RouteConfig, number: int, topic_id: bytes, scanner: PartitionReader) -> ViewKeeper:
    monitor = config.monitor_topic(route.name)
    store = CheckpointStore(
        config.relay.state / route.name / str(number),
        relay=config.relay.name,
        route=route.name,
        topic_id=topic_id,
        budget=Budget(INDEX_ENTRIES_IN_MEMORY),
        watermarks=lambda partition: scanner.watermarks(LogPartition(monitor, partition)),
    )
    return ViewKeeper(store, clock.monotonic)


def _resolving(
    config: RelayConfig,
    ports: RoutePorts,
    resources: Mapping[str, Resource],
    worker_id: str,
    watermark: Callable[[LogPartition], int],
) -> Resolving:
    """The resolver's thread has a book, a control topic and a reader of decisions of its own."""
    units = AskingUnits(
        Resolver(resources), lambda: DecisionLog(lambda committed: ports.reader(committed=committed), config.relay.name)
    )
    asks = AskingWithBook(units, ControlBook(ports.control, worker_id))
    unawaited = UnawaitedAppender(config.kafka, config.timing)
    inquiring = Inquiring(partial(unawaited.put_by_key, config.inquiries_topic), worker_id)
    adding = AddingMarkers(unawaited.put, f"/relay/{worker_id}")
    return Resolving(asks, watermark, inquiring.ask, add_marker=adding.add, hears_persons=True, close=unawaited.close)


def _identity_rules(route: RouteConfig, registry: Registry | None) -> list[Rule]:
    if not any(rule.startswith("avro:") for rule in route.identity):
        return rules(route.identity)
    return rules(route.identity, AvroDecoder(route.to.schema_, registry).decode)


def _destination(
    config: RelayConfig,
    route: RouteConfig,
    ports: RoutePorts,
    topics: Topics,
    worker_id: str,
    book: ControlBook,
    derive: Derive,
    brokers_ms: Callable[[], float],
) -> Destination:
    if isinstance(route.to, TopicDestination):
        found = described(topics, [route.to.topic, config.deadletter_topic], VISIBLE_S)
        if route.to.topic not in found:
            raise Stopped(f"topic {route.to.topic!r} does not exist; create it, or correct `to` of the route")
        return TopicDelivery(
            ports,
            route=route.name,
            group_id=config.group_id(route.name),
            transactional_id=worker_id,
            monitor_topic=config.monitor_topic(route.name),
            topic=route.to.topic,
            topic_partitions=found[route.to.topic].partitions,
            output_id=found[route.to.topic].topic_id,
            letters=_letters(config, route, route.to.topic, found),
            stop_on_dead=route.on_dead == "stop",
            book=book,
            limits=_range_limits(route),
            horizon_s=config.timing.dedup_horizon,
            derive=derive,
            keeps_all=keeps_all(topics, route.to.topic),
            kept=kept(topics, route.to.topic),
            now_ms=lambda: max(clock.wall_ms(), brokers_ms()),
        )
    if isinstance(route.to, QueueDestination):
        return _queue(config, route, ports, topics, worker_id)
    cursor = _cursor(config, route, route.to, ports.registry)
    return TableDelivery(*_table_parts(config, ports, cursor), **_table_names(config, route, topics, worker_id))


def _queue(config: RelayConfig, route: RouteConfig, ports: RoutePorts, topics: Topics, worker_id: str) -> Destination:
    assert isinstance(route.to, QueueDestination)
    name = route.to.queue
    follower = follow(config)
    publishers = HeldPublishers()
    store = follower.now().store_of(name, config.queues[name].store)
    cursor = queue_cursor(config, route, follower, publishers, lambda: _topic_ids(topics, route.from_))
    return QueueDelivery(
        *_table_parts(config, ports, cursor),
        queue=name,
        store=store,
        desired=follower.now,
        latest=follower.latest,
        publishers=publishers,
        waiting_max=config.queues[name].waiting_max,
        **_table_names(config, route, topics, worker_id),
    )


def _topic_ids(topics: Topics, names: list[str]) -> dict[str, bytes]:
    return {name: facts.topic_id for name, facts in described(topics, names).items()}


def _table_parts(config: RelayConfig, ports: RoutePorts, cursor: TableCursor) -> tuple[Any, ...]:
    timing = config.timing
    times = ResendTimes(timing.resend_after, timing.resend_max, randomness.jitter)
    return ports, cursor, Sending(cursor, times, clock.monotonic), ports.appending


def _table_names(config: RelayConfig, route: RouteConfig, topics: Topics, worker_id: str) -> dict[str, Any]:
    to = route.to
    assert not isinstance(to, TopicDestination)
    target = to.queue if isinstance(to, QueueDestination) else to.table or to.resource
    timing = config.timing
    return {
        "route": route.name,
        "worker_id": worker_id,
        "monitor_topic": config.monitor_topic(route.name),
        "letters": _letters(config, route, target, described(topics, [config.deadletter_topic], VISIBLE_S)),
        "keep_inbox_s": timing.dedup_horizon if route.dedup == "route" else None,
        "limits": _range_limits(route),
        "horizon_s": timing.dedup_horizon,
    }


def _letters(config: RelayConfig, route: RouteConfig, target: str, found: Mapping[str, TopicFacts]) -> Letters:
    topic = config.deadletter_topic
    if topic not in found:
        raise Stopped(f"topic {topic!r} does not exist; run `relay migrate`")
    group = config.group_id(route.name)
    return Letters(route=route.name, target=target, group=group, topic=topic, partitions=found[topic].partitions)


def _range_limits(route: RouteConfig) -> RangeLimits:
    return RangeLimits(route.inflight.incarnations, route.inflight.gaps)


def _cursor(
    config: RelayConfig, route: RouteConfig, to: TableDestination, registry: Registry | None
) -> TableCursor:
    plan = TablePlan(
        relay=config.relay.name,
        route=route.name,
        resource=to.resource,
        table=to.table,
        mode=to.mode,
        columns=to.columns,
        key=to.key,
        sql=to.sql,
        schema=to.schema_,
        registry=registry,
        stop_on_dead=route.on_dead == "stop",
    )
    limits = cursor_limits(config)
    resource = config.resources[to.resource]
    url = resource.url.get_secret_value()
    if resource.kind == "postgresql":
        return PostgresqlCursor(url, plan, limits)
    return SqliteCursor(url, plan, limits)


def _identity(config: RelayConfig, route: RouteConfig, worker_id: str) -> dict[str, Any]:
    import os  # noqa: PLC0415
    import socket  # noqa: PLC0415

    return {
        "relay": config.relay.name,
        "route": route.name,
        "worker": worker_id,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "guarantee": route.guarantee,
        **asdict(Past.told(os.environ)),
    }


def _tell_refused(config: RelayConfig, route: RouteConfig, number: int, why: str) -> None:
    worker_id = config.transactional_id(route.name, number)
    control = RoutePorts(config, route).control(TELL_S)
    now = clock.wall_ms()
    said = {"started_at": now, "at": now, "state": "stopped", "last_error": why, "last_error_at": now}
    _status_writer(control, route, worker_id)({**_identity(config, route, worker_id), **said}, True)
    control.close()


def _status_writer(control: ControlTopic, route: RouteConfig, worker_id: str) -> Callable[[dict[str, Any], bool], None]:
    key = status_record.key(route.name, worker_id)

    def write(record: Mapping[str, Any], last: bool) -> None:
        try:
            control.put(key, status_record.encode(StatusRecord.model_validate(record)), wait=last)
        except Stopped as refused:  # go on: what was delivered stands, and all was drained
            log.warning("status not written", reason=str(refused))

    return write
