"""Upkeep of the decision rows: none is left unmarked for ever, none is deleted while a message may ask for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final

import orjson

from relay.capture.inquiries import Answering
from relay.capture.marking import Ended, Marking
from relay.capture.outcomes import Placed
from relay.capture.resolver import settle
from relay.kafka.appender import Appender
from relay.kafka.topics import TopicFacts, numeric_setting
from relay.message.envelope import ResourceName
from relay.message.errors import ConfigError, RelayError, Unreachable, whence
from relay.resources.port import DecisionRow, Decisions, RowLocked
from relay.world import clock, schedule
from relay.world.seldom import Repeats

_log = logging.getLogger("relay.capture")

DAY_S: Final = 86_400.0
TICK_S: Final = 1.0
REFRESH_S: Final = 30.0
ROUND_S: Final = 3600.0
DOUBTFUL_S: Final = 5.0
"""How long the captures in doubt are asked about at most, but for the question under way: the upkeep has more to do."""
_PAGE: Final = 5000
_MORE: Final = 16
_FOREVER: Final = float("inf")
_DEFAULT_SEGMENT_MS: Final = 7 * 86_400_000
_BACKLOG_PAUSE_S: Final = 0.05
_ASK_AGAIN_S: Final = 0.05
_ASK_AGAIN_MAX_S: Final = 1.0
"""Every block whose answer was lost asks, each time on a connection of its own, while the database comes back."""


def horizon_s(facts: TopicFacts) -> float:
    """Return for how long a decision about this topic's messages may be asked for: its age at most, and a day."""
    retention = numeric_setting(facts.settings, "retention.ms", -1)
    if retention < 0:
        return _FOREVER
    return (retention + numeric_setting(facts.settings, "segment.ms", _DEFAULT_SEGMENT_MS)) / 1000 + DAY_S


