"""A handler that calls a receiver over HTTP for each message, under a key that is the same in every try: once where the receiver
knows it again, at least once where it does not.

The queue's states are intent and evidence. 1. The message is taken, and its attempt is in the queue before anything is sent. 2. Its
value is sent, as a CloudEvent. 3. The answer decides. 4. DONE is written. Whatever dies between 2 and 4 leaves the message
to the next try, which has the key of the one before.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal, get_args
from urllib.parse import urlsplit

from relay import __version__
from relay.kafka.settings import is_loopback
from relay.message.envelope import CONTENT_TYPE, is_utf8
from relay.message.errors import ConfigError, RelayError
from relay.work.message import Message
from relay.work.subscriber import Handler, Later, Unusable, subscriber
from relay.world import clock

if TYPE_CHECKING:
    import httpx2

Answer = Literal["done", "wait", "again", "unusable"]
"""What an answer makes of its message: DONE; tried again without using up a try, or using one up; UNUSABLE."""
Given = Mapping[str, str]
Headers = Given | Callable[[Message], Given | Awaitable[Given]]

ANSWERS: Final[Mapping[int, Answer]] = {401: "wait", 408: "again", 409: "again", 425: "again", 429: "wait", 503: "wait"}
"""By status. Of others 2xx is done, 5xx again, and the rest unusable, redirects among them."""
WAIT_S: Final = 5.0
"""A receiver that says it is busy, and not for how long, is asked again after this."""
ANSWER_BYTES_MAX: Final = 64 * 1024
"""So much of an answer's body is read, and thrown away, for the connection's sake; a longer one costs the connection."""
ANSWER_S: Final = 1.0
IDLE_S: Final = 4.0
"""An idle connection is closed after this, before most servers do: what is sent into one that just closes is in doubt."""
TIMEOUT_S_MAX: Final = 3600.0
KEY_HEADER: Final = "Idempotency-Key"
KEY_CHARACTERS_MAX: Final = 255
_PASSED: Final = frozenset({"traceparent", "tracestate"})
_ATTRIBUTE: Final = re.compile(r"ce_(?!relay)([a-z0-9]+)")
"""The relay's own attributes stay in the relay."""
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?|")
_RESERVED: Final = frozenset({"content-length", "transfer-encoding", "connection", "host"})
_SENDING: Final = ".send_request_headers.started"


def webhook(
    queue: str,
    url: str,
    *,
    headers: Headers | None = None,
    timeout_s: float = 10.0,
    connect_timeout_s: float = 5.0,
    key_header: str = KEY_HEADER,
    key: Callable[[Message], str] | None = None,
    answers: Mapping[int, Answer] | None = None,
    content_type: str = "application/json",
    tls: ssl.SSLContext | None = None,
    allow_plaintext: bool = False,
    order: Literal["queue", "none"] = "queue",
) -> Handler:
    """Return a handler that posts each message of ``queue`` to ``url``: its value, with its CloudEvents attributes as headers.

    ``key_header`` carries `Message.idempotency_key`, or what ``key`` returns: the same in every try, or the effect comes twice.
    ``headers`` are sent as well. A function is called before each try, with the message, and may be async: it reads a secret
    anew, or signs. What it raises as OSError, or has not made within ``timeout_s``, makes the message wait, and uses up no try;
    what else it raises uses one up. ``content_type`` is that of messages that name none.

    What becomes of a message, by the answer's status (``answers`` says otherwise for some):

    - 2xx: done.
    - 401, 429, 503, or no connection to the receiver, so that nothing was sent: it waits, and uses up no try.
    - 408, 409, 425, other 5xx: tried again with backoff, up to the queue's ``tries``. So it is where no answer came within
      ``timeout_s`` (all of a try, ``connect_timeout_s`` of it for the connection), or the connection broke: it is in doubt then
      whether the call took effect, and the cause says so.
    - all others, redirects too, which are never followed: UNUSABLE, with the status.

    ``Retry-After`` is obeyed up to the queue's ``retry_max``. Nothing of an answer's body is kept. TLS is verified by the
    system's authorities or by ``tls``; http:// goes to this machine alone, unless ``allow_plaintext``. Neither proxies nor
    ~/.netrc are looked for. Raises ConfigError.
    """
    library = _library()
    target = _Target.of(url, allow_plaintext=allow_plaintext)
    try:
        library.URL(target.url)
    except library.InvalidURL:
        raise ConfigError(f"webhook({target.shown}): that is no address; write https://HOST/PATH, percent-encoded") from None
    _check(queue, timeout_s, connect_timeout_s, key_header, answers or {}, content_type, tls)
    given = headers if headers is None or callable(headers) else _checked(headers)
    sending = Webhook(
        target, library, given, timeout_s, connect_timeout_s, key_header, key, {**ANSWERS, **(answers or {})}, content_type, tls
    )
    return replace(subscriber(queue, order=order)(sending), close=sending.close)


