"""The one place from which persons control all queues: wishes and audits go through the control topic, messages through stores.

Source: document 003, [23], [24], [27]: tracking and maintenance of every queue, whatever its medium, from a remote machine.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from relay.config.model import RelayConfig
from relay.control.queue_views import queue_row
from relay.kafka.control import ControlTopic
from relay.kafka.following import Following
from relay.message.errors import ConfigError
from relay.queue.desired import Audit, Desired, Kind, Move, Subject, Wanted, Wish
from relay.queue.port import QueueStore
from relay.run.following import DesiredFollower, control_records, control_topic, follow
from relay.run.queues import open_queue, queue_of
from relay.setup.required import require_topics
from relay.world import clock, randomness


class QueueDesk:
    """One command's work. ``who`` stands in every record that it writes.

    A name is looked up in the configuration first (ConfigError); the brokers are asked, once, before anything is done
    (Unreachable, or ConfigError if the topic is missing).
    """

    def __init__(self, config: RelayConfig, who: str) -> None:
        self.config = config
        self.who = who
        self._stack = ExitStack()
        self._follower: DesiredFollower | None = None
        self._whole: Following | None = None
        self._latest = Desired()
        self._control: ControlTopic | None = None
        self._stores: dict[str, tuple[str, QueueStore]] = {}
        """By the queue's name: where it lay when it was opened, and its store."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def desired(self) -> Desired:
        """What is wanted now, by the control topic."""
        return self.reach().now()

    def latest(self) -> Desired:
        """What is wanted by all that is written now: `desired` is behind for a moment, and in a process that stood still for longer."""
        if self._whole is None:
            self._whole = control_records(self.config, watched=False)
            self._stack.callback(self._whole.close)
        for key, value in self._whole.to_end():
            self._latest.add(key, value)
        return self._latest

    def reach(self) -> DesiredFollower:
        """Let the brokers answer; raises Unreachable, and ConfigError if the topic is missing."""
        if self._follower is None:
            require_topics(self.config, self.config.control_topic)
            self._follower = follow(self.config)
            self._stack.callback(self._follower.close)
        return self._follower

    def names(self, queue: str | None = None) -> list[str]:
        """Return the queues a command is about: the one named, or all."""
        if queue is None:
            return sorted(self.config.queues)
        return [queue_of(self.config, queue).name]

    def queue_of_subscriber(self, subscriber: str, queue: str | None) -> list[str]:
        """Return the queues that have this subscriber; ConfigError if none has."""
        found = [name for name in self.names(queue) if self.config.queues[name].settings().group_of(subscriber)]
        if not found:
            raise ConfigError(f"subscriber {subscriber!r}: no queue has it; `relay subscriber list` shows those there are")
        return found

    def check_subscriber(self, queue: str, subscriber: str | None) -> None:
        """Raise ConfigError for a name that nothing was found of and that the queue does not have: a slip of the pen."""
        asked = queue_of(self.config, queue).settings()
        if subscriber is not None and asked.group_of(subscriber) is None:
            known = ", ".join(name for group in asked.audience.groups for name in group.members)
            raise ConfigError(f"--subscriber {subscriber}: queue {queue!r} has no such subscriber; it has {known}")

    def store(self, queue: str) -> QueueStore:
        """Return a queue's store where it lies now, which a move changes under a desk that stays open; closed with the desk."""
        return self._placed(queue)[1]

    def place(self, queue: str) -> str:
        """Return where a queue lies now, as the configuration writes it; nothing is opened."""
        configured = queue_of(self.config, queue).store
        return self.desired.store_of(queue, configured)

    def row(self, queue: str) -> dict[str, Any]:
        """Return what `relay queue list` tells of a queue; opens it if need be."""
        lies, store = self._placed(queue)
        return queue_row(store, lies, self.desired)

    def _placed(self, queue: str) -> tuple[str, QueueStore]:
        """Return where a queue lies now, as the configuration writes it, and its store there."""
        lies = self.place(queue)
        if queue in self._stores and self._stores[queue][0] != lies:
            self._close(queue)
        if queue not in self._stores:
            self._stores[queue] = lies, open_queue(self.config, queue, self.desired)
            self._stack.callback(self._close, queue)
        return self._stores[queue]

    def _close(self, queue: str) -> None:
        if queue in self._stores:
            self._stores.pop(queue)[1].close()

    def wish(self, kind: Kind, queue: str, name: str, wanted: Wanted, reason: str) -> Wish:
        """Write down what is wanted; it is obeyed within a second wherever the relay runs, and after restarts."""
        wish = Wish(Subject(kind, queue_of(self.config, queue).name, name), wanted, self.who, reason, clock.wall_ms())
        self._put(*wish.encode())
        return wish

    def moved(self, move: Move) -> None:
        """Write down how far a move has come."""
        self._put(*move.encode())

    def audit(self, queue: str, action: str, changed: int, subject: str, reason: str) -> None:
        """Write down what was done to messages; never a payload."""
        identifier = randomness.uuid_bytes().hex()
        self._put(*Audit(identifier, queue, action, changed, subject, self.who, reason, clock.wall_ms()).encode())

    def _put(self, key: bytes, value: bytes) -> None:
        if self._control is None:
            self.reach()
            self._control = control_topic(self.config)
            self._stack.callback(self._control.close)
        self._control.put(key, value, wait=True)
