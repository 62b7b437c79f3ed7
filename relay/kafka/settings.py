"""librdkafka settings: an allow-list for what a user may set, and what the guarantee depends on is not his to set.

Sources: librdkafka's CONFIGURATION.md; design.md sections 5, 6 and 13. Needs no Kafka client to be installed.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

from relay.kafka.bearer import Bearer

Scope = Literal["all", "consumer", "producer"]


class TimingLike(Protocol):
    """The limits, in seconds, that become client settings (``relay.config.timing.Timing`` has them)."""

    @property
    def append_timeout(self) -> float:
        """The longest a capture waits for its own delivery reports."""

    @property
    def transaction_timeout(self) -> float:
        """After it the broker aborts a Kafka transaction."""

    @property
    def socket_timeout(self) -> float:
        """After it a request is given up."""

    @property
    def session_timeout(self) -> float:
        """After it a silent group member loses its partitions."""


@dataclass(frozen=True)
class DefaultTiming:
    """What they are without a configuration file."""

    append_timeout: float = 5.0
    transaction_timeout: float = 10.0
    socket_timeout: float = 8.0
    session_timeout: float = 10.0


class Refusal(NamedTuple):
    """Why a setting is refused, and what to do instead; the value is not part of it."""

    key: str
    problem: str
    remedy: str


class Allowed(NamedTuple):
    """Which clients take a setting, and the words or the numbers it may have (None: any text)."""

    scope: Scope
    words: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None


_TEXT: Final = Allowed("all")
_SECURITY: Final = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
BEARER_FILE: Final = "token_file"
"""The relay's own: where the token for OAUTHBEARER is read, again and again (``relay.kafka.bearer``)."""
MACHINES_OWN: Final = "probe"
"""No path of ``ssl.ca.location``: the client looks for the machine's own authorities then."""