@dataclass(frozen=True, slots=True)
class _Target:
    """An address. ``shown`` is all of it that is ever said: a path or a query may be the receiver's secret."""

    url: str = field(repr=False)
    shown: str

    @classmethod
    def of(cls, url: str, *, allow_plaintext: bool) -> _Target:
        """Check an address; raises ConfigError."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ConfigError("webhook(url=...): that is no address; write https://HOST/PATH") from None
        host = parts.hostname or ""
        if parts.scheme not in ("http", "https") or not host or not re.fullmatch(r"[\x21-\x7e]+", url):
            raise ConfigError("webhook(url=...): that is no address of HTTP in ASCII; write https://HOST/PATH, percent-encoded")
        shown = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}" + (f":{port}" if port else "")
        if "@" in parts.netloc:
            raise ConfigError(f"webhook({shown}): user and password stand in the address; give them as headers: Authorization")
        if parts.scheme == "http" and not allow_plaintext and not is_loopback(host):
            raise ConfigError(
                f"webhook({shown}): another machine is called without encryption; write https://, or allow_plaintext=True where "
                "something else encrypts"
            )
        return cls(url.partition("#")[0], shown)


@dataclass(slots=True)
class _Try:
    """How far a request has come: once any of it is on its way, only an answer tells whether it took effect."""

    is_sent: bool = False

    async def note(self, event: str, _: Mapping[str, Any]) -> None:
        """Hear of a step of the client."""
        self.is_sent = self.is_sent or event.endswith(_SENDING)


class Webhook:
    """What `webhook` declares: one set of connections for each process and event loop, as many as handlers run at once."""

    def __init__(
        self,
        target: _Target,
        library: Any,
        headers: Headers | None,
        timeout_s: float,
        connect_timeout_s: float,
        key_header: str,
        key: Callable[[Message], str] | None,
        answers: Mapping[int, Answer],
        content_type: str,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._target = target
        self._library = library
        self._headers = headers
        self._timeout_s = timeout_s
        self._connect_timeout_s = min(connect_timeout_s, timeout_s)
        self._key_header = key_header
        self._key = key
        self._answers = answers
        self._content_type = content_type
        self._tls = tls
        self._open: tuple[tuple[int, asyncio.AbstractEventLoop], httpx2.AsyncHTTPTransport] | None = None

    def __repr__(self) -> str:
        return f"<webhook to {self._target.shown}>"

    async def __call__(self, message: Message) -> None:
        """Call the receiver; returns once it has answered that it is done, and raises Unusable or Later else."""
        attempt = _Try()
        # Apart from the sending: a function of the application's that hangs says nothing of the receiver.
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                request = await self._request(message, attempt)
        except TimeoutError:
            if not limit.expired():
                raise
            raise Later(f"its headers were not made within {self._timeout_s:g} s; it waits", counted=False) from None
        try:
            async with asyncio.timeout_at(limit.when()):
                response = await self._transport().handle_async_request(request)
        except (self._library.TransportError, TimeoutError) as error:
            raise self._unanswered(error, attempt) from None
        await _read_away(response)
        self._decide(message, response.status_code, response.headers.get("retry-after"))

    async def close(self) -> None:
        """Close the connections of this event loop."""
        if self._open is not None and self._open[0] == _here():
            _, transport = self._open
            self._open = None
            await transport.aclose()

    def _transport(self) -> httpx2.AsyncHTTPTransport:
        """Return the connections of this process and loop: an application is loaded before its processes are made.

        A transport and no client: that would keep cookies, look at the environment, and log addresses with their queries.
        """
        if self._open is None or self._open[0] != _here():
            tls = ssl.create_default_context() if self._tls is None else self._tls
            limits = self._library.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_S)
            made = self._library.AsyncHTTPTransport(verify=tls, trust_env=False, limits=limits)
            self._open = _here(), made
        return self._open[1]

    async def _request(self, message: Message, attempt: _Try) -> httpx2.Request:
        key = message.idempotency_key if self._key is None else self._key(message)
        if not isinstance(key, str) or not _VALUE.fullmatch(key) or not 0 < len(key) <= KEY_CHARACTERS_MAX:
            raise Unusable(f"its idempotency key is no text of 1 to {KEY_CHARACTERS_MAX} characters that a header takes")
        headers = {"accept": "*/*", "accept-encoding": "identity", "user-agent": f"transactional-relay/{__version__}"}
        headers |= {CONTENT_TYPE: self._content_type, **event_headers(message), **await self._given(message)}
        headers[self._key_header.lower()] = key
        steps = {"connect": self._connect_timeout_s, "read": self._timeout_s, "write": self._timeout_s, "pool": self._timeout_s}
        extensions = {"timeout": steps, "trace": attempt.note}
        made: httpx2.Request = self._library.Request(
            "POST", self._target.url, headers=headers, content=message.value or b"", extensions=extensions
        )
        return made

    async def _given(self, message: Message) -> Given:
        if self._headers is None or not callable(self._headers):
            return self._headers or {}
        try:
            found = self._headers(message)
            return _checked(await found if inspect.isawaitable(found) else found)
        except (Unusable, Later):
            raise
        except OSError as error:
            raise Later(f"its headers cannot be made now ({_reason(error)}); it waits", counted=False) from None
        except RelayError as wrong:
            raise Later(str(wrong)) from None
        except Exception as error:  # noqa: BLE001 - whatever an application's function raises; its text may hold a secret
            raise Later(f"the function of its headers raised {type(error).__name__}") from None

    def _unanswered(self, error: Exception, attempt: _Try) -> Later:
        reason = _reason(error)
        if not attempt.is_sent:
            return Later(f"{self._target.shown} cannot be reached ({reason}): nothing was sent, the message waits", counted=False)
        return Later(
            f"in doubt: {self._target.shown} gave no answer ({reason}) after the request was sent, which may have taken effect; "
            "every try has the same key"
        )

    def _decide(self, message: Message, status: int, retry_after: str | None) -> None:
        answer = answer_to(status, self._answers)
        if answer == "done":
            return
        said = f"{self._target.shown} answered {_named(status)}"
        after_s = retry_after_s(retry_after, clock.wall_ms())
        if answer == "wait":
            raise Later(f"{said}: the message waits", after_s=after_s or WAIT_S, counted=False)
        # Nobody keeps how an earlier try ended: that one was made, by whichever worker, is all that the queue knows.
        earlier = "; an earlier try may have taken effect" if message.taken.ticket.attempt > 1 else ""
        if answer == "again":
            raise Later(said + earlier, after_s=after_s)
        raise Unusable(said + (", a redirect, which is not followed" if 300 <= status < 400 else "") + earlier)


def answer_to(status: int, answers: Mapping[int, Answer] = ANSWERS) -> Answer:
    """Return what a status makes of a message, by ``answers`` first."""
    if status in answers:
        return answers[status]
    if status >= 500:
        return "again"
    return "done" if 200 <= status < 300 else "unusable"


def retry_after_s(text: str | None, now_ms: int) -> float:
    """Return for how long a receiver wants to be left alone, in seconds, 0 if it does not say; ``now_ms`` is wall time."""
    if text is None or not text.isascii():
        return 0.0
    if text.strip().isdigit():
        return float(text.strip()[:9])
    try:
        at = parsedate_to_datetime(text)
        # One that names no zone, as its older form does, has none here; all times of HTTP are in GMT.
        return max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now_ms / 1000)
    except (ValueError, OverflowError):
        return 0.0


def event_headers(message: Message) -> dict[str, str]:
    """Return a message's attributes in the HTTP binding of CloudEvents, binary mode, and what traces it.

    What makes an event that nobody made one: the message's id, publisher and subject, and as its type the queue's name.
    Raises Unusable where an attribute has no form there.
    """
    found = {"ce-specversion": "1.0", "ce-id": _percent_encoded(message.id), "ce-source": _percent_encoded(message.publisher)}
    found["ce-type"] = _percent_encoded(message.queue)
    if message.subject is not None:
        found["ce-subject"] = _percent_encoded(message.subject)
    for name, value in message.headers:
        if value is None:
            continue
        if (attribute := _ATTRIBUTE.fullmatch(name)) is not None:
            found[f"ce-{attribute[1]}"] = _percent_encoded(_text(value))
        elif name in _PASSED or name == CONTENT_TYPE:
            text = _text(value)
            if _VALUE.fullmatch(text):
                found[name] = text
            elif name == CONTENT_TYPE:
                raise Unusable("its content-type is no text that a header takes")
    return found


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Unusable("an attribute of the event is not UTF-8") from None


def _percent_encoded(text: str) -> str:
    """Encode what the binding wants encoded: all but printable ASCII, and of that space, quote and percent."""
    return "".join(chr(one) if 0x21 <= one <= 0x7E and one not in b'"%' else f"%{one:02X}" for one in text.encode("utf-8", "replace"))


async def _read_away(response: httpx2.Response) -> None:
    """Read an answer to its end, so that its connection can be used again, or leave it where that takes long."""
    left = ANSWER_BYTES_MAX
    # The status has decided: a body that breaks, or never ends, alters nothing.
    with suppress(Exception):
        async with asyncio.timeout(ANSWER_S):
            async for part in response.aiter_raw():
                left -= len(part)
                if left < 0:
                    break
    with suppress(Exception):
        await response.aclose()


def _here() -> tuple[int, asyncio.AbstractEventLoop]:
    return os.getpid(), asyncio.get_running_loop()


def _named(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _reason(error: BaseException) -> str:
    """Return the system's word for why there was no answer, such as a refused connection or certificate, else the error's type."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, ssl.SSLWantReadError | ssl.SSLWantWriteError):
            break  # how TLS says that it waits for the other side: what ended the wait stands above
        if isinstance(inner, ssl.SSLError | socket.gaierror):
            return str(getattr(inner, "verify_message", None) or inner.strerror)
        if isinstance(inner, OSError) and inner.errno:
            return os.strerror(inner.errno)  # its own text may name what an address was found to be
        parts = inner.exceptions if isinstance(inner, BaseExceptionGroup) else ()
        inner = parts[0] if parts else inner.__cause__ or inner.__context__
    return type(error).__name__


