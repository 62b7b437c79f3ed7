"""Where a partition is read from: its stored position, or the start policy exactly once in the route's life."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, Literal

import orjson

from relay.log.anchor import Anchor
from relay.message.errors import NAMESAKE_REMEDY, Stopped
from relay.message.record import LogPartition
from relay.run.register import Register
from relay.world.crash import crash_point

STARTS: Final = b"start/"
"""What the keys of first starts begin with; the route's name follows."""


def recorded_start(register: Register, route: str, partition: LogPartition, topic_id: bytes) -> int | None:
    """Return where the route's first start set a partition; None if nothing is recorded of it."""
    found = orjson.loads(register.first(_key(route)) or b"{}").get("starts", {})
    start: int | None = found.get(topic_key(partition.topic, topic_id), {}).get(str(partition.partition))
    return start


def _key(route: str) -> bytes:
    return STARTS + route.encode()


def topic_key(topic: str, topic_id: bytes) -> str:
    """Return what a first start calls a topic, of which there may be others of its name later."""
    return f"{topic}/{topic_id.hex()}"


class StartPolicy:
    """Applies ``start`` to the partitions that exist when the route first starts, and never again.

    Partitions added later begin at their beginning. A recorded partition without a stored position has lost it:
    to jump, in either direction, would lose or repeat messages, so the route stops.
    """

    def __init__(
        self,
        register: Register,
        *,
        route: str,
        policy: Literal["earliest", "latest"],
        topics: Mapping[str, int],
        topic_ids: Mapping[str, bytes],
        watermarks: Callable[[LogPartition], tuple[int, int]],
        may_pass: Callable[[LogPartition, int, int], bool] | None = None,
        end_anew: Callable[[LogPartition, int], int] = lambda _place, _offset: 0,
        undecided: Callable[[LogPartition, int, int], tuple[int, int] | None] = lambda _place, first, low: (first, low),
        replaced: Callable[[Mapping[LogPartition, Anchor]], Collection[LogPartition]] = lambda _: (),
        place: str = "",
        check_new: Callable[[Collection[str]], None] = lambda _: None,
    ) -> None:
        self._register = register
        self._key = _key(route)
        self._route = route
        self._policy = policy
        self._topics = topics
        self._topic_ids = topic_ids
        self._watermarks = watermarks
        self._may_pass = may_pass
        self._end_anew = end_anew
        self._undecided = undecided
        self._replaced = replaced
        self._place = place
        self._check_new = check_new
        self._recorded: dict[str, dict[str, int]] | None = None

    def resolve(
        self,
        stored: Mapping[LogPartition, int | None],
        ran_before: Collection[LogPartition],
        anchors: Mapping[LogPartition, Anchor],
    ) -> dict[LogPartition, int]:
        """Return the offset to read each partition from. Raises Stopped with the remedy.

        ``ran_before`` are the partitions that the destination or the monitor has traces of: without a stored
        position theirs is lost, not new. ``anchors`` say which record lay below a position when it was stored; of one
        that a person has put further back than that they say nothing.
        """
        begin_at: dict[LogPartition, int] = {}
        there: dict[LogPartition, Anchor] = {}
        for place, offset in stored.items():
            if offset is None:
                begin_at[place] = self._unknown(place, place in ran_before)
                continue
            low, _ = marks = self._watermarks(place)
            begin_at[place] = self._known(place, offset, marks)
            anchor = anchors.get(place)
            # A known position lies at or below the end, perhaps one that was told later than these marks; so does its anchor.
            if anchor is not None and low <= anchor.offset < offset:
                there[place] = anchor
        self._check_same(there, begin_at)
        return begin_at

    def record(self) -> None:
        """Record the first start, unless it was recorded before; call it before the first poll.

        ``check_new`` may refuse it, as ``refuse_repeats`` does; ``place`` is recorded for it.
        """
        found = self._register.first(self._key)
        if found is None:
            starts = {}
            for topic, count in self._topics.items():
                marks = [self._watermarks(LogPartition(topic, p)) for p in range(count)]
                offsets = [low if self._policy == "earliest" else high for low, high in marks]
                starts[topic_key(topic, self._topic_ids[topic])] = {str(p): o for p, o in enumerate(offsets)}
            self._check_new(starts)
            own = orjson.dumps({"policy": self._policy, "starts": starts, "place": self._place})
            self._register.put(self._key, own, wait=True)
            crash_point("start.recorded")
            found = self._register.first(self._key)
            if found is not None and found != own:
                # Another worker was first. Of a key compaction keeps the last word, so that is made to say the same.
                self._register.put(self._key, found, wait=True)
        self._recorded = orjson.loads(found or b"{}").get("starts", {})

    def _unknown(self, partition: LogPartition, ran_before: bool) -> int:
        if self._recorded is None:
            self.record()
        assert self._recorded is not None
        low, high = self._watermarks(partition)
        key = topic_key(partition.topic, self._topic_ids[partition.topic])
        if key not in self._recorded:
            if any(other.split("/")[0] == partition.topic for other in self._recorded):
                raise Stopped(
                    f"topic {partition.topic!r} of route {self._route!r} was deleted and created again: its positions "
                    f"mean nothing now; {NAMESAKE_REMEDY}"
                )
            return low
        start = self._recorded[key].get(str(partition.partition))
        if start is None:
            return low
        if ran_before:
            raise Stopped(self._expired(partition, low))
        return self._known(partition, start, (low, high))

    def _known(self, partition: LogPartition, offset: int, marks: tuple[int, int]) -> int:
        low, high = marks
        if offset < low and self._may_pass is not None and self._may_pass(partition, offset, low):
            return low
        if offset < low:
            # Retention goes on after a person has decided: only what nobody has decided about can be decided.
            first, following = self._undecided(partition, offset, low) or (offset, low)
            name = f"lost:{self._route}/{partition.topic}/{partition.partition}/{first}-{following - 1}"
            raise Stopped(
                f"{partition.topic}[{partition.partition}] of route {self._route!r} stands at {offset}, but the log "
                f"begins at {low}: {low - offset} offsets left it unread; lengthen its retention, find the messages "
                f"elsewhere, then pass what is lost: `relay indoubt resolve CONFIG {name} --abort --reason ...`"
            )
        if offset > high and offset > (high := max(high, self._end_anew(partition, offset))):
            raise Stopped(
                f"{partition.topic}[{partition.partition}] of route {self._route!r} stands at {offset}, above the "
                f"log's end {high}: the topic was created again or lost its tail; check what was lost before you move "
                "the position, and do that before publishers write there (OPERATING.md, Kafka that goes back)"
            )
        return offset

    def _check_same(self, anchors: Mapping[LogPartition, Anchor], begin_at: Mapping[LogPartition, int]) -> None:
        for place in sorted(self._replaced(anchors)):
            at = anchors[place].offset
            raise Stopped(
                f"{place.topic}[{place.partition}] of route {self._route!r} stands at {begin_at[place]}, and what it has read at {at} "
                "is not there any more, but another record: the log lost its end and has grown again, and what was written in "
                "place of that was never read; put the position to where the log was cut, which is at or below "
                f"{at} (OPERATING.md, Kafka that goes back)"
            )

    def _expired(self, partition: LogPartition, low: int) -> str:
        return (
            f"{partition.topic}[{partition.partition}] of route {self._route!r} has no stored position although the "
            f"route has run before (offsets expired or deleted), and the log now begins at {low}; find out what was "
            "delivered last and set the group's offset to it"
        )
