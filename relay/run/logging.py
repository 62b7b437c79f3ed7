"""Every log line is one line, bounded and free of secrets: values are cut, escaped or hidden before they are written.

Texts of exceptions that are not the relay's own are left out, since drivers quote payloads in them.
"""

from __future__ import annotations

import re
import select
import sys
import traceback
from collections.abc import Mapping, MutableMapping
from typing import IO, Any, Final

import orjson
import structlog
from pydantic import SecretBytes, SecretStr

from relay.kafka.settings import is_secret
from relay.message.control_characters import escaped
from relay.message.errors import RelayError
from relay.world import clock, schedule

TEXT_CHARACTERS_MAX: Final = 2000
BYTES_MAX: Final = 64
ITEMS_MAX: Final = 50
FRAMES_MAX: Final = 20
DEPTH_MAX: Final = 5
UNREAD_S: Final = 1.0
"""So long a line waits for a reader who has fallen behind; what comes behind one that was dropped waits no more."""
AT_ONCE: Final = 1024
"""So many characters a pipe takes whole once it takes anything (4,096 bytes, in UTF-8 four a character)."""
HIDDEN: Final = "(hidden)"
LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_CREDENTIALS: Final = re.compile(r"(://[^\s/:@]*:)[^\s@]+@")
_BEFORE_AT: Final = re.compile(r"(?<![^\s@])[^\s@]++@")
"""What an address with a password ends with. Looked for first: from each :// of many to an @ that is not there takes the square."""
_ASSIGNED: Final = re.compile(
    r"(?i)((?:password|secret|token|passfile)['\"]?\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s,;&]+)"
)
_SECRET_NAMES: Final = ("token", "authorization", "credential", "passphrase", "nonce")


def setup(*, as_json: bool | None = None, stream: IO[str] | None = None) -> None:
    """Configure structlog for the process: JSON lines unless the stream (standard error) is a terminal."""
    out = stream if stream is not None else sys.stderr
    if as_json is None:
        as_json = not out.isatty()
    renderer: Any = structlog.processors.JSONRenderer(serializer=_serialize) if as_json else _console(out)
    lines = Lines(out)
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, _stamp, _failure, _clean, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS["info"]),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=False,
    )


def text(value: str, most: int = TEXT_CHARACTERS_MAX) -> str:
    """Return ``value`` as one line without credentials: control characters escaped, cut to ``most`` characters."""
    # Cut twice: first with room, so that the patterns never run over megabytes and still see whole secrets.
    without = _BEFORE_AT.sub(lambda found: _CREDENTIALS.sub(rf"\1{HIDDEN}@", found[0]), value[: most * 4])
    hidden = _ASSIGNED.sub(rf"\1{HIDDEN}", without)
    shown = escaped(hidden)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def key(value: bytes) -> str:
    """Return a message's key or another foreign byte string as it may be shown: escaped, at most 64 bytes of it."""
    shown = value[:BYTES_MAX].decode("ascii", "backslashreplace")
    return text(shown) + ("…" if len(value) > BYTES_MAX else "")


class Lines:
    """Writes lines. One that cannot be written is dropped: relaying goes on when the reader of the log is gone, or reads no more.

    A full pipe would else hold a supervisor for ever, deaf to signals, and with it whoever dies and is not started again.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lock = schedule.lock()
        self._file = _file_of(stream)
        self._dropped = 0
        self._is_torn = False

    def msg(self, line: str) -> None:
        """Write one line at once; where nobody reads, after a second at most, none."""
        if self._dropped and self._takes(0.0):
            dropped, self._dropped = self._dropped, 0
            structlog.get_logger("relay.log").warning("lines dropped: nobody read them", lines=dropped)
        if not self._lock.acquire(timeout=UNREAD_S):  # whoever has it waits for the reader, or was left behind by a fork
            self._dropped += 1
            return
        try:
            self._write(f"{line}\n")
        except (OSError, ValueError):
            # Neither retry nor stop: no promise of the relay depends on its log.
            return
        finally:
            self._lock.release()

    def _write(self, text: str) -> None:
        text = "\n" + text if self._is_torn else text
        for at in range(0, len(text), AT_ONCE):
            if not self._takes(0.0 if self._dropped else UNREAD_S):
                self._dropped += 1
                self._is_torn = self._is_torn or at > 0
                return
            self._stream.write(text[at : at + AT_ONCE])
            self._stream.flush()
        self._is_torn = False

    def _takes(self, patience_s: float) -> bool:
        if self._file is None:
            return True
        # One for each question: two threads that ask at once, or a signal's handler in between, get a RuntimeError from a shared one.
        place = select.poll()
        place.register(self._file, select.POLLOUT)
        return bool(place.poll(patience_s * 1000))

    log = debug = info = warning = warn = error = critical = fatal = exception = msg


def _file_of(stream: IO[str]) -> int | None:
    """Return the number of a stream's file, which can be asked whether it takes anything; None for one that is no file."""
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _console(out: IO[str]) -> structlog.dev.ConsoleRenderer:
    # Its first argument, the width of events, has had two names.
    return structlog.dev.ConsoleRenderer(0, colors=out.isatty(), sort_keys=False)


def _serialize(event: Mapping[str, Any], **_: Any) -> str:
    return orjson.dumps(event).decode()


def _stamp(_logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    # A line that a supervisor passes on keeps the time and level of its origin.
    stamp, level = event.pop("timestamp", None), event.pop("level", None)
    return {"timestamp": stamp or clock.wall_iso(), "level": level or method, **event}


def _failure(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace ``exc_info`` by where and what it was."""
    given = event.pop("exc_info", None)
    error = given if isinstance(given, BaseException) else None
    if error is None and given:
        error = given[1] if isinstance(given, tuple) else sys.exc_info()[1]
    if error is not None:
        event["failure"] = failure(error)
        frames = traceback.extract_tb(error.__traceback__)[-FRAMES_MAX:]
        event["where"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return event


def failure(error: BaseException) -> str:
    """Return an exception as it may be shown: the relay's own sentences, of others the type and code only."""
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(parts) < DEPTH_MAX:
        name = type(seen).__qualname__
        code = getattr(seen, "sqlstate", None)
        if isinstance(seen, RelayError):
            parts.append(f"{name}: {seen}")
        else:
            parts.append(f"{name} ({code})" if code else name)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return text(" from ".join(parts))


def _clean(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {text(str(name), 100): _value(name, value, 0) for name, value in event.items()}


def _value(name: object, value: Any, depth: int) -> Any:
    if isinstance(value, SecretStr | SecretBytes) or _is_secret_name(name):
        return HIDDEN
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _items(value, depth + 1) if depth < DEPTH_MAX else "…"
    return _single(value)


def _items(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping):
        pairs = list(value.items())[:ITEMS_MAX]
        return {text(str(inner), 100): _value(inner, item, depth) for inner, item in pairs}
    return [_value("", item, depth) for item in list(value)[:ITEMS_MAX]]


def _single(value: Any) -> Any:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        # JSON readers keep 53 bits, orjson writes 64: a larger number is a text.
        return value if abs(value) < 1 << 53 else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return key(bytes(value))
    return failure(value) if isinstance(value, BaseException) else text(str(value))


def _is_secret_name(name: object) -> bool:
    lowered = str(name).lower()
    return is_secret(lowered) or any(part in lowered for part in _SECRET_NAMES)
