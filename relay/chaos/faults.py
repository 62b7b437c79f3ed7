"""What the plan names is done to real processes, connections and sessions; each deed undoes itself before it returns."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import psycopg

from relay.chaos import frame_proxy, skewed
from relay.chaos.crew import Command, Crew
from relay.chaos.disks import Disk
from relay.chaos.frame_proxy import Caught, FrameProxy, Match, Request, api, end_txn
from relay.chaos.nemesis import Fault, Kind
from relay.chaos.stage import DATABASE_DISK, Stage, broker_disk
from relay.local.process import RecordedProcess
from relay.message.errors import CheckFailed, Unreachable
from relay.world import clock, schedule

T = TypeVar("T")

Begin = Callable[[str], None]
"""Called once, when it begins, with what is struck."""
Deed = Callable[[Fault, Begin], str]
"""Does it all, and returns what is worth saying in the end."""

CATCH_S: Final = 10.0
BROKER_END_S: Final = 20.0
BROKER_START_S: Final = 180.0
"""A broker on a busy machine; what is longer is a stage that does not come back."""
TURN_S: Final = 15.0
"""How long an accident waits for the one before it to be over; then it does not happen."""
STORM_ROUNDS: Final = 3
STORM_GRACE_S: Final = 15.0
ANSWER_RESET_SHARE: Final = 0.6
"""Share of lost answers whose connection is reset too; else the client waits for its own timeout."""
LOG_FULL_SHARE: Final = 0.5
_POLL_S: Final = 0.05
_NO_CHECKPOINT: Final = b"checkpoint not written"
"""What a worker logs then."""


class Missed(Exception):
    """There is nothing that could be struck now."""


def picked(found: Sequence[T], pick: float) -> T:
    """Return the one that a number in [0, 1) means; raises Missed if there is none."""
    if not found:
        raise Missed("nothing to strike")
    return found[int(pick * len(found))]


@contextlib.contextmanager
def _turn(lock: schedule.Lock) -> Iterator[None]:
    """Hold the lock; raises Missed if it is not one's turn in time."""
    if not lock.acquire(timeout=TURN_S):
        raise Missed("the accident before it is not over")
    try:
        yield
    finally:
        lock.release()


