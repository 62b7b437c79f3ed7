"""Errors sorted by what the caller must do: mend the input, retry, stop, or find out.

Every message is a sentence that names the key, the value and the remedy, and none carries a secret.
"""

from __future__ import annotations

from traceback import format_tb
from typing import Final

UNKNOWN_SCHEMA: Final = "unknown_schema"
"""The rejection's code where a registry itself says that it does not know the schema of a value."""
NAMESAKE_REMEDY: Final = (
    "check what was lost, then give the route a new name, which delivers all that is there now, also what was copied from "
    "another cluster; its other topics, if it has any, leave to a route of the former "
    "name, or all that is in them is delivered once more"
)
"""What to do about a log topic that was deleted and created again: whatever a route of a new name reads, it begins anew."""


LOCKED_OUT_S: Final = 20.0
"""A new password that is refused for less than this may just not have reached the server yet."""


class RelayError(Exception):
    """Base of every error that the relay raises on purpose; ``exit_code`` is what a command returns."""

    exit_code = 1


class ConfigError(RelayError):
    """The configuration or a command's words are wrong; nothing was started."""

    exit_code = 2


class CheckFailed(RelayError):
    """A check ran and its answer is no (verify, check, a refused precondition)."""

    exit_code = 1


class Unreachable(RelayError):
    """A broker or a database does not answer; trying again later may help."""

    exit_code = 3


class LockedOut(RelayError):
    """This process's password is refused for good; the next process reads its secrets again, and may be let in."""

    exit_code = 3


class Retriable(RelayError):
    """The operation had no effect and may be repeated as it is."""


class InDoubt(RelayError):
    """The operation was attempted and its outcome is unknown: find out by evidence, never assume."""


class Stuck(InDoubt):
    """Nothing can be found out for now, and the partitions wait, visibly.

    ``numbers`` are the log partitions' numbers (empty: all that the worker has). ``by_person`` is True if no evidence
    will ever decide: only a person can.
    """

    def __init__(self, sentence: str, numbers: frozenset[int] = frozenset(), *, by_person: bool = False) -> None:
        super().__init__(sentence)
        self.numbers = numbers
        self.by_person = by_person


class Fenced(RelayError):
    """A newer owner has taken over; whatever this one still holds must be thrown away."""


class TwinDetected(RelayError):
    """A second process runs under the same instance name: the older one stops."""

    exit_code = 1


class Moved(RelayError):
    """The queue of a route goes on in another store: the worker's next process opens it there."""


class RecordRefused(RelayError):
    """The broker refuses a record of a transaction for what it is; nothing of that transaction holds."""


class Stopped(RelayError):
    """The route must not go on without a person: the sentence says what to do."""


class MessageRejected(RelayError):
    """One message cannot be decoded, mapped or applied; it becomes a dead letter.

    ``stage`` is one of ``decode``, ``map``, ``apply``; ``code`` is a short, stable word for statistics; ``constraint``
    names what a table refuses it for, where the database says so.
    """

    def __init__(self, stage: str, code: str, sentence: str, constraint: str | None = None) -> None:
        super().__init__(sentence)
        self.stage = stage
        self.code = code
        self.constraint = constraint


class HeaderUnreadable(RelayError):
    """A header that queues go by says nothing that a queue can read: ``name`` followed by ``why`` is a sentence.

    ``code`` is that of the dead letter which the message would become.
    """

    def __init__(self, name: str, code: str, why: str) -> None:
        super().__init__(f"{name} {why}")
        self.code = code
        self.why = why


class HeadersRefused(RelayError):
    """What an application gave as headers, or as subject, cannot be a message's."""


class CaptureError(RelayError):
    """A capture block failed and was rolled back; none of its messages will ever show."""


class CaptureFenced(CaptureError):
    """A resolver decided that this capture is aborted before its commit arrived."""


class CaptureInDoubt(InDoubt):
    """Nobody could tell yet whether COMMIT took effect, or the block's own statements ended its transaction.

    The resource's decision row tells later, and what was published follows it. This is no ``CaptureError``: a block that
    may be run again after that one must not be run again after this.
    """


def words_of(error: BaseException) -> str:
    """Return an error's text, or its type where an application's own fails to say it: whoever looks at it must go on."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever a stranger's text raises
        return type(error).__name__


def whence(error: BaseException) -> str:
    """Return an unforeseen error's type and where it arose, without its words: they may quote a password."""
    return f"{type(error).__name__}\n{''.join(format_tb(error.__traceback__))}"
