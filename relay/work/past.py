"""A process of handlers that follows one that failed says so in the control topic, once: nothing else of that is seen from elsewhere."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict
from typing import Final

import structlog

from relay.config.model import RelayConfig
from relay.message.errors import RelayError
from relay.run import status_record
from relay.run.following import control_topic
from relay.run.restarts import Past
from relay.run.status_record import StatusRecord
from relay.world import clock, schedule

log: Final = structlog.get_logger("relay.work")


def tell(config: RelayConfig, queue: str, subscriber: str, number: int, past: Past) -> None:
    """Say it in the background, and nothing where nothing has failed."""
    if past.restarts:
        now, route = clock.wall_ms(), status_record.handlers_of(queue, subscriber)
        record = StatusRecord(
            relay=config.relay.name, route=route, worker=config.transactional_id(route, number), pid=os.getpid(),
            host=socket.gethostname(), started_at=now, at=now, state="stopped", **asdict(past),
        )  # fmt: skip
        schedule.start_thread("relay-past", lambda: _write(config, record))


def _write(config: RelayConfig, record: StatusRecord) -> None:
    topic = control_topic(config)
    try:
        topic.put(status_record.key(record.route, record.worker), status_record.encode(record), wait=True)
    except RelayError as away:
        # Go on: the supervisor has said it in its log.
        log.warning("not told that earlier processes failed", restarts=record.restarts, reason=str(away))
    finally:
        topic.close()
