"""A route's topics under a worker's eyes: one that was deleted and created again, or got more partitions, is noticed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from relay.kafka.topics import VISIBLE_S, TopicFacts, Topics, compaction_lags
from relay.message.errors import NAMESAKE_REMEDY, ConfigError, Stopped
from relay.world import clock

TOPIC_IDS_PERIOD_S: Final = 10.0


def described(topics: Topics, names: list[str], wait_s: float = 0.0) -> dict[str, TopicFacts]:
    """Describe the topics that exist. What the broker refuses to tell stops this route: others may be told theirs."""
    try:
        return topics.describe(names, settings=False, wait_s=wait_s)
    except ConfigError as refused:
        raise Stopped(str(refused)) from refused


def keeps_all(topics: Topics, name: str) -> bool:
    """Does a topic surely keep older values of a key? Not if it may be compacted, or the broker does not say."""
    try:
        policy = topics.describe([name])[name].settings.get("cleanup.policy")
    except (ConfigError, KeyError):
        return False
    return policy is not None and "compact" not in policy


def kept(topics: Topics, name: str) -> dict[str, float]:
    """Return for how many milliseconds a topic surely keeps older values of a key; nothing if it is not known to be compacted."""
    try:
        found = topics.describe([name])
    except ConfigError:
        return {}  # `relay check --connect` judges it, with the right to
    return compaction_lags(found.values())


class TopicWatch:
    """The route's topics as they are now; tells when one was recreated or has other partitions.

    ``output`` is the topic that a topic route delivers to: recreated, it has lost what was delivered before.
    """

    def __init__(self, topics: Topics, names: list[str], monitor: str, output: str | None = None) -> None:
        self._topics = topics
        self._names = names
        self._monitor = monitor
        self._outputs = [output] if output is not None else []
        self._facts: dict[str, TopicFacts] = {}
        self._read_at = float("-inf")

    def facts(self) -> dict[str, TopicFacts]:
        """Describe the log topics and the monitor; raises Stopped if they cannot serve the route."""
        found = described(self._topics, [*self._names, self._monitor, *self._outputs])
        if unheard_of := [name for name in (*self._names, self._monitor) if name not in found]:
            found |= described(self._topics, unheard_of, VISIBLE_S)
        # `relay migrate` makes the monitor only, and only once the log is there.
        if missing := [name for name in self._names if name not in found]:
            raise Stopped(f"topics {', '.join(missing)} do not exist; create them, or correct `from` of the route")
        if self._monitor not in found:
            raise Stopped(f"topic {self._monitor} does not exist; run `relay migrate`")
        counts = {name: found[name].partitions for name in self._names}
        if len(set(counts.values())) > 1:
            raise Stopped(f"the route's topics have different partition counts {counts}; give all of them the same")
        if found[self._monitor].partitions < max(counts.values()):
            raise Stopped(
                f"{self._monitor} has {found[self._monitor].partitions} partitions for {max(counts.values())} of the "
                "log: run `relay migrate`, which adds them before they are read"
            )
        self._compare({name: facts.topic_id for name, facts in found.items()})
        self._facts |= found  # an output that is gone for a moment is remembered
        self._read_at = clock.monotonic()
        return found

    def ids(self) -> dict[str, bytes]:
        """Return the topic ids of the log topics, not older than ten seconds."""
        if clock.monotonic() - self._read_at > TOPIC_IDS_PERIOD_S:
            self.facts()
        return {name: self._facts[name].topic_id for name in self._names}

    def check(self) -> None:
        """Raise Stopped if a log topic, or the output, is another one by now: ask between reading a batch and delivering it.

        A consumer says nothing of it: it goes on in the new topic at the old offset, if that one is long enough.
        """
        self._compare({name: facts.topic_id for name, facts in described(self._topics, [*self._names, *self._outputs]).items()})

    def _compare(self, found: Mapping[str, bytes]) -> None:
        for name, facts in self._facts.items():
            if found.get(name, facts.topic_id) == facts.topic_id:
                continue
            if name in self._outputs:
                raise Stopped(
                    f"topic {name!r}, which the route delivers to, was deleted and created again under the worker: what was "
                    "delivered before is not in it; start again to go on with what follows, or give the route a new name, "
                    "with start = \"earliest\", to deliver all that is still in the log"
                )
            if name == self._monitor:
                raise Stopped(
                    f"topic {name!r} was deleted and created again under the worker: what was delivered above the stored "
                    "positions, and which messages are repeats, is not known any more; start again, to go on or be told how"
                )
            raise Stopped(f"topic {name!r} was deleted and created again under the worker; {NAMESAKE_REMEDY}")
