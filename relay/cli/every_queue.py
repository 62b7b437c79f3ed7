"""Asking every queue: one whose store is away, or cannot be opened, keeps the others from nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from relay.cli.report import print_line
from relay.control.queue_desk import QueueDesk
from relay.control.silence import Silence
from relay.message.errors import RelayError

T = TypeVar("T")


@dataclass(slots=True)
class Told(Generic[T]):
    """What queues told: an answer for each that did, a sentence for each that did not, and the command's exit code."""

    answers: list[T] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    code: int = 0

    def print_notes(self) -> None:
        """Print the sentences, for people."""
        for note in self.notes:
            print_line(f"note: {note}", style="yellow")


def ask_every(desk: QueueDesk, names: Sequence[str], ask: Callable[[str], T]) -> Told[T]:
    """Ask each of the queues. Raises Unreachable if the brokers are away: they are waited for once, not for each queue.

    So is a database with several queues.
    """
    desk.reach()
    told = Told[T]()
    silence = Silence(desk.place)
    for name in names:
        try:
            told.answers.append(silence.ask(name, ask))
        except RelayError as error:
            told.notes.append(f"queue {name}: {error}")
            told.code = max(told.code, error.exit_code)
    return told
