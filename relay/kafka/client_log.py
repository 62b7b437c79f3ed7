"""What librdkafka has to say inside an application: through ``logging``, and the same sentence once a minute.

By itself it writes to standard error in a form of its own, up to twenty times a second for as long as the brokers are away.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from relay.run import clock

AGAIN_S: Final = 60.0
_KINDS_MAX: Final = 100
_log: Final = logging.getLogger("relay.kafka")


class ClientLog:
    """The ``logger`` of one client. It never raises: a client gives up what it was doing if its logger does."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def log(self, level: int, text: str, *args: Any) -> None:
        """Hand a sentence on, unless it was told a moment ago; sentences that differ in numbers only are one."""
        try:
            sentence = text % args if args else text
            kind = re.sub(r"\d+", "", sentence)
            now = clock.monotonic()
            if now - self._told.get(kind, now - AGAIN_S) < AGAIN_S:
                return
            if len(self._told) >= _KINDS_MAX:
                self._told.clear()
            self._told[kind] = now
            _log.log(level, "%s", sentence)
        except Exception:  # noqa: BLE001
            return  # Not a failure of ours: an application's own handler has raised, and the next sentence may reach it
