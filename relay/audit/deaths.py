"""What the dead-letter topic and the orders of persons say of a route, read once, and once more for those with an effect."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from relay.audit import readers
from relay.audit.evidence import Proven
from relay.audit.letters import Letters, SecondOutcomes, Trimmed, second_outcomes
from relay.audit.route_topics import ranges_of, ranges_since
from relay.config.model import RelayConfig, RouteConfig
from relay.kafka.scan import Progress, Range, Scan, broker_time
from relay.kafka.topics import TopicFacts, Topics
from relay.message.record import LogPartition


class Deaths:
    """The dead letters of one route, and how far they were read."""

    def __init__(
        self, config: RelayConfig, route: RouteConfig, facts: Mapping[str, TopicFacts], topics: Topics, scan: Scan
    ) -> None:
        self.letters = Letters()
        self.trimmed = Trimmed()
        self.ranges: dict[LogPartition, Range] = {}
        self._route = route
        self._letters = facts.get(config.deadletter_topic)
        self._control = facts.get(config.control_topic)
        self._topics = topics
        self._scan = scan

    def read(self, progress: Callable[[str, Mapping[LogPartition, Range]], Progress]) -> None:
        """Read the letters, after the ends of the destination: what has an effect by then was dead before."""
        if self._letters is not None:
            self.ranges = ranges_of(self._topics, self._letters)
            batches = self._scan.read(self.ranges, progress("dead letters", self.ranges))
            readers.dead_letters(self._noting_oldest(batches), self._route.name, self.letters)
            self.trimmed.lows = {place: low for place, (low, _high) in ranges_of(self._topics, self._letters).items()}
            for place, low in self.trimmed.lows.items():
                if low > self.ranges.get(place, (0, 0))[0]:
                    self.trimmed.oldest.pop(place, None)  # retention took more while it was read

    def note_what_is_left(self) -> None:
        """Note what the topic has forgotten by now, for who has read the letters in another way."""
        now = ranges_of(self._topics, self._letters) if self._letters is not None else {}
        self.trimmed.lows = {place: low for place, (low, _high) in now.items()}
        for place, (low, high) in now.items():
            records = (record for batch in self._scan.read({place: (low, high)}) for record in batch)
            first = next(records, None) if low > 0 else None
            if first is not None:
                self.trimmed.oldest[place] = broker_time(first.message)

    def _noting_oldest(self, batches: readers.Batches) -> readers.Batches:
        places = list(self.ranges)
        for records in batches:
            for place, _offset, message in records:
                if places[place] not in self.trimmed.oldest:
                    self.trimmed.oldest[places[place]] = broker_time(message)
            yield records

    def beside(
        self, found: Mapping[bytes, int], proven: Callable[[Collection[bytes]], Iterable[Proven]]
    ) -> SecondOutcomes:
        """Judge the deaths that were ``found`` of messages with an effect, by the numbers of their letters.

        What a living worker wrote meanwhile is read in the order in which it writes the opposite: an order ends behind
        all that its redrive has entered, and that behind its effect.
        """
        deaths = dict(found)
        if not deaths or self._letters is None:
            return SecondOutcomes()
        orders = readers.orders(self._scan.read(ranges_of(self._topics, self._control))) if self._control else []
        now = Letters()
        more = ranges_since(self._topics, self._letters, self.ranges)
        readers.dead_letters(self._scan.read(more), self._route.name, now)
        for digest, number in list(deaths.items()):
            if now.takes_back(digest, number):
                del deaths[digest]
        mine = (order for order in orders if order.route == self._route.name)
        return second_outcomes(deaths, proven(deaths), mine)
