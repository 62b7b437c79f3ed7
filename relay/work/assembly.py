"""The composition root of handlers: from a configuration, an application and a subscriber to a worker ready to run."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

from relay.config.model import RelayConfig
from relay.message.errors import ConfigError
from relay.queue.alerts import open_alerts
from relay.queue.attempts import Outcomes, PreparedTransactions
from relay.queue.port import Holder, QueueStore
from relay.resources import open_resource
from relay.resources.attempts import PostgresqlAttempts, SqliteAttempts
from relay.resources.postgresql import PostgresqlResource
from relay.resources.prepared import PreparedEffects
from relay.resources.sqlite import SqliteResource
from relay.run.following import DesiredFollower, follow
from relay.run.queue_keeper import JournalKeeper
from relay.run.queues import address, bind_queue, open_queue, queue_of
from relay.work.backoff import Backoff
from relay.work.coroutines import AwaitedRunner
from relay.work.desk import Desk
from relay.work.desk_postgresql import PostgresqlDesk
from relay.work.desk_sqlite import SqliteDesk
from relay.work.desks import Desks
from relay.work.further import Connections, Further, FurtherDatabase
from relay.work.loading import check_resources
from relay.work.locked import locked
from relay.work.mark import Mark
from relay.work.place import Place
from relay.work.running import Runner
from relay.work.stores import Deciding, Stores
from relay.work.subscriber import Handler
from relay.work.upkeep import Upkeep
from relay.work.worker import Limits, Worker
from relay.world import randomness, schedule

CONNECTIONS_MAX: Final = 16
"""Connections of one process to a handler's PostgreSQL; a handler without one waits for it."""
LOCK_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Job:
    """Who works: a handler as one subscriber of its queue."""

    handler: Handler
    queue: str
    subscriber: str


