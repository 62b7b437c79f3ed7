"""Monitor entries of a table route, and the dead letters beside them: they follow what the database has committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from relay.delivery.deadletter import DeadRecord
from relay.message.envelope import Headers
from relay.message.record import LogMessage, LogPartition
from relay.monitor.entries import Page, Proof, encode, pages
from relay.world import randomness

FLUSH_TIMEOUT_S: Final = 30.0


class Appends(Protocol):
    """Appends records outside a transaction and knows what is acknowledged."""

    def bundle(self, token: object) -> Any:
        """Open a bundle of records that count as acknowledged together."""

    def append(
        self, bundle: Any, partition: LogPartition, key: bytes, value: bytes | None, headers: Headers | None = None
    ) -> None:
        """Append one record as part of a bundle."""

    def close(self, bundle: Any) -> None:
        """Nothing more joins this bundle."""

    def acknowledged(self) -> list[object]:
        """Return the tokens of the bundles that are wholly acknowledged, in order."""

    def flush(self, timeout_s: float) -> None:
        """Wait for every acknowledgement."""


@dataclass(slots=True, eq=False)
class Entered:
    """What a bundle of entries stands for: their pages, which count once it is acknowledged, the digests in them, and
    the positions below which the monitor has everything then."""

    positions: dict[LogPartition, int]
    pages: list[Page] = field(default_factory=list)
    digests: set[bytes] = field(default_factory=set)
    is_redriven: bool = False


class Bundle(NamedTuple):
    """A bundle that is written to: what it stands for, and what the appends know it by.

    They keep the former, which must not lead back to the latter: nobody would collect such a circle.
    """

    entered: Entered
    opened: Any


class Entering:
    """Writes the entries of one worker and keeps what is on its way to the monitor, until it is acknowledged."""

    def __init__(self, appends: Callable[[], Appends], worker_id: str, monitor_topic: str) -> None:
        self._open_appends = appends
        self._appends = appends()
        self._worker = worker_id
        self._monitor = monitor_topic
        self._under_way: deque[Entered] = deque()
        self._instance = randomness.uuid_bytes()
        self._n = 0

    def start(self) -> None:
        """Begin anew, with nothing on its way: what others could not append is not asked for any more."""
        self._appends = self._open_appends()
        self._instance, self._n = randomness.uuid_bytes(), 0

    def open(self, positions: Mapping[LogPartition, int], *, is_redriven: bool = False) -> Bundle:
        """Open a bundle behind which the monitor has everything below these positions."""
        entered = Entered(dict(positions), is_redriven=is_redriven)
        self._under_way.append(entered)
        return Bundle(entered, self._appends.bundle(entered))

    def enter(
        self,
        bundle: Bundle,
        messages: list[LogMessage],
        outcomes: bytes,
        applied: Sequence[int],
        replays: bytes,
        recovery: str | None = None,
    ) -> None:
        """Append entries proven by the inbox's transaction; instance and n only make their keys unique."""
        if not messages:
            return
        self._n += 1
        made = pages(
            messages,
            worker=self._worker,
            instance=self._instance,
            n=self._n,
            proof=Proof.PROVEN,
            recovery=recovery,
            outcomes=outcomes,
            replays=replays if any(replays) else b"",
            destinations=applied,
        )
        for number, page in enumerate(made):
            key, value = encode(page, number)
            self._appends.append(bundle.opened, LogPartition(self._monitor, page.partition), key, value)
            bundle.entered.pages.append(page)

    def letter(self, bundle: Bundle, letter: DeadRecord) -> None:
        """Append a dead letter, or what takes one back."""
        self._appends.append(bundle.opened, letter.partition, letter.key, letter.value, letter.headers)

    def close(self, bundle: Bundle) -> None:
        """Nothing more joins this bundle."""
        self._appends.close(bundle.opened)

    def acknowledged(self) -> list[Entered]:
        """Return what has arrived since the last call, in order."""
        found = []
        for entered in self._appends.acknowledged():
            assert isinstance(entered, Entered)
            self._under_way.remove(entered)
            found.append(entered)
        return found

    def flush(self) -> None:
        """Wait until all of it has arrived."""
        self._appends.flush(FLUSH_TIMEOUT_S)

    def clear(self) -> None:
        """Forget what is on its way."""
        self._under_way.clear()

    def digests(self) -> set[bytes]:
        """Return the digests of messages whose rows are committed, and whose entries are still on their way."""
        return set[bytes]().union(*(entered.digests for entered in self._under_way))

    @property
    def is_idle(self) -> bool:
        """Is nothing on its way?"""
        return not self._under_way

    @property
    def has_redriven(self) -> bool:
        """Is an entry of a redriven message on its way?"""
        return any(entered.is_redriven for entered in self._under_way)