ALLOWED: Final[Mapping[str, Allowed]] = {
    "bootstrap.servers": _TEXT,
    "client.rack": _TEXT,
    "client.dns.lookup": Allowed("all", ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")),
    "broker.address.family": Allowed("all", ("any", "v4", "v6")),
    "security.protocol": Allowed("all", _SECURITY),
    "sasl.mechanism": Allowed("all", _MECHANISMS),
    "sasl.mechanisms": Allowed("all", _MECHANISMS),
    "sasl.username": _TEXT,
    "sasl.password": _TEXT,
    BEARER_FILE: _TEXT,
    "ssl.ca.location": _TEXT,
    "ssl.ca.pem": _TEXT,
    "ssl.certificate.location": _TEXT,
    "ssl.certificate.pem": _TEXT,
    "ssl.key.location": _TEXT,
    "ssl.key.pem": _TEXT,
    "ssl.key.password": _TEXT,
    "ssl.keystore.location": _TEXT,
    "ssl.keystore.password": _TEXT,
    "ssl.crl.location": _TEXT,
    "ssl.cipher.suites": _TEXT,
    "ssl.curves.list": _TEXT,
    "ssl.sigalgs.list": _TEXT,
    "enable.ssl.certificate.verification": Allowed("all", ("true",)),
    "ssl.endpoint.identification.algorithm": Allowed("all", ("https",)),
    "metadata.max.age.ms": Allowed("all", least=1000, most=86_400_000),
    "topic.metadata.refresh.interval.ms": Allowed("all", least=100, most=3_600_000),
    "connections.max.idle.ms": Allowed("all", least=0, most=2_147_483_647),
    "reconnect.backoff.ms": Allowed("all", least=0, most=60_000),
    "reconnect.backoff.max.ms": Allowed("all", least=0, most=600_000),
    "socket.connection.setup.timeout.ms": Allowed("all", least=1000, most=300_000),
    "socket.keepalive.enable": Allowed("all", ("true", "false")),
    "socket.nagle.disable": Allowed("all", ("true", "false")),
    "socket.send.buffer.bytes": Allowed("all", least=0, most=100_000_000),
    "socket.receive.buffer.bytes": Allowed("all", least=0, most=100_000_000),
    "message.max.bytes": Allowed("all", least=1000, most=100_000_000),
    "receive.message.max.bytes": Allowed("all", least=1_000_000, most=536_870_912),
    "retry.backoff.ms": Allowed("all", least=1, most=1000),
    "fetch.wait.max.ms": Allowed("consumer", least=0, most=5000),
    "fetch.min.bytes": Allowed("consumer", least=1, most=1_000_000),
    "fetch.max.bytes": Allowed("consumer", least=65_536, most=268_435_456),
    "max.partition.fetch.bytes": Allowed("consumer", least=65_536, most=67_108_864),
    "fetch.queue.backoff.ms": Allowed("consumer", least=0, most=1000),
    "queued.min.messages": Allowed("consumer", least=1, most=1_000_000),
    "queued.max.messages.kbytes": Allowed("consumer", least=1024, most=262_144),
    "max.poll.interval.ms": Allowed("consumer", least=60_000, most=3_600_000),
    "linger.ms": Allowed("producer", least=0, most=1000),
    "batch.size": Allowed("producer", least=1024, most=16_777_216),
    "batch.num.messages": Allowed("producer", least=1, most=1_000_000),
    "queue.buffering.max.messages": Allowed("producer", least=1000, most=10_000_000),
    "queue.buffering.max.kbytes": Allowed("producer", least=1024, most=2_097_152),
    "compression.type": Allowed("producer", ("none", "gzip", "snappy", "lz4", "zstd")),
    "compression.level": Allowed("producer", least=-1, most=12),
}

_BY_TIMING: Final = "set the limit in [timing]; this one is derived from it"
_LEAVE_OUT: Final = "leave it out"
_PORT_MAX: Final = 65535

FORCED: Final[Mapping[str, str]] = {
    "enable.auto.commit": "offsets are committed only with the effects they stand for (the relay sets false)",
    "enable.auto.offset.store": "a message is done when it is delivered, not when it is read (the relay sets false)",
    "auto.offset.reset": "lost offsets must stop the route, not skip messages (the relay sets error)",
    "auto.commit.interval.ms": "there is no automatic commit",
    "isolation.level": "messages of aborted Kafka transactions must not be relayed (the relay sets read_committed)",
    "allow.auto.create.topics": "a misspelt topic must be an error (the relay sets false)",
    "check.crcs": "a damaged record must be noticed (the relay sets true)",
    "enable.idempotence": "without it the client's own retries duplicate and reorder (the relay sets true)",
    "acks": "a message counts as written when every replica in sync has it (the relay sets all)",
    "request.required.acks": "a message counts as written when every replica in sync has it (the relay sets all)",
    "max.in.flight.requests.per.connection": "order needs at most 5 (the relay leaves it at 5)",
    "enable.gapless.guarantee": "it is chosen by the relay",
    "transactional.id": "it is <relay>.<route>.<instance>.<worker>, so that a successor fences its predecessor",
    "group.id": "it is <relay>.<route>",
    "group.instance.id": "static membership would keep a dead worker's partitions for its whole session",
    "group.protocol": "the classic protocol is used until the other is proved equal",
    "partition.assignment.strategy": "the topics of a route must be assigned together (the relay sets range)",
    "enable.partition.eof": "it is chosen by each reader",
    "statistics.interval.ms": "the relay counts for itself",
    "message.send.max.retries": "retries end by time, not by count",
    "delivery.report.only.error": "every report is needed before a transaction is sealed",
    "partitioner": "a key's partition must never change (the relay sets murmur2_random)",
}

DERIVED: Final[Mapping[str, str]] = {
    "transaction.timeout.ms": "timing.transaction_timeout",
    "socket.timeout.ms": "timing.socket_timeout",
    "session.timeout.ms": "timing.session_timeout",
    "heartbeat.interval.ms": "timing.session_timeout",
    "message.timeout.ms": "timing.transaction_timeout and timing.append_timeout",
    "delivery.timeout.ms": "timing.transaction_timeout and timing.append_timeout",
    "request.timeout.ms": "timing.socket_timeout",
}

REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    "plugin.library.paths": ("it loads code into the process", _LEAVE_OUT),
    "ssl.engine.location": (
        "it loads code into the process",
        "use ssl.key.location or ssl.keystore.location",
    ),
    "ssl.providers": ("it loads code into the process", _LEAVE_OUT),
    "sasl.kerberos.kinit.cmd": ("it runs a shell command", "use SCRAM inside TLS, or client certificates"),
    "sasl.oauthbearer.token.endpoint.url": (
        "it makes the process call any address",
        'have the token renewed in a file and name that: token_file = "..."',
    ),
    "debug": ("its output may show payloads and credentials", "read the relay's own log"),
    "bootstrap": ("not a librdkafka name", 'write "bootstrap.servers"'),
    "metadata.broker.list": ("an old name", 'write "bootstrap.servers"'),
    "client.id": ("the relay names its clients itself, so that broker logs tell who is who", _LEAVE_OUT),
}

