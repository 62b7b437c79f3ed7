"""A Confluent-compatible schema registry: which schema a framed value was written with, and the number of our own.

Only the registry's own word counts as "there is no such schema". Whatever else goes wrong on the way to it means that
nothing is known, so that a registry which is away makes messages wait and never turns them into dead letters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from uuid import UUID

import fastavro
import orjson

from relay.kafka.logins import Credentials, Login, login_at
from relay.kafka.settings import is_loopback
from relay.message.avro_values import SchemaKey
from relay.message.errors import (
    UNKNOWN_SCHEMA,
    ConfigError,
    MessageRejected,
    RelayError,
    Stopped,
    Unreachable,
)
from relay.message.limits import raise_limit
from relay.world import clock, schedule

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

SCHEMA_CHARACTERS_MAX: Final = 1 << 20
REFERENCES_MAX: Final = 100
"""Further schemas that one schema may name, all levels together."""
UNKNOWN_FOR_S: Final = 30.0
"""So long is the registry not asked again for a schema that it did not know."""
RETRIES: Final = 1
RETRY_WAIT_MS: Final = 100
_NOT_FOUND: Final = frozenset({40401, 40402, 40403})
"""The registry's codes for a subject, a version and a schema that it does not have."""
NUMBER_MAX: Final = (1 << 31) - 1
"""What a Confluent registry takes for a number; above it there is no page, and no schema, whatever it is asked."""
_NO_PAGE: Final = 404
_INVALID: Final = frozenset({409, 422})
_UNKNOWN_USER: Final = 401
_CREDENTIALS: Final = frozenset({_UNKNOWN_USER, 403})

Answer = TypeVar("Answer")


class RegistryLike(Protocol):
    """The section ``[registry]`` as this module reads it; ``timeout`` is in seconds, for each step of a request."""

    @property
    def url(self) -> str:
        """Where it listens; holds no secret."""

    @property
    def credentials(self) -> str | None:
        """``user:password`` for HTTP's basic authentication."""

    @property
    def ca(self) -> Path | None:
        """The file of certificates to trust, None for the usual ones."""

    @property
    def timeout(self) -> float:
        """Seconds."""

    @property
    def cache(self) -> int:
        """How many schemas are kept."""

    @property
    def register_(self) -> bool:
        """Whether publishers may register their schemas."""


class _NotFound(Exception):
    """The registry says that it does not have what it was asked for."""


