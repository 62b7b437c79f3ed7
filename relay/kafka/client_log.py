"""What librdkafka has to say: inside an application through ``logging``, of a worker as its events; the same once a minute.

By itself it writes to standard error in a form of its own, up to twenty times a second for as long as the brokers are away.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final, NamedTuple

from relay.world import clock
from relay.world.seldom import Repeats

_WARNING: Final = 4
"""syslog's number, as librdkafka's are."""
_LINE: Final = re.compile(r"%([0-7])\|[0-9.]+\|([A-Z0-9_]+)\|[^|]*\| (?:\[thrd:[^\]]*\]: )?(.*)")
_FENCED: Final = re.compile(r"fenced by a newer instance|with an old epoch")
"""Another worker has taken over, as it is to when workers come or go; librdkafka calls that fatal."""
_log: Final = logging.getLogger("relay.kafka")


class ClientLine(NamedTuple):
    """A line of librdkafka's on standard error; its own error is a warning: clients go on by themselves."""

    level: str
    sentence: str


def client_line(line: str) -> ClientLine | None:
    """Return what a line of a worker says if one of its Kafka clients has written it."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    is_warning = int(found[1]) <= _WARNING and not _FENCED.search(found[3])
    return ClientLine("warning" if is_warning else "info", f"{found[2]}: {found[3]}")


class ClientLog:
    """The ``logger`` of one client. It never raises: a client gives up what it was doing if its logger does."""

    def __init__(self) -> None:
        self._repeats = Repeats()

    def log(self, level: int, text: str, *args: Any) -> None:
        """Hand a sentence on, unless it was told a moment ago."""
        try:
            sentence = text % args if args else text
            if not self._repeats.is_one(sentence, clock.monotonic()):
                _log.log(level, "%s", sentence)
        except Exception:  # noqa: BLE001
            return  # Not a failure of ours: an application's own handler has raised, and the next sentence may reach it