_FETCH_OVERHEAD: Final = 512
"""The client keeps so many bytes of an answer for what is not records."""
_SECRETS: Final = ("password", ".pem", "secret")
_INSECURE: Final = {
    "enable.ssl.certificate.verification": "the broker's certificate must be verified",
    "ssl.endpoint.identification.algorithm": "the broker's name must be verified against its certificate",
}


def is_secret(key: str) -> bool:
    """Tell whether the value of a client setting must never be shown."""
    return any(part in key for part in _SECRETS)


def may_be_shown(key: str) -> bool:
    """Tell whether a fault may show the value of a setting: not what is secret, nor what nobody here knows.

    A setting of another client may hold a password inside, as the JVM's ``sasl.jaas.config`` does.
    """
    return not is_secret(key) and any(key in known for known in (ALLOWED, FORCED, DERIVED, REFUSED))


def redacted(kafka: Mapping[str, str]) -> dict[str, str]:
    """Return the settings as they may be shown."""
    return {key: "(hidden)" if is_secret(key) else value for key, value in kafka.items()}


def refusals(kafka: Mapping[str, str], *, allow_plaintext: bool = False) -> Iterator[Refusal]:
    """Yield every setting that is refused, each with its remedy."""
    for key, value in kafka.items():
        refusal = _refusal(key, value)
        if refusal is not None:
            yield refusal
    if not kafka.get("bootstrap.servers", "").strip(" ,"):
        yield Refusal("bootstrap.servers", "no broker is named", 'write for example "127.0.0.1:9092"')
    else:
        yield from _address_refusals(kafka)
        if not allow_plaintext:
            yield from _plaintext_refusals(kafka)
    if ("sasl.username" in kafka) != ("sasl.password" in kafka):
        yield Refusal(
            "sasl.username", "a user needs a password and a password a user", "give both or neither"
        )
    is_bearer = mechanism(kafka) == "OAUTHBEARER"
    if is_bearer != (BEARER_FILE in kafka):
        yield Refusal(BEARER_FILE, "OAUTHBEARER needs a token and a token OAUTHBEARER", 'give "sasl.mechanism" and token_file, or neither')
    for credential in ("sasl.username", BEARER_FILE):
        if credential in kafka and not kafka.get("security.protocol", "").lower().startswith("sasl_"):
            yield Refusal("security.protocol", f"{credential} is given but not used", 'write "sasl_ssl"')


def mechanism(kafka: Mapping[str, str]) -> str:
    """Return the SASL mechanism that settings name, in capitals; nothing if they name none."""
    return (kafka.get("sasl.mechanism") or kafka.get("sasl.mechanisms", "")).upper()


def _refusal(key: str, value: str) -> Refusal | None:
    if key in FORCED:
        return Refusal(key, f"the guarantee depends on it: {FORCED[key]}", _LEAVE_OUT)
    if key in DERIVED:
        return Refusal(key, f"it is derived from {DERIVED[key]}", _BY_TIMING)
    if key in REFUSED:
        problem, remedy = REFUSED[key]
        return Refusal(key, f"refused, because {problem}", remedy)
    if key not in ALLOWED:
        close = difflib.get_close_matches(key, ALLOWED, n=1, cutoff=0.8)
        remedy = f'did you mean "{close[0]}"?' if close else _LEAVE_OUT
        return Refusal(key, "not on the list of client settings that may be given", remedy)
    return _value_refusal(key, value, ALLOWED[key])