class _Refused(Exception):
    """The registry takes the request for wrong (409 incompatible, 422 invalid)."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Registry:
    """A client of a registry with bounded caches. Any thread may use it; one request is made at a time."""

    def __init__(self, settings: RegistryLike) -> None:
        self._settings = settings
        self._login, self._shown = _login(settings)
        self._client = _client(settings, self._shown)
        self._lock = schedule.lock()
        self._known: OrderedDict[SchemaKey, Any] = OrderedDict()
        self._unknown: OrderedDict[SchemaKey, float] = OrderedDict()

    def schema(self, key: SchemaKey) -> Any:
        """Return the schema with a number or GUID, as fastavro takes it.

        Raises MessageRejected if there is none or it is not Avro, Unreachable if nothing is known, Stopped if the
        registry wants other credentials.
        """
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
                return found
            if self._unknown.get(key, float("-inf")) > clock.monotonic():
                raise _unknown(key)
            try:
                found = self._fetch(key)
            except _NotFound:
                self._keep(self._unknown, key, clock.monotonic() + UNKNOWN_FOR_S)
                raise _unknown(key) from None
            self._keep(self._known, key, found)
            return found

    def number_of(self, subject: str, text: str) -> int:
        """Return the number of a schema under a subject; registers it if the section allows that.

        Raises ConfigError if it is not registered and may not be, or is refused; Unreachable, Stopped.
        """
        with self._lock:
            schema = _avro_schema(text)
            try:
                if self._settings.register_:
                    return self._ask(lambda: self._client.register_schema(subject, schema))
                number = self._ask(lambda: self._client.lookup_schema(subject, schema)).schema_id
            except _NotFound:
                raise ConfigError(
                    f"the schema is not registered under {subject!r} at {self._where}; register it there, or write "
                    "register = true into [registry]"
                ) from None
            except _Refused as refused:
                why = (
                    "is not compatible with the subject's earlier ones"
                    if refused.status == 409
                    else "is not valid"
                )
                raise ConfigError(
                    f"the registry at {self._where} refuses the schema for {subject!r}: it {why}; change the schema, or "
                    "the subject's compatibility there"
                ) from None
            if number is None:
                raise self._away("its answer names no number")
            return number

    def check(self) -> None:
        """Ask something cheap: raises Unreachable, or Stopped if the registry wants other credentials."""
        with self._lock:
            try:
                kinds = self._ask(lambda: self._client.get_schema_types())  # noqa: PLW0108 - it may be another client by then
            except (_NotFound, _Refused):
                kinds = None
            if not isinstance(kinds, list):
                raise self._away("it answers, but not as a schema registry")

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            self._client.close()

    @property
    def _where(self) -> str:
        return self._settings.url

    def _fetch(self, key: SchemaKey) -> Any:
        try:
            if isinstance(key, int):
                # In a value that was never framed such a number is as likely as any other, and nobody's to register.
                not_found = _NOT_FOUND if key <= NUMBER_MAX else _NOT_FOUND | {_NO_PAGE}
                schema = self._ask(lambda: self._client.get_schema(key), not_found)
            else:
                schema = self._ask(lambda: self._client.get_schema_by_guid(str(UUID(bytes=key))))
        except _Refused:
            raise self._away("it does not take the question for a schema") from None
        return self._parsed(key, schema)

    def _text_of(self, schema: Schema) -> str:
        """Return a schema's text; Unreachable for an answer without one: whose word that is, such as a proxy's, is not known."""
        text = schema.schema_str
        if not isinstance(text, str) or not text:
            self._client.clear_caches()  # type: ignore[no-untyped-call]  # it keeps that answer, too
            raise self._away("its answer has no schema")
        return text

    def _parsed(self, key: SchemaKey, schema: Schema) -> Any:
        named: dict[str, Any] = {}
        text = self._text_of(schema)
        self._add_references(schema, named, seen=set())
        if (schema.schema_type or "AVRO") != "AVRO" or len(text) > SCHEMA_CHARACTERS_MAX:
            raise MessageRejected(
                "decode", "bad_schema", f"schema {_shown(key)} of the registry is no Avro, or too large"
            )
        try:
            parsed = fastavro.parse_schema(orjson.loads(text), named)
            # Only beside a record fastavro keeps what it refers to.
            return parsed if isinstance(parsed, dict) and "fields" in parsed else fastavro.parse_schema(_whole(parsed, named, set()))
        except Exception as failure:  # noqa: BLE001 - whatever a parser of a stranger's schema raises means one thing
            raise_limit(failure)
            sentence = f"schema {_shown(key)} of the registry cannot be read as Avro"
            raise MessageRejected("decode", "bad_schema", sentence) from None

    def _add_references(self, schema: Schema, named: dict[str, Any], seen: set[tuple[str, int]]) -> None:
        """Parse the schemas that a schema names, the innermost first, into ``named``."""
        for reference in schema.references or ():
            subject, version = reference.subject or "", reference.version or 0
            if (subject, version) in seen:
                continue
            seen.add((subject, version))
            if len(seen) > REFERENCES_MAX:
                sentence = f"the value's schema refers to more than {REFERENCES_MAX} others"
                raise MessageRejected("decode", "bad_schema", sentence)
            found = self._ask(lambda: self._client.get_version(subject, version)).schema  # noqa: B023 - called at once
            text = self._text_of(found)
            self._add_references(found, named, seen)
            try:
                fastavro.parse_schema(orjson.loads(text), named)
            except Exception as failure:  # noqa: BLE001 - as above
                raise_limit(failure)
                sentence = f"{subject!r}, to which the value's schema refers, cannot be read as Avro"
                raise MessageRejected("decode", "bad_schema", sentence) from None

    def _ask(self, request: Callable[[], Answer], not_found: frozenset[int] = _NOT_FOUND) -> Answer:
        """Make a request; what is not the registry's own word becomes Unreachable."""
        try:
            return request()
        except Exception as failure:  # noqa: BLE001 - the client raises whatever its HTTP library and JSON do
            if not self._shows_another(failure):
                self._sort_out(failure, not_found)
        try:
            return request()
        except Exception as failure:  # noqa: BLE001 - as above
            self._sort_out(failure, not_found)

    def _shows_another(self, failure: Exception) -> bool:
        """Go on with what the files of user and password say now, if the registry has refused what they said before."""
        if self._login is None or getattr(failure, "http_status_code", None) != _UNKNOWN_USER:
            return False
        now = self._login.look()
        if now == self._shown:
            return False
        self._shown = now
        with suppress(Exception):  # of what is thrown away nothing is needed
            self._client.close()
        self._client = _client(self._settings, now)
        return True

    def _sort_out(self, failure: Exception, not_found: frozenset[int]) -> NoReturn:
        """Stop where a person must change credentials; retry wherever nothing is known."""
        if isinstance(failure, RelayError):
            raise failure
        status = getattr(failure, "http_status_code", None)
        if status == _UNKNOWN_USER and self._login is not None:
            raise self._away(f"it refuses {self._login.where}, which is read again: {status}") from None
        if status in _CREDENTIALS:
            raise Stopped(
                f"the schema registry at {self._where} refuses these credentials ({status}); give the user of [registry] "
                "the right to read schemas, or another user and password"
            ) from None
        if status == _NO_PAGE and getattr(failure, "error_code", None) in not_found:
            raise _NotFound from None
        if status in _INVALID:
            raise _Refused(status) from None
        raise self._away(_reason(failure) if status is None else f"HTTP status {status}") from None

    def _away(self, reason: str) -> Unreachable:
        return Unreachable(
            f"the schema registry at {self._where} gives no answer of use ({reason}); messages wait for it"
        )

    def _keep(self, cache: OrderedDict[SchemaKey, Any], key: SchemaKey, value: Any) -> None:
        cache[key] = value
        cache.move_to_end(key)
        if len(cache) > self._settings.cache:
            cache.popitem(last=False)
            # Its own cache of schemas has no bound.
            self._client.clear_caches()  # type: ignore[no-untyped-call]


