"""One seed of a route whose log is trimmed or created again while it runs: it stops, and says what a person must do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Final

from tests.simulation import collecting
from tests.simulation.crew import LOG, OUTPUT, RELAY, ROUTE
from tests.simulation.evidence import Evidence, MessageId
from tests.simulation.log_faults import AGAIN, SECOND_LIFE, LogFaults
from tests.simulation.person import Person
from tests.simulation.route_trial import HEALING_S, RouteTrial
from tests.simulation.trial import FAULTS_S, Outcome

LOOKS_AFTER_S: Final = 10.0
"""The last partition has a leader again by then."""


class LogTrial(RouteTrial):
    """A route trial with faults of the log, and a person who does what the workers' last sentences say."""

    redrives_often = 0.0
    """Dead letters outlive the topic whose offsets they name."""
    never = frozenset({"lost_commits"})
    """What an output loses is written again from the log, as far as that has it (``tests/unit/test_unshown.py``)."""

    def __init__(self, seed: int, *, tracing: bool = False, only: frozenset[str] | None = None) -> None:
        super().__init__(seed, tracing=tracing, only=only)
        rng = Random(f"{seed}/log")
        self.log_faults = LogFaults(self.world, self.cluster, rng, self.stored, self.plain.forget)
        self.log_faults.on_created_again.append(self._created_again)
        self.person = Person(self.world, self.cluster, self.crew, rng, self._rename)
        self.crew.person = self.person.hears
        self._renamed_at: float | None = None
        self._first_ids: set[bytes] = {self.cluster.topics.by_name[LOG].topic_id}
        if self.log_faults.hold_bytes is not None:
            route = self.crew.config.routes[ROUTE]
            less = route.inflight.model_copy(update={"hold_bytes": self.log_faults.hold_bytes})
            self.crew.config = self._with(ROUTE, route.model_copy(update={"inflight": less}))

    def run(self) -> Outcome:
        """As any route trial; besides, what the person was told must make sense, and the new topic be noticed."""
        outcome = super().run()
        outcome.problems += [f"remedy refused (I18): {words}" for words in self.person.refused]
        if self.log_faults.created_again_at is not None and self._renamed_at is None:
            outcome.problems.append("unnoticed (I1): the log was created again, and no worker said so")
        return outcome

    def _plan(self) -> None:
        super()._plan()
        self.outcome.faults += self.log_faults.names
        self.log_faults.plan(FAULTS_S)
        self.person.watch(FAULTS_S + HEALING_S)

    def _created_again(self) -> None:
        if self.gathering is not None:
            self.gathering.begin_again(f"{RELAY}.{AGAIN}", SECOND_LIFE)

    def _rename(self) -> None:
        """What the sentence says: the topic is another one, so the route gets another name."""
        self._renamed_at = self.world.now
        self.world.trace("renamed")
        self.cluster.topics.create(f"{RELAY}.{AGAIN}.monitor", len(self.cluster.topics.by_name[LOG].partitions))
        route = self.crew.config.routes[ROUTE].model_copy(update={"name": AGAIN})
        self.crew.rename(self._with(AGAIN, route), AGAIN)
        self.world.at(max(FAULTS_S - self.world.now, 0.0) + LOOKS_AFTER_S, self._end_what_hangs)

    def _end_what_hangs(self) -> None:
        """As `kafka-transactions.sh abort`: no worker has the former route's ids any more, so no recovery can."""
        for transactional_id, entry in self.cluster.transactions.entries.items():
            if transactional_id.startswith(f"{RELAY}.{ROUTE}.") and not entry.places:
                for partition in self.cluster.topics.by_name[OUTPUT].partitions:
                    partition.end_transaction(entry.producer_id, entry.epoch, commit=False)

    def _with(self, name: str, route: object):  # type: ignore[no-untyped-def]
        return self.crew.config.model_copy(update={"routes": {name: route}})

    def _first_of(self, topic_id: bytes) -> int:
        return 0 if topic_id in self._first_ids else SECOND_LIFE

    def _evidence(self, *, quiescent: bool) -> Evidence:
        evidence = super()._evidence(quiescent=quiescent)
        faults = self.log_faults
        collecting.gone_of(faults.gone, self._is_poison, evidence)
        collecting.passed_of(self.cluster, evidence)
        if faults.created_again_at is not None:
            self._second_life(evidence)
        names = {(record.partition[1], record.offset): record.id for record in evidence.log}
        evidence.dead = [self._named(dead, names) for dead in evidence.dead]
        return evidence

    @staticmethod
    def _named(dead: MessageId, names: Mapping[tuple[int, int], MessageId]) -> MessageId:
        """Give a dead letter without its message the name of the message that lay there."""
        place = re.fullmatch(r"@(\w+)/(\d+)/(\d+)", dead[1])
        if place is None:
            return dead
        first = SECOND_LIFE if place[1] == AGAIN else 0
        return names.get((int(place[2]), int(place[3]) + first), dead)

    def _second_life(self, evidence: Evidence) -> None:
        """Two topics had one name: to the auditor the second is the rest of the first, of which all may be lost."""
        evidence.log = [record._replace(offset=record.offset + SECOND_LIFE) for record in evidence.log]
        evidence.marked = [marked._replace(offset=marked.offset + SECOND_LIFE) for marked in evidence.marked]
        evidence.passed = {
            place: [(first + SECOND_LIFE, following + SECOND_LIFE) for first, following in spans]
            for place, spans in evidence.passed.items()
        }
        evidence.log_ends = {place: end + SECOND_LIFE for place, end in evidence.log_ends.items()}
        later = {record.id for record in evidence.log}
        collecting.gone_of(self.log_faults.before, self._is_poison, evidence)
        for place in evidence.log_ends:
            evidence.passed.setdefault(place, []).append((0, SECOND_LIFE))
        # An append whose answer was lost may be in both topics: two messages to the relay, of which nothing can be told.
        both = later & {record.id for record in evidence.log if record.offset < SECOND_LIFE}
        everything = evidence.log
        evidence.log = [record for record in everything if record.id not in both]
        evidence.effects = [effect for effect in evidence.effects if effect.id not in both]
        evidence.seen = [seen for seen in evidence.seen if seen.id not in both]
        evidence.dead = [name for name in evidence.dead if name not in both]
        torn = {record.capture for record in everything if record.id in both}
        for capture in {name for name in torn if name}:
            if capture in evidence.decisions:
                evidence.decisions[capture] = evidence.decisions[capture]._replace(placed=())


def run_log(seed: int, *, tracing: bool = False) -> Outcome:
    """Run one seed of a route under whose workers the log is trimmed, or becomes another topic."""
    return LogTrial(seed, tracing=tracing).run()


