"""Work beside a test."""

from __future__ import annotations

import threading
from collections.abc import Callable


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run work beside the test; what it returns or raises is in the list at its end."""
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(work())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, ended