class WorkerFaults:
    """Strikes worker processes that the run has started itself, and nothing else."""

    def __init__(
        self, crew: Crew, routes: Sequence[str], workers: int, command: Callable[[str, int], Command],
        stopping: schedule.Event, *, clock_of: Callable[[str], Path], disk: Disk | None = None,
    ) -> None:  # fmt: skip
        """``clock_of`` gives the file that a worker's clock follows, ``disk`` is the one that holds their state."""
        self._crew = crew
        self._routes = routes
        self._next = workers
        self._command = command
        self._stopping = stopping
        self._clock_of = clock_of
        self._disk = disk
        self._filling = schedule.lock()
        self.deeds: dict[Kind, Deed] = {
            Kind.WORKER_KILL: self._kill,
            Kind.WORKER_FREEZE: self._freeze,
            Kind.STORM: self._storm,
            Kind.CLOCK_JUMP: self._jump,
            Kind.WORKER_DISK_FULL: self._fill,
        }

    def _kill(self, fault: Fault, begin: Begin) -> str:
        name = picked(self._crew.running(), fault.pick)
        if self._crew.kill(name) is None:
            raise Missed(f"{name} has just ended")
        begin(name)
        return ""

    def _freeze(self, fault: Fault, begin: Begin) -> str:
        name = picked(self._crew.running(), fault.pick)
        if self._crew.freeze(name) is None:
            raise Missed(f"{name} has just ended")
        begin(name)
        self._stopping.wait(fault.lasts_s)
        self._crew.thaw(name)
        return ""

    def _storm(self, fault: Fault, begin: Begin) -> str:
        """Let a worker more join and leave, again and again: every time its whole group rebalances."""
        route = picked(self._routes, fault.pick)
        begin(route)
        for _ in range(STORM_ROUNDS):
            number, self._next = self._next, self._next + 1
            name = f"{route}.{number}"
            self._crew.add(name, self._command(route, number))
            self._stopping.wait(fault.lasts_s / STORM_ROUNDS)
            self._crew.leave(name, STORM_GRACE_S)
        return f"{STORM_ROUNDS} workers joined and left"

    def _jump(self, fault: Fault, begin: Begin) -> str:
        """Let a worker's wall clock jump, again and again, and in the end back to the truth."""
        name = picked(self._crew.running(), fault.pick)
        begin(name)
        jumps_s = fault.jumps_s()
        try:
            for offset_s in jumps_s:
                skewed.jump(self._clock_of(name), offset_s)
                self._stopping.wait(fault.lasts_s / len(jumps_s))
        finally:
            skewed.jump(self._clock_of(name), 0)
        return "wrong by " + ", ".join(f"{offset_s / 3600:+.2f} h" for offset_s in jumps_s)

    def _fill(self, fault: Fault, begin: Begin) -> str:
        """Leave the workers no room for their checkpoints."""
        with _turn(self._filling):
            if self._disk is None:
                return self._limit(fault, begin)
            begin("all workers")
            before = self._crew.heard(_NO_CHECKPOINT)
            self._disk.keep_full(fault.lasts_s, self._stopping)
            return f"{max(0, self._crew.heard(_NO_CHECKPOINT) - before)} checkpoints could not be written"

    def _limit(self, fault: Fault, begin: Begin) -> str:
        """Where no disk may be filled, one worker is refused every write, also that of its log."""
        name = picked(self._crew.running(), fault.pick)
        if not hasattr(resource, "prlimit"):
            raise Missed("limits of other processes are not permitted here")
        if self._crew.let_write(name, may=False) is None:
            raise Missed(f"{name} has just ended")
        begin(name)
        self._stopping.wait(fault.lasts_s)
        self._crew.let_write(name, may=True)
        return "by a limit on the size of its files"