def _checked(headers: Any) -> dict[str, str]:
    """Return headers by their names in small letters; raises ConfigError, which names no value: that may be a secret."""
    if not isinstance(headers, Mapping):
        raise ConfigError(f"webhook(headers=...): a {type(headers).__name__} is no mapping of names to values")
    for name, value in headers.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name) or name.lower() in _RESERVED:
            raise ConfigError(f"webhook(headers=...): {name!r} is no name that can be given")
        if not isinstance(value, str) or not is_utf8(value) or not _VALUE.fullmatch(value):
            raise ConfigError(f"webhook(headers=...): the value of {name!r} is no printable ASCII text; strip what surrounds it")
    return {name.lower(): value for name, value in headers.items()}


def _check(
    queue: str,
    timeout_s: float,
    connect_timeout_s: float,
    key_header: str,
    answers: Mapping[int, Answer],
    content_type: str,
    tls: ssl.SSLContext | None,
) -> None:
    if not isinstance(content_type, str) or not content_type or not _VALUE.fullmatch(content_type):
        raise ConfigError(f"webhook({queue!r}, content_type={content_type!r}): that is no media type; write for example application/json")
    for name, seconds in (("timeout_s", timeout_s), ("connect_timeout_s", connect_timeout_s)):
        if not 0 < seconds <= TIMEOUT_S_MAX:
            raise ConfigError(f"webhook({queue!r}, {name}={seconds}): give seconds, up to {TIMEOUT_S_MAX:g}")
    if not _TOKEN.fullmatch(key_header) or key_header.lower() in _RESERVED:
        raise ConfigError(f"webhook({queue!r}, key_header={key_header!r}): that is no header's name")
    for status, answer in answers.items():
        if not 200 <= status <= 599 or answer not in get_args(Answer):
            known = ", ".join(get_args(Answer))
            raise ConfigError(f"webhook({queue!r}, answers={{{status}: {answer!r}}}): give a status from 200 on, and one of {known}")
    if tls is not None and (tls.verify_mode is not ssl.CERT_REQUIRED or not tls.check_hostname):
        raise ConfigError(f"webhook({queue!r}, tls=...): it verifies nothing; leave verify_mode and check_hostname as they are made")


def _library() -> Any:
    try:
        # An extra: only an application with a webhook needs it.
        import httpx2  # noqa: PLC0415
    except ImportError as missing:
        raise ConfigError(
            f"webhook needs an HTTP client, and {missing.name} is not installed; pip install '.[http]' in the relay's sources"
        ) from None
    return httpx2
