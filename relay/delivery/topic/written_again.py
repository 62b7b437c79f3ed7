"""What a claim writes again: outputs and dead letters that a committed transaction had, and that do not show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from relay.delivery.deadletter import LETTER_LOST, OUTPUT_LOST, Letters
from relay.delivery.inbox_messages import as_message
from relay.delivery.lane_outputs import LaneOutputs
from relay.delivery.topic.unshown import Again, Missing
from relay.message.errors import MessageRejected
from relay.message.record import LogMessage, LogPartition
from relay.monitor.entries import DEAD, DELIVERED, Page, pages
from relay.transfer.cursor import InboxRow

log = structlog.get_logger("relay.topic")


class WrittenAgain:
    """Makes what a worker's claims write again. ``keeps_all`` is False where older outputs of a key do not stay."""

    def __init__(self, worker: str, outputs: LaneOutputs, letters: Letters, *, keeps_all: bool) -> None:
        self._worker = worker
        self._outputs = outputs
        self._letters = letters
        self._keeps_all = keeps_all

    def __call__(self, missing: Sequence[Missing], gone: set[LogPartition], instance: bytes) -> Again:
        """Return outputs and dead letters as they were; a letter for what the log has no more.

        Where an output may have left its topic (``gone``), as it may at any time where older ones of a key do not stay, the
        seal's word is all there is: an older value behind a newer one would be worse than none. In which partition it lay
        its lane does not tell: partitions may have been added since, or the route have another order.
        """
        gone = gone if self._keeps_all else {*gone, *self._outputs.places}
        good: list[LogMessage] = []
        replays: dict[bytes, int] = {}
        letters: list[tuple[LogMessage, MessageRejected]] = []
        untold = 0
        for row, message in missing:
            if any((place in self._letters.places) is row.is_dead for place in gone):
                untold += 1
                continue
            replays[row.digest] = row.replay
            if message is None:
                known = InboxRow(row.digest, row.content, row.place, row.offset, DEAD, -1)
                letters.append((as_message(known), LETTER_LOST if row.is_dead else OUTPUT_LOST))
            elif row.is_dead:
                letters.append((message, message.fault or LETTER_LOST))
            else:
                good.append(message)
        if untold:
            log.warning("outputs do not show and may have left their topics by now; they are taken for shown", messages=untold)
        lost = [message for message, _ in letters]
        return Again(
            outputs=self._outputs.sort(good),
            pages=self._pages(good, replays, instance, DELIVERED),
            dead=[self._letters.of(m, cause, replays[m.digest]) for m, cause in letters],
            dead_pages=self._pages(lost, replays, instance, DEAD),
            taken_back=[self._letters.taking_back(m, replays[m.digest]) for m in good if replays[m.digest]],
        )

    def _pages(
        self, messages: Sequence[LogMessage], replays: Mapping[bytes, int], instance: bytes, outcome: int
    ) -> list[tuple[int, Page]]:
        """Entries of what is written again; redrives have pages of their own, as they fall back to a death where they are taken back."""
        made: list[Page] = []
        for is_redriven in (False, True):
            some = [message for message in messages if bool(replays[message.digest]) is is_redriven]
            numbers = bytes(replays[message.digest] for message in some) if is_redriven else b""
            made += pages(
                some, worker=self._worker, instance=instance, n=1, recovery=self._worker,
                outcomes=bytes([outcome]) * len(some), replays=numbers,
            )  # fmt: skip
        return [(page.partition, page) for page in made]