class StageFaults:
    """Strikes the demonstration's own services, publishers and connections; of brokers one at a time."""

    def __init__(self, stage: Stage, sources: Crew, stopping: schedule.Event) -> None:
        self._stage = stage
        self._sources = sources
        self._stopping = stopping
        self._brokers = schedule.lock()
        self._database = schedule.lock()
        relays = f"{stage.config.relay.name}."
        self.deeds: dict[Kind, Deed] = {
            Kind.PUBLISHER_KILL: self._kill_publisher,
            Kind.BROKER_BOUNCE: lambda fault, begin: self._bounce(fault, begin, signal.SIGTERM),
            Kind.BROKER_KILL: lambda fault, begin: self._bounce(fault, begin, signal.SIGKILL),
            Kind.BROKER_PAUSE: self._pause,
            Kind.BROKER_DISK_FULL: self._fill_broker,
            Kind.LATE_COMMIT: self._late_commit,
            Kind.COMMIT_ANSWER_LOST: self._answer_lost(end_txn(committed=True, transactional_id=relays)),
            Kind.PRODUCE_LOST: self._request_lost(api(frame_proxy.PRODUCE)),
            Kind.PRODUCE_ANSWER_LOST: self._answer_lost(api(frame_proxy.PRODUCE)),
            Kind.OFFSETS_ANSWER_LOST: self._answer_lost(api(frame_proxy.TXN_OFFSET_COMMIT)),
            Kind.PARTITIONS_LOST: self._request_lost(api(frame_proxy.ADD_PARTITIONS_TO_TXN)),
            Kind.BACKEND_KILL: self._kill_backend,
            Kind.BACKEND_END: self._end_backend,
            Kind.DATABASE_RESTART: lambda fault, begin: self._restart_database(fault, begin, crash=False),
            Kind.DATABASE_CRASH: lambda fault, begin: self._restart_database(fault, begin, crash=True),
            Kind.DATABASE_DISK_FULL: self._fill_database,
        }

    def heal(self) -> None:
        """Let everything run again. Raises CheckFailed or Unreachable if something cannot."""
        with self._brokers, self._database:
            for _, process in self._living():
                process.send(signal.SIGCONT)
            self._launch()
            self._wait_until_ready()
            self._start_database()

    def thaw(self) -> None:
        """Let what is paused go on, so that it can be stopped; for an end before the end."""
        for _, process in self._living():
            process.send(signal.SIGCONT)

    def _kill_publisher(self, fault: Fault, begin: Begin) -> str:
        name = picked(self._sources.running(), fault.pick)
        if self._sources.kill(name) is None:
            raise Missed(f"{name} has just ended")
        begin(name)
        return ""

    def _bounce(self, fault: Fault, begin: Begin, number: signal.Signals) -> str:
        with _turn(self._brokers):
            node, process = picked(self._living(), fault.pick)
            begin(f"broker {node}")
            process.send(number)
            process.end(BROKER_END_S)
            self._stopping.wait(fault.lasts_s)
            return self._bring_back()

    def _fill_broker(self, fault: Fault, begin: Begin) -> str:
        """Leave a broker no room for its logs; when there is room again a person would start it again, so this does."""
        with _turn(self._brokers):
            node, process = picked(self._living(), fault.pick)
            disk = self._disk(broker_disk(node))
            begin(f"broker {node}")
            disk.keep_full(fault.lasts_s, self._stopping)
            ended = "lived on" if process.send(signal.SIGTERM) else "ended by itself"
            process.end(BROKER_END_S)
            return f"{ended}; {self._bring_back()}"

    def _bring_back(self) -> str:
        down = clock.monotonic()
        self._launch()
        self._wait_until_ready()
        return f"answered {clock.monotonic() - down:.1f} s after its start"

    def _disk(self, name: str) -> Disk:
        disk = self._stage.disks.by_name.get(name)
        if disk is None:
            raise Missed("bounded file systems are not permitted here")
        return disk

    def _pause(self, fault: Fault, begin: Begin) -> str:
        with _turn(self._brokers):
            node, process = picked(self._living(), fault.pick)
            begin(f"broker {node}")
            process.send(signal.SIGSTOP)
            self._stopping.wait(fault.lasts_s)
            process.send(signal.SIGCONT)
            return ""

    def _living(self) -> list[tuple[int, RecordedProcess]]:
        cluster = self._stage.cluster
        found = ((broker.node_id, cluster.process(broker.node_id)) for broker in cluster.plan.brokers)
        return [(node, process) for node, process in found if process is not None]

    def _launch(self) -> None:
        limit = clock.monotonic() + BROKER_START_S
        while True:
            try:
                self._stage.cluster.launch()
            except CheckFailed:
                # Retry: connections of the broker that just ended may hold its port for a moment.
                if clock.monotonic() > limit:
                    raise
                clock.sleep(_POLL_S)
            else:
                return

    def _wait_until_ready(self) -> None:
        limit = clock.monotonic() + BROKER_START_S
        while True:
            try:
                return self._stage.cluster.wait_until_ready()
            except Unreachable:
                # Retry: a busy machine takes its time.
                if self._stopping.is_set() or clock.monotonic() > limit:
                    raise

    def _late_commit(self, fault: Fault, begin: Begin) -> str:
        relays = f"{self._stage.config.relay.name}."
        match = end_txn(committed=True, transactional_id=relays)
        caught = self._catch(lambda proxy: proxy.hold(match, reset=True), begin)
        self._stopping.wait(fault.lasts_s)
        said = []
        for rule in caught:
            try:
                said.append(f"its late copy was answered with error code {rule.release_end_txn()}")
            except (OSError, ValueError, struct.error) as error:
                said.append(f"its late copy did not arrive: {error}")  # lost for good is as good an accident
        return "; ".join(said)

    def _answer_lost(self, match: Match) -> Deed:
        def deed(fault: Fault, begin: Begin) -> str:
            reset = fault.pick < ANSWER_RESET_SHARE
            self._catch(lambda proxy: proxy.drop_answer(match, reset=reset), begin)
            return "with a reset" if reset else "in silence"

        return deed

    def _request_lost(self, match: Match) -> Deed:
        def deed(_fault: Fault, begin: Begin) -> str:
            self._catch(lambda proxy: proxy.hold(match, reset=True), begin)
            return "with a reset"

        return deed

    def _catch(self, rule: Callable[[FrameProxy], Caught], begin: Begin) -> list[Caught]:
        """Set a rule before every broker and return what it caught first; more only if they come at once."""
        rules = [(proxy, rule(proxy)) for proxy in self._stage.proxies]
        limit = clock.monotonic() + CATCH_S
        while not any(one.is_caught for _, one in rules) and clock.monotonic() < limit:
            if self._stopping.wait(_POLL_S):
                break
        for proxy, one in rules:
            proxy.cancel(one)
        caught = [one for _, one in rules if one.is_caught]
        if not caught:
            raise Missed(f"no such request within {CATCH_S:g} s")
        begin(", ".join(sorted({_said(one.wait(0)) for one in caught})))
        return caught

    def _kill_backend(self, fault: Fault, begin: Begin) -> str:
        """SIGKILL a backend: the server ends all sessions and recovers."""
        with _turn(self._database):
            pid, name = self._session(fault.pick)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                raise Missed(f"{name} has just ended") from None
            begin(name)
        return ""

    def _end_backend(self, fault: Fault, begin: Begin) -> str:
        with _turn(self._database):
            pid, name = self._session(fault.pick)
            if self._ask("select pg_terminate_backend(%s)", (pid,)) != [(True,)]:
                raise Missed(f"{name} has just ended")
            begin(name)
        return ""

    def _restart_database(self, fault: Fault, begin: Begin, *, crash: bool) -> str:
        with _turn(self._database):
            begin("PostgreSQL")
            if crash:
                self._stage.postgres.kill()
            else:
                self._stage.postgres.stop()
            self._stopping.wait(fault.lasts_s)
            self._stage.postgres.start()
        return ""

    def _fill_database(self, fault: Fault, begin: Begin) -> str:
        """Leave the database no room for its tables, or none for its write-ahead log either: then it must end."""
        with _turn(self._database):
            disk = self._disk(DATABASE_DISK)
            process = self._stage.postgres.process()
            begin("PostgreSQL")
            log_too = fault.pick < LOG_FULL_SHARE
            disk.keep_full(fault.lasts_s, self._stopping, self._end_log_file if log_too else lambda: None)
            lived = process is not None and process.is_alive()
            self._start_database()
        return "lived on" if lived else "ended by itself and was started again"

    def _end_log_file(self) -> None:
        """Let what is written next need a new file of the write-ahead log."""
        with contextlib.suppress(Missed):
            self._ask("select pg_switch_wal()", ())

    def _start_database(self) -> None:
        limit = clock.monotonic() + BROKER_START_S
        while True:
            try:
                return self._stage.postgres.start()
            except (CheckFailed, Unreachable):
                # Retry: one that was about to end for lack of room, or a busy machine.
                if self._stopping.is_set() or clock.monotonic() > limit:
                    raise

    def _session(self, pick: float) -> tuple[int, str]:
        """Return pid and name of a client's session."""
        found = self._ask(
            "select pid, coalesce(nullif(application_name, ''), 'a session') from pg_stat_activity"
            " where backend_type = 'client backend' and pid <> pg_backend_pid() order by pid",
            (),
        )
        pid, name = picked(found, pick)
        return int(pid), str(name)

    def _ask(self, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        try:
            with psycopg.connect(self._stage.url, autocommit=True, connect_timeout=5) as connection:
                return connection.execute(statement.encode(), values).fetchall()
        except psycopg.Error as error:
            raise Missed("the database does not answer") from error


def _said(request: Request) -> str:
    """Return what is worth knowing of a request: whose commit, or to which topic."""
    try:
        if request.api_key == frame_proxy.END_TXN:
            return request.end_txn().transactional_id
        if request.api_key == frame_proxy.PRODUCE:
            return f"to {request.produce_topic()}"
    except (ValueError, struct.error):
        pass  # Go on: of a version that the proxy cannot read; it is struck all the same.
    return request.client_id or "a client"
