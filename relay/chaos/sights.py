"""A look at every route each second, by what `relay status` reads; what cannot be read now is simply not written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import psycopg

from relay.chaos.history import History
from relay.config.model import RelayConfig
from relay.control.status import RouteView
from relay.control.status_reading import StatusReader
from relay.message.errors import RelayError
from relay.world import clock, schedule

PERIOD_S: Final = 1.0
TIMEOUT_S: Final = 3.0
TEXT_MAX: Final = 300


class Sights:
    """A thread that writes sights into the history until it is ended; ``complain`` is told what must not happen."""

    def __init__(self, config: RelayConfig, history: History, complain: Callable[[str], None]) -> None:
        self._config = config
        self._history = history
        self._complain = complain
        self._complained: set[type[Exception]] = set()
        self._stopping = schedule.event()
        self._thread = schedule.start_thread("chaos-sights", self._run)

    def end(self) -> None:
        """Stop looking."""
        self._stopping.set()
        self._thread.join(20)

    def _run(self) -> None:
        with StatusReader(self._config, TIMEOUT_S) as reader:
            while not self._stopping.is_set():
                began = clock.monotonic()
                try:
                    self._write(reader.read())
                except (RelayError, psycopg.Error) as error:
                    # Go on: brokers and database are meant to be away now and then.
                    self._history.tell("note", text=f"no sight: {type(error).__name__}: {error}"[:TEXT_MAX])
                except Exception as error:  # noqa: BLE001 - told; a run whose status cannot be read is not clean
                    self._history.tell("note", text=f"no sight: {error!r}"[:TEXT_MAX])
                    if type(error) not in self._complained:
                        self._complain(f"relay status would have failed without a sentence: {error!r}")
                    self._complained.add(type(error))
                self._stopping.wait(max(0.1, PERIOD_S - (clock.monotonic() - began)))

    def _write(self, views: list[RouteView]) -> None:
        passed, lag = {}, {}
        for view in views:
            known = [partition for partition in view.partitions if partition.lag is not None]
            if len(known) == len(view.partitions):
                lag[view.name] = sum(partition.lag or 0 for partition in known)
                passed[view.name] = sum(partition.end - (partition.lag or 0) for partition in known)
        partitions = [partition for view in views for partition in view.partitions]
        self._history.tell(
            "sight",
            log={view.name: sum(partition.end for partition in view.partitions) for view in views},
            passed=passed,
            lag=lag,
            in_doubt=sum(partition.in_doubt for partition in partitions),
            held=sum(partition.held for partition in partitions),
        )