class Assembled:
    """A worker with what it stands on; close it when its run has ended. ``follower`` None: that of the control topic."""

    def __init__(
        self, config: RelayConfig, job: Job, limits: Limits, follower: DesiredFollower | None = None
    ) -> None:
        self._config = config
        self._job = job
        # A handler may pause between two statements for as long as it may run; frozen for longer, it holds nobody up.
        self._pause_s = max(queue_of(config, job.queue).lease_s, limits.deadline_s)
        self._follower = follow(config) if follower is None else follower
        self._desired = self._follower.now()
        """Renewed by the main thread alone, in `_held_back`; others look at it."""
        self._check()
        self._near, self._gate = self._queues_in_resource(), schedule.lock()
        shared = self._gate if self._is_sqlite else None
        locks = {
            name: schedule.lock() if shared is None or name not in self._near else shared
            for name in config.queues
        }
        self.stores = Stores(locks, self._open_queue)
        decides_here = job.handler.resource is None or job.queue in self._near
        self.deciding = f"queue:{job.queue}" if decides_here else f"resource:{job.handler.resource}"
        self._desks = self._make_desks(limits.concurrency)
        self._further: list[Connections] = []
        self.worker, self.runner = self._assemble(limits)
        self._journal = JournalKeeper(config, job.queue, self._desired, self._lent())
        self._journal.start()

    def close(self) -> None:
        """Close connections and stores; what this worker holds stays held until it left or is recovered."""
        in_use = [] if self._journal.close() else [self._job.queue]
        self.runner.forget_all()
        if self._desks is not None:
            self._desks.close()
        for connections in self._further:
            connections.close()
        self._alerts.close()
        self.stores.close(in_use)
        self._follower.close()

    def _assemble(self, limits: Limits) -> tuple[Worker, Runner]:
        config, job = self._config, self._job
        queue = queue_of(config, job.queue)
        holder = Holder(randomness.uuid_bytes(), job.subscriber, 0, self.deciding)
        marks = config.relay.state / "work" / job.queue
        mark = Mark(marks, holder.id)
        backoff = Backoff(queue.retry_after_s, queue.retry_max_s)
        limits = replace(
            limits, batch=job.handler.batch, ordered=job.handler.order == "queue", backoff=backoff
        )
        store, lock = self.stores[job.queue], self.stores.locks[job.queue]
        # After the store: to listen for a file that is elsewhere would make an empty one.
        url = address(config, job.queue, self._desired)
        self._alerts = open_alerts(job.queue, url, state=config.relay.state)
        place = Place(job.queue, job.subscriber, self.deciding, self.stores, self.stores.locks)
        beside = self.stores.beside(job.queue)
        resources = {name: partial(self._outcomes, name) for name in config.resources}
        deciding = partial(Deciding, beside, resources)
        also = self._open_further(limits.concurrency)
        prepared = {resource: partial(self._prepared, resource) for resource in job.handler.also}
        unnamed = {
            name: partial(self._prepared, name)
            for name, resource in config.resources.items()
            if resource.kind == "postgresql" and name not in job.handler.also
        }
        upkeep = Upkeep(
            job.queue, beside, deciding, holder, marks, queue.lease_s, backoff, prepared, unnamed, self._follower.now
        )
        with lock:
            store.enter(holder)
        name = config.relay.name
        runner = Runner(
            job.handler,
            place,
            self._desks,
            (lambda attempt: Further([FurtherDatabase(name, attempt, connections) for connections in also])) if also else None,
        )
        worker = Worker(
            store,
            job.subscriber,
            holder.id,
            AwaitedRunner(job.handler, runner, limits.concurrency) if job.handler.is_async else runner,
            lock,
            limits,
            upkeep,
            mark,
            held_back=self._held_back,
            alert=partial(self._alerts.wait, job.subscriber),
            done=runner.forgetting.done,
            say=runner.say,
        )
        return worker, runner

    def _check(self) -> None:
        config, job = self._config, self._job
        queue = queue_of(config, job.queue)
        if queue.settings().group_of(job.subscriber) is None:
            known = ", ".join(
                member for group in queue.settings().audience.groups for member in group.members
            )
            raise ConfigError(
                f"--subscriber {job.subscriber}: queue {job.queue!r} has {known}; add it to its subscribers"
            )
        check_resources(job.handler, config)

    def _open_further(self, concurrency: int) -> list[Connections]:
        """Return the further databases of the handler, each asked whether it prepares transactions at all."""
        for resource in self._job.handler.also:
            connection = self._connect(resource)
            try:
                PreparedEffects(self._config.relay.name, resource, connection).check()
            finally:
                connection.close()
        # One for each handler: who has one may wait for a desk, so nobody who has a desk may have to wait for one.
        limit = concurrency
        self._further = [
            Connections(resource, partial(self._connect_further, resource), limit)
            for resource in self._job.handler.also
        ]
        return self._further

    def _connect_further(self, resource: str) -> Any:
        connection = self._connect(resource, self._pause_s)
        connection.autocommit = False
        return connection

    def _prepared(self, resource: str, lent: ExitStack) -> PreparedTransactions:
        connection = self._connect(resource)
        lent.callback(connection.close)
        return PreparedEffects(self._config.relay.name, resource, connection)

    def _lent(self) -> QueueStore | None:
        """Return the queue's store for other threads if nobody can open it once more: files are open once."""
        store = self.stores[self._job.queue]
        return None if store.shared else locked(store, self.stores.locks[self._job.queue])

    def _held_back(self) -> bool:
        return not self._follower.now().may_take(self._job.queue, self._job.subscriber)

    def _open_queue(self, name: str) -> QueueStore:
        return open_queue(self._config, name, self._desired)

    @property
    def _is_sqlite(self) -> bool:
        resource = self._job.handler.resource
        return resource is not None and self._config.resources[resource].kind == "sqlite"

    def _queues_in_resource(self) -> dict[str, str]:
        """Return where the queues lie whose states are in the handler's own database: one transaction can hold both."""
        resource = self._job.handler.resource
        if resource is None:
            return {}
        config, url = self._config, self._config.resources[resource].url.get_secret_value()
        lie = {name: address(config, name, self._desired) for name in config.queues}
        return {name: at for name, at in lie.items() if at.removeprefix("log+") == url}

    def _make_desks(self, concurrency: int) -> Desks | None:
        resource = self._job.handler.resource
        if resource is None:
            return None
        # SQLite has one writer: more connections would only wait for each other.
        limit = 1 if self._is_sqlite else min(concurrency, CONNECTIONS_MAX)
        return Desks(partial(self._desk, resource), limit)

    def _desk(self, resource: str) -> Desk:
        connection = self._connect(resource, self._pause_s)

        def bind(bound: Any) -> dict[str, QueueStore]:
            return {name: bind_queue(self._config, name, at, bound, self._desired) for name, at in self._near.items()}

        if self._is_sqlite:
            return SqliteDesk(resource, connection, bind, self._gate)
        return PostgresqlDesk(resource, connection, bind)

    def _connect(self, resource: str, pause_s: float | None = None) -> Any:
        """Connect for the relay's own statements, or for a handler's, which may pause for so long in its transaction."""
        found = open_resource(resource, self._config.resources[resource].url.get_secret_value())
        if isinstance(found, SqliteResource):
            return found.connect()
        idle_s = queue_of(self._config, self._job.queue).lease_s if pause_s is None else pause_s
        return cast("PostgresqlResource", found).connect(
            lock_timeout=LOCK_TIMEOUT_S, idle_in_transaction_session_timeout=idle_s
        )

    def _outcomes(self, resource: str, lent: ExitStack) -> Outcomes:
        connection = self._connect(resource)
        lent.callback(connection.close)
        is_sqlite = self._config.resources[resource].kind == "sqlite"
        return SqliteAttempts(resource, connection) if is_sqlite else PostgresqlAttempts(resource, connection)