def _value_refusal(key: str, value: str, allowed: Allowed) -> Refusal | None:
    if allowed.words and value.lower() not in {word.lower() for word in allowed.words}:
        why = _INSECURE.get(key, "not one of the values that are allowed")
        return Refusal(key, why, f"use {' or '.join(allowed.words)}")
    if allowed.least is not None and allowed.most is not None:
        number = int(value) if re.fullmatch(r"-?[0-9]{1,12}", value) else None
        if number is None or not allowed.least <= number <= allowed.most:
            return Refusal(key, "out of range", f"use a whole number from {allowed.least} to {allowed.most}")
    return None


def _address_refusals(kafka: Mapping[str, str]) -> Iterator[Refusal]:
    """The client says only in its log what it makes of these: it leaves out an address with another protocol than its own,
    asks for a machine called ``a:9092;b``, and takes 99999 for port 34463, and a word for port 0."""
    protocol = kafka.get("security.protocol", "plaintext").lower()
    for server in (one.strip() for one in kafka["bootstrap.servers"].split(",")):
        given, before, _ = server.rpartition("://")
        if before and given.lower() != protocol:
            yield Refusal("bootstrap.servers", f"{server} begins with another protocol than {protocol}", "write host:port")
        host, port = _host_and_port(server)
        if not re.fullmatch(r"[\w.-]*", host) and not _is_ip_address(host):
            yield Refusal("bootstrap.servers", f"{server} has a host that is none", "write host:port, more of them with commas between")
        elif port is not None and not (re.fullmatch("[0-9]{1,5}", port) and 1 <= int(port) <= _PORT_MAX):
            problem = f"{server} has a port that is none"
            yield Refusal("bootstrap.servers", problem, f"write host:port with a port from 1 to {_PORT_MAX}")


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _host_and_port(server: str) -> tuple[str, str | None]:
    """Take an address apart; without a port None, which is whatever stands there otherwise."""
    address = server.strip().rpartition("://")[2]
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        return host, rest.removeprefix(":") if rest else None
    if address.count(":") != 1:  # none, or an IPv6 address
        return address, None
    host, _, port = address.partition(":")
    return host, port


def _plaintext_refusals(kafka: Mapping[str, str]) -> Iterator[Refusal]:
    protocol = kafka.get("security.protocol", "plaintext").lower()
    if protocol in ("ssl", "sasl_ssl"):
        return
    for server in kafka["bootstrap.servers"].split(","):
        if server.strip() and not is_loopback(server):
            problem = f"{server.strip()} is another machine and {protocol} is not encrypted"
            remedy = 'set "security.protocol" to ssl or sasl_ssl, or [relay] allow_plaintext = true'
            yield Refusal("bootstrap.servers", problem, remedy)


def is_loopback(server: str) -> bool:
    """Tell whether ``host:port``, perhaps with a protocol before it, is on this machine."""
    host, _ = _host_and_port(server)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


def _given(kafka: Mapping[str, str], scope: Scope) -> dict[str, Any]:
    """Return the user's settings that this kind of client takes; a refused one never gets through."""
    found: dict[str, Any] = {
        key: value for key, value in kafka.items() if key in ALLOWED and ALLOWED[key].scope in ("all", scope)
    }
    if (tokens := found.pop(BEARER_FILE, None)) is not None:
        found["oauth_cb"] = Bearer(Path(tokens))
    return found


def _shared(timing: TimingLike) -> dict[str, Any]:
    return {
        "socket.timeout.ms": _ms(timing.socket_timeout),
        "socket.keepalive.enable": True,
        "statistics.interval.ms": 0,
    }


def consumer(kafka: Mapping[str, str], timing: TimingLike, group: str, **over: Any) -> dict[str, Any]:
    """Return the settings of a consumer in ``group``; ``over`` is for code (a monitor's reader), not for users."""
    return {
        **_shared(timing),
        # A full queue pauses fetching for the backoff, so it is short; both queue bounds are per process.
        "fetch.queue.backoff.ms": 20,
        "fetch.wait.max.ms": 50,
        "queued.min.messages": 50_000,
        "queued.max.messages.kbytes": 65_536,
        "topic.metadata.refresh.interval.ms": 30_000,
        **_given(kafka, "consumer"),
        "group.id": group,
        "group.protocol": "classic",
        "partition.assignment.strategy": "range",
        "session.timeout.ms": _ms(timing.session_timeout),
        "heartbeat.interval.ms": min(3000, _ms(timing.session_timeout / 3)),
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "allow.auto.create.topics": False,
        "check.crcs": True,
        **over,
    }


