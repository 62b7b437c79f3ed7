"""What leaves a queue is on disk before it is trimmed: archived in periods, in small steps between which the queue goes on.

Source: document 003, [25], [31], [45], [52] and [54].
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import fastavro

from relay.message.errors import CheckFailed
from relay.message.limits import raise_limit
from relay.message.schemas import parsed
from relay.queue.message import MessageView, SubscriberView
from relay.queue.port import Filter, QueueStore
from relay.world.crash import crash_point

Period = Literal["hour", "day", "week", "biweek"]
MESSAGES_AT_ONCE: Final = 500
_LONGEST_YEAR: Final = 53
"""Weeks."""
_TIMES: Final = ("put_at", "revealed_at", "unavailable_at", "journalled_at", "deleted_at", "reveal_at", "expires_at")


@dataclass(slots=True)
class Archived:
    """What one run has let go of; ``files`` are new or written anew."""

    messages: int = 0
    files: list[Path] = field(default_factory=list)


def period_of(view: MessageView, period: Period) -> str:
    """Return the name of the period (UTC) in which a message's last state was entered, such as 2026-W47."""
    at = view.journalled_at or view.unavailable_at or view.deleted_at or view.put_at
    moment = datetime.fromtimestamp(at / 1000, UTC)
    if period == "hour":
        return moment.strftime("%Y-%m-%dT%H")
    if period == "day":
        return moment.strftime("%Y-%m-%d")
    year, week, _ = moment.isocalendar()
    if period == "week":
        return f"{year}-W{week:02}"
    first = week - (week - 1) % 2
    if first == _LONGEST_YEAR:
        return f"{year}-W{first}"  # the week behind it is the first one of the next pair
    return f"{year}-W{first:02}-W{first + 1:02}"


def let_go(store: QueueStore, folder: Path | None, period: Period, now: int, *, most: int) -> Archived:
    """Let up to ``most`` messages go that are past the retention; with a ``folder`` they are written there first.

    Safe to end anywhere: a file is written whole or not at all, before its messages are trimmed, and written anew, with
    the same name, if the process died between the two. The newest message of a queue stays, whatever the retention: its
    handle is the one that a moved queue goes on from.
    """
    if folder is None:
        return _let_go(store, None, period, now, most)
    with _alone(folder):
        return _let_go(store, folder, period, now, most)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other keepers of this folder out, of whatever process, until the block ends.

    Files are named by their first message: whoever read fewer messages than another has trimmed since would write over
    that one's file. The kernel lets the lock go with the process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _let_go(store: QueueStore, folder: Path | None, period: Period, now: int, most: int) -> Archived:
    done = Archived()
    while done.messages < most:
        views = store.journalled(now, min(MESSAGES_AT_ONCE, most - done.messages))
        newest = _newest(store, views)
        views = [view for view in views if view.handle != newest]
        if not views:
            break
        if folder is not None:
            done.files += _write(folder, store.settings.name, period, views)
            crash_point("journal.written")
        trimmed = store.trim([view.handle for view in views])
        crash_point("journal.trimmed")
        done.messages += trimmed
        if not trimmed:
            break
    return done


def page(folder: Path, queue: str, shown: Callable[[dict[str, Any]], dict[str, Any]], *, after: int, limit: int) -> list[dict[str, Any]]:
    """Return the archived messages with the lowest handles above ``after``, each as it ended last and as ``shown`` has it.

    By handle and not by period, so that who asks on from the last one misses none; an archive does not fit into memory.
    """
    kept: dict[int, tuple[int, dict[str, Any]]] = {}
    most: float = float("inf")
    for path in sorted(folder.glob(f"{queue}.*.avro")):
        for record in _records(path):
            handle, ended_at = record["handle"], _ended_at(record)
            if not after < handle <= most or (handle in kept and kept[handle][0] > ended_at):
                continue
            kept[handle] = (ended_at, shown(record))
            if len(kept) >= 2 * limit:
                kept = {one: kept[one] for one in sorted(kept)[:limit]}
                most = max(kept)
    return [kept[handle][1] for handle in sorted(kept)[:limit]]


def _ended_at(record: dict[str, Any]) -> int:
    return int(record["journalled_at"] or record["unavailable_at"] or record["deleted_at"] or record["put_at"])


def document(queue: str, view: MessageView) -> dict[str, Any]:
    """Return a message as `schemas/journal.avsc` has it."""
    return {
        "queue": queue,
        "handle": view.handle,
        "publisher": view.publisher,
        "id": view.id,
        "state": view.state.name,
        **{name: getattr(view, name) for name in _TIMES},
        "priority": view.priority,
        "key": view.key,
        "value": view.value,
        "headers": [{"name": name, "value": value} for name, value in view.headers],
        "subject": view.subject,
        "lane": view.lane,
        "parents": [parent._asdict() for parent in view.parents],
        "attempt": view.attempt,
        "subscribers": [_subscriber(one) for one in view.subscribers],
    }


def _subscriber(one: SubscriberView) -> dict[str, Any]:
    return {
        "subscriber": one.subscriber,
        "group": one.group,
        "state": one.state.name,
        **one.times._asdict(),
        "attempt": one.attempt,
        "failures": one.failures,
        "cause": one.cause,
    }


def _newest(store: QueueStore, views: Iterable[MessageView]) -> int | None:
    """Return the handle of the queue's newest message if it is among these; asked once, since only the last can be it."""
    last = max((view.handle for view in views), default=None)
    return None if last is None or store.find(Filter(), after=last, limit=1) else last


def _write(folder: Path, queue: str, period: Period, views: Iterable[MessageView]) -> list[Path]:
    """Write one file for each period, named by the period and its first handle."""
    by_period: dict[str, list[MessageView]] = {}
    for view in views:
        by_period.setdefault(period_of(view, period), []).append(view)
    files = []
    for name, found in by_period.items():
        path = folder / f"{queue}.{name}.{min(view.handle for view in found):020}.avro"
        records = [document(queue, view) for view in found]
        if path.exists():
            # A message that was given again before it was trimmed may name a second file like its first, which has others too.
            new = {view.handle for view in found}
            records = [record for record in _records(path) if record["handle"] not in new] + records
        made = path.with_suffix(".tmp")
        with made.open("wb") as file:
            fastavro.writer(file, parsed("journal"), records, codec="deflate")
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
        files.append(path)
    _sync(folder)
    return files


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what a file of the archive has; raises CheckFailed where it cannot be read, or is damaged."""
    try:
        with path.open("rb") as file:
            for record in fastavro.reader(file):
                assert isinstance(record, dict)
                yield record
    except OSError as error:
        raise_limit(error)
        raise CheckFailed(f"{path} cannot be read ({error.strerror}): let the relay read it") from error
    except Exception as error:
        # Whatever the reader meets in bytes that are no archive's: it has a dozen kinds of errors for it.
        raise_limit(error)
        raise CheckFailed(f"{path} is damaged: restore it from a copy, or put it elsewhere") from error


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