def _login(settings: RegistryLike) -> tuple[Login | None, Credentials | None]:
    """Return whether user and password lie in files, and what to show first."""
    if settings.credentials is None:
        return None, None
    user, _, password = settings.credentials.partition(":")
    given = Credentials(user, password)
    login = login_at(settings.url, given)
    return login, given if login is None else login.in_force


def _refuse_proxy(url: str) -> None:
    """Raise ConfigError if what needs no encryption, since it stays on this machine, would be sent to a proxy of the environment."""
    parts, proxies = urlsplit(url), getproxies()
    host = parts.hostname or ""
    if parts.scheme == "http" and is_loopback(host) and ("http" in proxies or "all" in proxies) and not proxy_bypass(host):
        raise ConfigError(
            f"[registry] url = {url}: the environment names a proxy (HTTP_PROXY or ALL_PROXY), which would be asked in its place; leave the "
            f"machine out there: NO_PROXY={host}"
        )


def _client(settings: RegistryLike, shown: Credentials | None) -> SchemaRegistryClient:
    _refuse_proxy(settings.url)
    try:
        # An extra, and 0.3 s: only a relay with a registry needs it.
        from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415
    except ImportError as missing:
        raise ConfigError(
            f"[registry] needs the registry client, and {missing.name} is not installed; "
            "pip install '.[registry]' in the relay's sources"
        ) from None
    given: dict[str, Any] = {
        "url": settings.url,
        "timeout": settings.timeout,
        "max.retries": RETRIES,
        "retries.wait.ms": RETRY_WAIT_MS,
        "retries.max.wait.ms": RETRY_WAIT_MS,
        "cache.capacity": settings.cache,
    }
    if shown is not None:
        given["basic.auth.user.info"] = f"{shown.user}:{shown.password}"
    if settings.ca is not None:
        given["ssl.ca.location"] = str(settings.ca)
    try:
        return SchemaRegistryClient(given)
    except Exception as failure:  # noqa: BLE001 - files that it opens, settings that it checks
        raise_limit(failure)
        raise ConfigError(
            f"[registry]: the client refuses the settings ({type(failure).__name__}); correct url, user or ca, or the proxies "
            "that the environment names (HTTPS_PROXY, ALL_PROXY)"
        ) from None


def _whole(schema: Any, named: dict[str, Any], told: set[str]) -> Any:
    """Return a parsed schema in which each of the types that it only names is told where it is named first."""
    if isinstance(schema, list):
        return [_whole(one, named, told) for one in schema]
    if isinstance(schema, str):
        if schema not in named or schema in told:
            return schema
        schema = named[schema]
    if "name" in schema:
        told.add(schema["name"])
    found = {name: value for name, value in schema.items() if not name.startswith("__")}  # of fastavro's own marks it needs none
    for part in found.keys() & {"type", "items", "values"}:
        found[part] = _whole(found[part], named, told)
    if "fields" in found:
        found["fields"] = [{**field, "type": _whole(field["type"], named, told)} for field in found["fields"]]
    return found


def _avro_schema(text: str) -> Schema:
    from confluent_kafka.schema_registry import Schema  # noqa: PLC0415 - as above

    return Schema(text, "AVRO")


def _reason(failure: BaseException) -> str:
    """Return why a request got no answer: the system's word, such as a refused connection or certificate, if there is one."""
    inner: BaseException | None = failure
    while inner is not None:
        if isinstance(inner, OSError):
            return getattr(inner, "verify_message", None) or inner.strerror or type(inner).__name__
        inner = inner.__cause__ or inner.__context__
    return type(failure).__name__


def _unknown(key: SchemaKey) -> MessageRejected:
    return MessageRejected(
        "decode", UNKNOWN_SCHEMA, f"the registry knows no schema {_shown(key)}, which the value names"
    )


def _shown(key: SchemaKey) -> str:
    return str(key) if isinstance(key, int) else str(UUID(bytes=key))