def producer(
    kafka: Mapping[str, str], timing: TimingLike, transactional_id: str | None = None, **over: Any
) -> dict[str, Any]:
    """Return the settings of an idempotent producer, transactional if an id is given; ``over`` is for code."""
    # A delivery report must come before the transaction (or the capture's append) gives up on it.
    message_timeout = timing.append_timeout if transactional_id is None else timing.transaction_timeout * 0.9
    settings: dict[str, Any] = {
        **_shared(timing),
        "linger.ms": 5,
        "compression.type": "lz4",
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 524_288,
        # How large a record may be is the topic's business: the client's default of 1 MB would refuse dead letters.
        "message.max.bytes": 100_000_000,
        # The coordinator answers "concurrent transactions" just after a commit: the pause is the latency.
        "retry.backoff.ms": 20,
        "retry.backoff.max.ms": 1000,
        **_given(kafka, "producer"),
        "partitioner": "murmur2_random",
        # A topic that was deleted would come back as another one, with whatever settings brokers have for a default.
        "allow.auto.create.topics": False,
        "enable.idempotence": True,
        "acks": "all",
        "message.timeout.ms": _ms(message_timeout),
    }
    if transactional_id is not None:
        settings["transactional.id"] = transactional_id
        settings["transaction.timeout.ms"] = _ms(timing.transaction_timeout)
    return {**settings, **over}


def admin(kafka: Mapping[str, str], timing: TimingLike, **over: Any) -> dict[str, Any]:
    """Return the settings of an administrative client."""
    return {**_shared(timing), **_given(kafka, "all"), **over}


def contradictions(kafka: Mapping[str, str], timing: TimingLike) -> Iterator[Refusal]:
    """Yield settings that the client refuses beside the others, though each of them is allowed.

    It says so only when a worker makes it. The settings themselves must have passed ``refusals``.
    """
    kafka = {key: value for key, value in kafka.items() if key != BEARER_FILE}  # what is in that file may change
    reading = consumer(kafka, timing, "")
    backoff, longest = int(reading.get("reconnect.backoff.ms", 100)), int(reading.get("reconnect.backoff.max.ms", 10_000))
    if backoff > longest:
        problem = f"{backoff} ms is more than reconnect.backoff.max.ms ({longest})"
        yield Refusal("reconnect.backoff.ms", problem, "lower it or raise reconnect.backoff.max.ms")
    session, poll = int(reading["session.timeout.ms"]), int(reading.get("max.poll.interval.ms", 300_000))
    if session > poll:
        problem = f"{poll} ms is less than timing.session_timeout ({timing.session_timeout:g} s)"
        yield Refusal("max.poll.interval.ms", problem, "raise it or lower timing.session_timeout")
    largest = int(reading.get("message.max.bytes", 1_000_000))
    # What is not given follows from what is, as the client works it out.
    derived = max(min(52_428_800, int(reading["queued.max.messages.kbytes"]) * 1024), largest)
    fetch = int(reading.get("fetch.max.bytes", derived))
    if fetch < largest:
        problem = f"{fetch} is less than message.max.bytes ({largest})"
        yield Refusal("fetch.max.bytes", problem, "raise it or lower message.max.bytes")
    elif int(reading.get("receive.message.max.bytes", fetch + _FETCH_OVERHEAD)) < fetch + _FETCH_OVERHEAD:
        problem = f"an answer may have {fetch + _FETCH_OVERHEAD} bytes (fetch.max.bytes + {_FETCH_OVERHEAD})"
        yield Refusal("receive.message.max.bytes", problem, "raise it or lower fetch.max.bytes")
    for transactional_id, limit in ((None, "timing.append_timeout"), ("any", "timing.transaction_timeout")):
        writing = producer(kafka, timing, transactional_id)
        if int(writing["linger.ms"]) >= int(writing["message.timeout.ms"]):
            problem = f"a record must be sent well before its time is over ({writing['message.timeout.ms']} ms)"
            yield Refusal("linger.ms", problem, f"lower it or raise {limit}")
            return


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