class Upkeep:
    """Finds out doubtful captures, marks those of earlier processes again, trims, refreshes topics; ``tidy`` at each tick."""

    def __init__(
        self,
        appender: Appender,
        open_decisions: Callable[[], Decisions],
        marking: Marking,
        resource: ResourceName,
        answering: Answering | None = None,
        tidy: Callable[[], object] = bool,
    ) -> None:
        self._repeats = Repeats()
        self._appender = appender
        self._open_decisions = open_decisions
        self._resource = resource
        self._marking = marking
        self._answering = answering
        self._tidy = tidy
        self._trimmed_at_once = _PAGE
        self._doubtful: list[Ended] = []
        self._lock = schedule.lock()
        self._stop = schedule.event()
        self._decisions: Decisions | None = None
        self._thread = schedule.start_thread("relay-capture-upkeep", self._run)

    def doubt(self, ended: Ended) -> None:
        """Take a capture whose COMMIT was sent without an answer; its nonce is given, its outcome unknown."""
        with self._lock:
            self._doubtful.append(ended)

    @property
    def doubtful(self) -> int:
        """How many captures of this process are in doubt."""
        return len(self._doubtful)

    def close(self, seconds: float) -> None:
        """Stop; what is still in doubt is found out at the next start, or by a resolver."""
        self._stop.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            return  # it uses what would be closed: under its statement, a connection of SQLite ends the whole process
        if self._answering is not None:
            self._answering.close()
        if self._decisions is not None:
            self._decisions.close()

    def _run(self) -> None:
        refreshed = clock.monotonic()
        next_round = refreshed
        while True:
            now, pause_s = clock.monotonic(), TICK_S
            try:
                self._tidy()
                if self._marking.given_up:
                    self._marking.given_up = False
                    next_round = min(next_round, now + REFRESH_S)
                if now >= next_round:
                    next_round = now + ROUND_S
                    self._round()
                if now - refreshed >= REFRESH_S:
                    refreshed = now
                    self._appender.refresh()
                self.find_out_once()
                if self._answering is not None:
                    self._answering.turn(self._connection)
            except RowLocked:
                # Retry at the next tick, and a round soon: another writer holds the file.
                next_round = min(next_round, now + REFRESH_S)
            except (Unreachable, ConfigError) as error:
                # Retry at the next tick, on a new connection: upkeep never fails a capture. What is away comes back by itself.
                if isinstance(error, ConfigError) and not self._repeats.is_one(str(error), now):
                    _log.warning("upkeep of captures waits: %s", error)
                self._disconnect()
                next_round = min(next_round, now + REFRESH_S)
            except Exception as error:  # noqa: BLE001 - whatever it is, later captures are kept up
                # Retry, seldom and loudly: without upkeep nobody would find out what is in doubt.
                _log.error("upkeep of captures failed; it goes on in %g s: %s", REFRESH_S, whence(error))
                self._disconnect()
                next_round, pause_s = min(next_round, now + REFRESH_S), REFRESH_S
            if self._stop.wait(pause_s):
                return

    def _round(self) -> None:
        try:
            self.mark_again()
        except Unreachable:
            # It may be the table that has become too large to look through: trimming is what makes it small again.
            self.trim()
            raise
        self.trim()

    def find_out_once(self) -> None:
        """Ask for each doubtful capture once, as any resolver does; what there is no time for comes first the next time.

        A database that froze may hold hundreds of rows, and each costs the wait for its lock.
        """
        with self._lock:
            asked = list(self._doubtful)
        if not asked:
            return
        known = self._connection().read([ended.capture for ended in asked])
        deadline = clock.monotonic() + DOUBTFUL_S
        held: set[bytes] = set()
        for ended in sorted(asked, key=lambda ended: ended.capture not in known):
            if self._stop.is_set() or clock.monotonic() >= deadline:
                break
            try:
                row = known.get(ended.capture) or settle(self._connection(), ended.capture)
            except RowLocked:
                held.add(ended.capture)
                continue
            if row is not None:
                with self._lock:
                    self._doubtful.remove(ended)
                if ended.placed:
                    self._marking.submit(ended if row.committed else ended._replace(nonce=None))
        with self._lock:
            self._doubtful = sorted(self._doubtful, key=lambda ended: ended.capture in held)

    def mark_again(self) -> None:
        """Mark committed captures whose markers are not known to be in the log, whichever process made them.

        Only those begun before this round: beside busy publishers there are unmarked ones at every moment.
        """
        begun = clock.monotonic()
        seen: set[bytes] = set()
        while not self._stop.is_set():
            found = self._connection().unmarked(clock.monotonic() - begun, _PAGE + len(seen))
            rows = [row for row in found if row.capture not in seen]
            if not rows:
                return
            unplaced = []
            names = {place.topic for row in rows for place in _placed(row.partitions)}
            topics, refused = self._describe(names)
            for row in rows:
                seen.add(row.capture)
                if not refused.isdisjoint(place.topic for place in _placed(row.partitions)):
                    continue  # another service's capture: its own process marks it
                placed = [place for place in _placed(row.partitions) if _exists(place, topics)]
                if placed:
                    self._marking.submit(Ended(row.capture, row.nonce, placed, None))
                else:
                    unplaced.append(row.capture)
            if unplaced:
                self._connection().mark(unplaced)
            while self._marking.backlog > _PAGE and not self._stop.wait(_BACKLOG_PAUSE_S):
                pass

    def trim(self) -> None:
        """Delete decisions that no message in any log can ask for any more."""
        known = {facts.name: horizon_s(facts) for facts in self._appender.known_topics()}
        foreign: set[str] = set()
        while not self._stop.is_set():
            horizon = max(known.values(), default=DAY_S)
            if horizon == _FOREVER:
                return
            # Another service's rows are trimmed by its own process, which may see how long its topics are kept; they
            # may be millions, so they are not read again with every page.
            limit = min(self._trimmed_at_once, _PAGE)
            rows = self._connection().aged(horizon, limit, sorted(foreign))
            names = {placed.topic for row in rows for placed in _placed(row.partitions)}
            unknown = names - known.keys() - foreign
            if unknown:
                found, refused = self._describe(unknown)
                foreign |= refused
                known.update({name: horizon_s(found[name]) if name in found else DAY_S for name in unknown - refused})
                continue
            # An aborted row does not name its topics: the longest horizon known stands for them.
            try:
                self._connection().trim([row.capture for row in rows])
            except Unreachable:
                # Retry, in the next round: what takes longer than a statement may is never deleted, so fewer are tried.
                self._trimmed_at_once = max(1, len(rows) // 2)
                raise
            if len(rows) < limit:
                return
            self._trimmed_at_once = limit + max(1, limit // _MORE)

    def _describe(self, names: set[str]) -> tuple[dict[str, TopicFacts], set[str]]:
        """Return the facts of the topics, and those that this publisher has no right to see; raises Unreachable."""
        try:
            return self._appender.describe(sorted(names)), set()
        except ConfigError:
            found: dict[str, TopicFacts] = {}
            refused = set()
        for name in names:
            try:
                found.update(self._appender.describe([name]))
            except ConfigError:
                refused.add(name)  # Stop asking: services that share a database need not see each other's topics.
        return found, refused

    def _connection(self) -> Decisions:
        """Return the connection; ConfigError while another database answers, whose empty table says nothing."""
        if self._decisions is None:
            opened = self._open_decisions()
            try:
                uuid = opened.uuid()
                if uuid != self._resource.uuid:
                    raise ConfigError(
                        f"resources.{self._resource.name}: the database's identity changed from {self._resource.uuid} to {uuid}"
                    )
            except BaseException:
                opened.close()
                raise
            self._decisions = opened
        return self._decisions

    def _disconnect(self) -> None:
        if self._decisions is not None:
            self._decisions.close()
            self._decisions = None


class Decided(Enum):
    """What the row says of a block whose own connection cannot tell."""

    COMMITTED = auto()
    COMMITTED_EARLY = auto()
    """By a COMMIT among the block's statements: what came after it is rolled back, or stands for itself."""
    ABORTED = auto()
    FENCED = auto()
    """Aborted, by a resolver, who was first."""


def find_out(
    open_decisions: Callable[[], Decisions], uuid: str, capture: bytes, deadline: float
) -> Decided | None:
    """Return how a capture ended whose answer was lost; None if unknown.

    Asks on new connections until ``deadline`` (monotonic). None too if another database answers: its empty table
    says nothing.
    """
    pause_s = _ASK_AGAIN_S
    while True:
        try:
            decisions = open_decisions()
            try:
                if decisions.uuid() != uuid:
                    return None
                row: DecisionRow | None = decisions.read([capture]).get(capture)
                if row is not None:
                    return _decided(row, Decided.FENCED)
                row = settle(decisions, capture)
                if row is not None:
                    return _decided(row, Decided.ABORTED)
            finally:
                decisions.close()
        except RelayError:
            pass  # Retry: the server may still be ending the old connection, or be away.
        left_s = deadline - clock.monotonic()
        if left_s <= 0:
            return None
        clock.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _ASK_AGAIN_MAX_S)


def _decided(row: DecisionRow, aborted: Decided) -> Decided:
    if not row.committed:
        return aborted
    return Decided.COMMITTED if row.proved else Decided.COMMITTED_EARLY


def _placed(partitions: bytes | None) -> list[Placed]:
    return [Placed(*entry) for entry in orjson.loads(partitions)] if partitions else []


def _exists(place: Placed, topics: Mapping[str, TopicFacts]) -> bool:
    """Where topic or partition is gone (created again with fewer), its messages are gone, and nobody will ask."""
    facts = topics.get(place.topic)
    return facts is not None and place.partition < facts.partitions
