"""A worker of one route: poll, take in, deliver, acknowledge; recover whenever anything is unclear.

All consumer calls happen on the thread that calls ``run``. Whatever was read before a rebalance is thrown away
after it; whatever failed in a way that is not understood leads to recovery, which finds out by evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import structlog

from relay.delivery.batch import Batch
from relay.delivery.destination import Destination
from relay.delivery.ports import Starts
from relay.delivery.topic.position_note import hint_note
from relay.kafka.failures import (
    DENIED_REMEDY,
    is_denied,
    is_still_ending,
    is_taken_over,
    kafka_error,
    sentence,
)
from relay.kafka.group import GroupConsumer
from relay.kafka.group_events import GroupEvents, said_of_membership
from relay.log.anchor import NewEpoch
from relay.log.intake import Intake
from relay.message.errors import (
    ConfigError,
    Fenced,
    InDoubt,
    RelayError,
    Retriable,
    Stopped,
    Stuck,
    TwinDetected,
    Unreachable,
)
from relay.message.record import LogPartition
from relay.run.appetite import Appetite, Bounds
from relay.run.progress import Progress
from relay.run.redriving import Redriving
from relay.run.reloading import Reloading
from relay.run.resolving import Resolving
from relay.run.views import ViewKeeper
from relay.world import clock, randomness
from relay.world.crash import crash_point

log = structlog.get_logger("relay.worker")

IDLE_POLL_S: Final = 0.05
RECOVERY_BACKOFF_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0)
OFFSET_ADVANCE_PERIOD_S: Final = 1.0
"""Positions that moved without a message (markers, duplicates of other lanes) are committed this often."""
POSITIONS_REPEATED_AFTER_S: Final = 5.0
"""A late copy of an earlier offset commit of this epoch may put the position back while nothing else comes: what moved
is said once more."""
RELOADED_BATCHES: Final = 4
"""So many batches of bytes may be ready before nothing is read again: reading on stops at half of it, so that a route
which cannot keep up does not keep what was held from being read."""
REVOKE_WAIT_S: Final = 3.0
STUCK_RETRY_S: Final = 60.0
STUCK_LOOK_S: Final = 2.0


class RouteWorker:
    """Runs one route's loop on the calling thread until told to stop."""

    def __init__(
        self,
        *,
        group: GroupConsumer,
        intake: Intake,
        destination: Destination,
        views: ViewKeeper,
        resolving: Resolving,
        reloading: Reloading,
        redriving: Redriving,
        progress: Progress,
        starts: Starts,
        check_twin: Callable[[], None],
        topic_ids: Callable[[], Mapping[str, bytes]],
        check_topics: Callable[[], object],
        check_epochs: Callable[[Mapping[LogPartition, NewEpoch]], object],
        bounds: Bounds,
        decided: Callable[[], bool] = bool,
    ) -> None:
        self._group = group
        self._events = GroupEvents(group.name)
        self._intake = intake
        self._destination = destination
        self._views = views
        self._resolving = resolving
        self._reloading = reloading
        self._redriving = redriving
        self._progress = progress
        self._starts = starts
        self._check_twin = check_twin
        self._topic_ids = topic_ids
        self._check_topics = check_topics
        self._check_epochs = check_epochs
        self._bounds = bounds
        self._decided = decided
        self._generation = -1
        self._running: dict[LogPartition, int] = {}
        self._submitted: dict[LogPartition, int] = {}
        self._failures = 0
        self._advance_at = 0.0
        self._repeat_at = float("inf")
        self._stopping = False
        self._submitting = False
        self._appetite = Appetite(bounds)
        self._denied: Stopped | None = None
        self._heard = ""

    def stop(self) -> None:
        """Ask the loop to drain and end; safe from a signal handler."""
        self._stopping = True

    def run(self, until_idle_s: float | None) -> None:
        """Loop until stopped, or until nothing moved for ``until_idle_s`` seconds and all is read and delivered.

        Raises Stopped, TwinDetected, ConfigError or Unreachable where a person or the supervisor must act.
        """
        while not self._stopping:
            try:
                self._go_on()
            except (TwinDetected, ConfigError, Stopped) as found:
                final = self._reason(found)
                self._leave(final)
                raise final from found.__cause__  # stop: a person must act
            if until_idle_s is not None and self._is_idle(until_idle_s):
                break
        self._drain()

    def _go_on(self) -> None:
        """Take a turn, and wait out what passes; raises what stops the worker, also where that is Kafka's refusal."""
        try:
            self._turn()
        except (TwinDetected, ConfigError, Stopped):
            raise
        except Stuck as stuck:
            self._wait_stuck(stuck)  # in doubt: nothing can be found out now; wait for help, visibly
        except (Fenced, InDoubt, Retriable) as unclear:
            self._recover_next(unclear)  # in doubt: evidence decides
        except Unreachable as away:
            self._recover_next(away)  # retry: nothing can be found out before it answers
        except Exception as failure:  # noqa: BLE001 - sorted out below: recover, stop, or raised on
            self._sort_out(failure)

    def revoked(self) -> None:
        """The group takes the partitions away: let what is under way finish, then let go."""
        if not self._submitting:
            self._destination.wait(REVOKE_WAIT_S)
            self._destination.abandon()
        self._running = {}

    def _turn(self) -> None:
        now = clock.monotonic()
        self._progress.beat(now, self._intake, self._destination, self._running)
        if not self._running:
            self._redriving.listen()
            self._destination.listen()
        self._rest()
        if self._read(self._patience()) is None:
            return
        self._check_epochs(self._intake.new_epochs())
        now = clock.monotonic()
        self._resolving.turn(self._intake, now)
        room = self._bounds.inflight_messages - self._intake.ready()
        self._reloading.turn(self._intake, room, RELOADED_BATCHES * self._bounds.batch_bytes)
        self._deliver(now)
        self._redrive(now)
        self._destination.tend(now)
        self._views.tend(now)
        self._acknowledge()

    def _read(self, patience_s: float) -> int | None:
        """Poll once and take in what came; None after a rebalance, or while nothing is assigned."""
        records = self._group.consume(self._appetite.room(self._intake, self._destination.read_at_once), patience_s)
        moved = self._group.generation != self._generation
        if moved or not self._running:
            self._hear(records)
        if self._denied is not None:
            raise self._denied
        if moved:
            if not self._submitting:
                self._take_over()
            return None
        if not self._running:
            return None
        for event in self._intake.take(records, clock.monotonic()):
            self._event(event)
        if records:
            crash_point("worker.polled")
        return len(records)

    def _read_ahead(self) -> bool:
        """While the broker takes a batch, read some of the next one; a rebalance in it is dealt with afterwards.

        Little by little, so that records are taken in while the processor still has them at hand: a batch is as large
        as what came in while the last one was under way.
        """
        if self._appetite.has_batch(self._intake):
            return False
        return bool(self._read(0.0))

    def _rest(self) -> None:
        """With enough at hand read nothing and stay a member; with room again, read on from where the reading stood."""
        if not self._running or self._group.generation != self._generation:
            return  # what is assigned now is read after its take-over only
        goes_back = self._intake.go_back()
        was_sated = self._appetite.is_sated
        is_sated = self._appetite.look(self._intake)
        if goes_back:
            self._progress.moved(clock.monotonic())
        if goes_back or (is_sated and not was_sated):
            self._group.stand_by()
        if not is_sated and (goes_back or was_sated):
            self._group.start(self._intake.reached())

    def _patience(self) -> float:
        if not self._running:
            return IDLE_POLL_S
        return 0.0 if self._intake.ready() and self._destination.settled() else self._bounds.linger_s

    def _take_over(self) -> None:
        """Recover the partitions just assigned, or stand by without any."""
        generation = self._group.generation
        assigned = self._group.assigned
        self._running = {}
        self._heard = ""
        self._destination.abandon()
        if assigned is None:
            self._generation = generation
            self._intake.start({}, {})
            self._progress.lost_all()
            return
        self._check_twin()
        self._check_topics()
        topic_ids = self._topic_ids()
        _check_together(assigned, topic_ids)
        self._progress.state("recovering")
        self._intake.start({}, topic_ids)  # a recovery may read messages of the log again
        views = self._views.take({p.partition for p in assigned}, self._group.stay)
        if not assigned:
            starts: dict[LogPartition, int] = {}
        else:
            starts = self._destination.recover(assigned, views, self._group, self._starts, topic_ids)
        if self._group.generation != generation:
            return
        self._generation = generation
        self._intake.start(starts, topic_ids)
        self._redriving.start()
        self._submitted = dict(starts)
        self._running = dict(starts)
        self._appetite.is_sated = False
        self._group.start(starts)
        self._failures = 0
        self._repeat_at = min(self._repeat_at, clock.monotonic() + self._destination.asked_again_s)
        self._progress.took_over(clock.monotonic())
        log.info("running", partitions=[f"{p.topic}[{p.partition}]@{o}" for p, o in starts.items()])

    def _deliver(self, now: float) -> None:
        if not self._destination.settled():
            if self._appetite.has_batch(self._intake):
                self._destination.wait(IDLE_POLL_S)
            return
        limit = self._appetite.batch
        if self._destination.narrowed_to is not None:
            limit = min(limit, self._destination.narrowed_to)
        messages = self._intake.take_ready(limit)
        positions = self._intake.positions()
        moved = positions != self._submitted
        if not messages and now < (self._advance_at if moved else self._repeat_at):
            return
        self._advance_at = now + OFFSET_ADVANCE_PERIOD_S
        self._repeat_at = now + (POSITIONS_REPEATED_AFTER_S if moved else self._destination.asked_again_s)
        self._appetite.weigh(messages)
        self._check_topics()  # after the reading: what a namesake of the log holds is never delivered as the log's
        batch = Batch(
            generation=self._generation,
            messages=messages,
            first=self._submitted,
            positions=positions,
            reached=self._intake.reached(),
            membership=self._group.membership(),
            meanwhile=self._read_ahead,
            numbered=self._intake.is_numbered(),
            aborted=self._intake.take_aborted(),
            anchors=self._intake.anchors(positions),
        )
        self._submit(batch)
        self._submitted = positions
        if messages or moved:
            self._progress.moved(now)

    def _redrive(self, now: float) -> None:
        """Deliver dead messages that a person has redriven, in a batch of their own, which moves no position."""
        if not self._redriving.is_due(now):
            return
        if not self._destination.settled():
            self._redriving.hear()
            return
        limit = min(self._appetite.batch, self._destination.narrowed_to or self._appetite.batch)
        indexes = {view.partition: view.index for view in self._views.views()}
        found = self._redriving.turn(now, self._running, indexes, self._topic_ids, limit)
        if not found:
            return
        self._check_topics()
        self._submit(
            Batch(
                generation=self._generation,
                messages=[message for message, _ in found],
                first=self._submitted,
                positions=self._submitted,
                reached=self._submitted,
                membership=self._group.membership(),
                numbered=False,
                replays={message.digest: replay for message, replay in found},
            )
        )
        self._progress.moved(now)

    def _submit(self, batch: Batch) -> None:
        self._submitting = True
        try:
            self._destination.submit(batch)
        finally:
            self._submitting = False

    def _acknowledge(self) -> None:
        durable = self._destination.positions()
        if durable:
            self._group.commit(durable, {t: hint_note(i) for t, i in self._topic_ids().items()}, wait=False)
        # What is only on its way is not shown as delivered: its database may be away for hours.
        self._running.update(self._submitted if durable is None else durable)

    def _event(self, event: Any) -> None:
        if (end := self._events.end_of_partition(event)) is not None:
            self._intake.passed(*end)
            self._progress.caught_up(*end)

    def _hear(self, events: Iterable[Any]) -> None:
        """Without an assignment only the group has news: that it refuses this member is said once, and not again."""
        for event in events:
            said = said_of_membership(event, self._group.name)
            if isinstance(said, Stopped):
                self._denied = said
            elif said is not None and said != self._heard:
                self._heard = said
                self._progress.failed(said)
                log.warning("not in the group", reason=said)

    def _recover_next(self, why: RelayError, *, is_usual: bool = False) -> None:
        """Forget what is under way; the next turn recovers. Before it, unassign and poll, so that a member that was
        kicked out learns it."""
        step = min(self._failures, len(RECOVERY_BACKOFF_S) - 1)
        tell = log.info if is_usual and not self._failures else log.warning
        tell("recovering", reason=str(why), kind=type(why).__name__, failures=self._failures)
        self._progress.failed(str(why))
        self._failures += 1
        self._running = {}
        self._generation = -1
        self._destination.abandon()
        self._group.stand_by()
        # Spread: two workers that fence each other in step would do so for ever.
        limit = clock.monotonic() + RECOVERY_BACKOFF_S[step] * (0.5 + randomness.jitter())
        while clock.monotonic() < limit and not self._stopping:
            self._hear(self._group.consume(1, IDLE_POLL_S))

    def _wait_stuck(self, why: Stuck) -> None:
        """Show what is stuck and recover again; what only a person can decide waits for that, not to fence others."""
        places = [p for p in self._group.assigned or () if not why.numbers or p.partition in why.numbers]
        self._recover_next(why)
        self._progress.stuck(places, str(why))
        if not why.by_person:
            return
        generation = self._group.generation
        limit = clock.monotonic() + STUCK_RETRY_S
        look_at = clock.monotonic() + STUCK_LOOK_S
        while clock.monotonic() < limit and not self._stopping and self._group.generation == generation:
            self._hear(self._group.consume(1, IDLE_POLL_S))
            if clock.monotonic() >= look_at:
                look_at = clock.monotonic() + STUCK_LOOK_S
                self._progress.beat(clock.monotonic(), self._intake, self._destination, self._running)
                if self._has_decided():
                    return

    def _has_decided(self) -> bool:
        try:
            return self._decided()
        except RelayError:
            return True  # retry: the brokers are away, recovery will say so

    def _sort_out(self, failure: Exception) -> None:
        error = kafka_error(failure)
        if error is None:
            raise failure
        if is_denied(error):
            raise Stopped(f"Kafka refuses: {sentence(failure)}; {DENIED_REMEDY}") from failure
        said = sentence(failure)
        if is_taken_over(error):
            said = f"another worker has taken over, or the brokers ended a transaction that took too long: {said}"
        elif is_still_ending(error):
            # A coordinator to which an output has refused that end does not try again by itself (seen with Kafka 4.3).
            said = (
                f"the brokers have not ended this worker's last transaction yet ({said}); where that lasts for minutes, an output "
                "may have refused its end: raise message.timestamp.before.max.ms there, then restart the brokers one by one"
            )
        self._recover_next(InDoubt(said), is_usual=is_taken_over(error))

    def _is_idle(self, seconds: float) -> bool:
        now = clock.monotonic()
        return (
            self._group.assigned is not None
            and self._generation == self._group.generation
            and self._destination.wait(0)
            and not self._intake.ready()
            and not self._redriving.is_busy(self._running)
            and self._progress.idle_for(now, list(self._running)) >= seconds
            and not self._progress.is_held_up(now, self._intake)
            and self._progress.has_read_all(now, self._intake)
        )

    def _drain(self) -> None:
        """Finish what is under way and leave; what was read and not delivered is read again by the next owner."""
        self._progress.state("draining")
        self._destination.wait(REVOKE_WAIT_S)
        self._acknowledge_last()
        try:
            self._views.close()
            self._destination.close()
        finally:
            # Whatever could not be ended: others take over at once, and not when the session has expired.
            self._resolving.close()
            self._redriving.close()
            self._group.close()
            self._progress.state("stopped")

    def _reason(self, found: RelayError) -> RelayError:
        """What stops a worker may only show that the log is another topic by now, and that has another remedy."""
        try:
            if isinstance(found, Stopped):
                self._check_topics()
        except Stopped as another:
            return another
        except RelayError:
            log.warning("topics not seen", reason=str(found))  # stop: for what was found
        return found

    def _leave(self, why: RelayError) -> None:
        """Let others take over at once, and say why this worker stops."""
        self._progress.failed(str(why))
        try:
            self._destination.abandon()
            self._group.close()
            self._progress.state("stopped")
        except Exception as failure:  # noqa: BLE001 - the reason to stop matters more
            log.warning("left without a word", reason=sentence(failure))

    def _acknowledge_last(self) -> None:
        try:
            self._destination.settled()
            self._acknowledge()
        except RelayError as unclear:
            log.warning("left in doubt", reason=str(unclear))  # in doubt: the next owner recovers


def _check_together(assigned: Collection[LogPartition], topics: Collection[str]) -> None:
    """Raise Retriable unless all topics of the route come with each partition's number: its monitor partition has one owner.

    The group sees to that as long as its members read the same topics. Two owners would fence each other with every
    batch, and neither would know what the other one enters.
    """
    together = set(assigned)
    for place in assigned:
        for topic in topics:
            if LogPartition(topic, place.partition) not in together:
                raise Retriable(
                    f"{place.topic}[{place.partition}] came without {topic}[{place.partition}], which another worker has: workers of "
                    "this route run with different topics in `from`; stop them all, everywhere, and start them with one configuration"
                )
