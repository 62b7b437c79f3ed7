"""What the relay asks and changes of topics; nothing here reads or writes a message."""



from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NoReturn, Self, TypeVar, cast

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)

# The package's stub does not list these names as exported, though its documentation does.
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from relay.kafka.callbacks import weakly
from relay.kafka.clients import AdminClient
from relay.kafka.failures import DENIED_REMEDY, LEADER_MOVES, LOCKED_OUT, MISSING, NO_RIGHT
from relay.kafka.logins import Login, login_of
from relay.kafka.settings import TimingLike, admin
from relay.message.errors import ConfigError, Unreachable
from relay.message.record import TOPIC_CHARACTERS_MAX, TOPIC_REMEDY, is_topic_name
from relay.world import clock

T = TypeVar("T")

_UNREACHABLE: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._RESOLVE,
        KafkaError._SSL,
        KafkaError._DESTROY_BROKER,
        KafkaError._WAIT_COORD,
        KafkaError.UNKNOWN,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_CONTROLLER,
        *LOCKED_OUT,
    }
)
"""What passes when brokers are back, their disks have room and the client knows them again, or when another process has the password
of now."""
WAITING: Final = logging.getLogger("relay.kafka.waiting")
"""Tells persons what a command waits for; nobody else listens."""
SOON_S: Final = 2.0
_VISIBLE_PAUSE_S: Final = 0.02
VISIBLE_S: Final = 2.0
"""For so long a topic may be unknown to the broker that is asked, though another one, or the controller, has made it."""
BATCH_BYTES: Final = 1_000_000
"""librdkafka's ``batch.size`` when the user gives none."""
_CLOSED: Final = ": it closes every connection"


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the cluster describes it; ``topic_id`` is 16 bytes, the settings are those in force."""

    name: str
    topic_id: bytes
    partitions: int
    replication: int
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic to create."""

    name: str
    partitions: int
    replication: int
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """A broker's settings; None if describing them is not allowed."""

    node: int
    address: str
    settings: dict[str, str] | None


def numeric_setting(settings: Mapping[str, str], name: str, default: int) -> int:
    """Return a topic's or broker's setting that is a number; ``default`` where it is not told."""
    text = settings.get(name, "")
    return int(text) if text.lstrip("-").isdecimal() else default


def compaction_lags(facts: Iterable[TopicFacts]) -> dict[str, float]:
    """Return those that are compacted, each with the milliseconds for which it leaves older values of a key alone."""
    compacted = [one for one in facts if "compact" in one.settings.get("cleanup.policy", "")]
    return {one.name: float(numeric_setting(one.settings, "min.compaction.lag.ms", 0)) for one in compacted}


def fitting_batches(kafka: Mapping[str, str], facts: Iterable[TopicFacts]) -> dict[str, int]:
    """Return what a producer must be told so that no batch is larger than these topics take; nothing if none would be.

    Brokers refuse a batch as a whole, however small its records are. A single record may be larger than a batch.
    """
    given = int(kafka.get("batch.size", BATCH_BYTES))
    least = min((numeric_setting(one.settings, "max.message.bytes", given) for one in facts), default=given)
    return {"batch.size": least} if least < given else {}


class Topics:
    """An administrative client. Errors: Unreachable (with the brokers' address), ConfigError (a refusal)."""

    def __init__(self, kafka: Mapping[str, str], timing: TimingLike, timeout_s: float = 15.0) -> None:
        self._servers = kafka.get("bootstrap.servers", "")
        self._timeout_s = timeout_s
        self._last_error = ""
        # The client's own log lines would repeat, in other words, the sentence that is raised: they go no further.
        ear = _Ear(weakly(self._note_closed))
        self._given = {**admin(kafka, timing), "error_cb": weakly(self._note_error), "logger": ear}
        self._admin = AdminClient(self._given)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the client: forgotten with this object, it would wait in a fork for threads that are not there."""
        self._admin = cast("AdminClient", _Closed())

    def describe(self, names: Iterable[str], *, settings: bool = True, wait_s: float = 0.0) -> dict[str, TopicFacts]:
        """Return the facts of the topics that exist; missing ones are absent, after they were asked for again for ``wait_s``."""
        wanted = sorted(set(names))
        _check_names(wanted)
        found = self._described(wanted, settings)
        deadline = clock.monotonic() + wait_s
        while len(found) < len(wanted) and clock.monotonic() < deadline:
            clock.sleep(_VISIBLE_PAUSE_S)
            found |= self._described([name for name in wanted if name not in found], settings)
        return found

    def _described(self, wanted: list[str], settings: bool) -> dict[str, TopicFacts]:
        if not wanted:
            return {}
        futures = self._ask(lambda: self._admin.describe_topics(TopicCollection(wanted)), "describe topics")
        found: dict[str, TopicFacts] = {}
        for name, future in futures.items():
            described = self._unless_missing(future, f"describe topic {name}")
            if described is None:
                continue
            replication = max((len(partition.replicas) for partition in described.partitions), default=0)
            topic_id = _uuid_bytes(described.topic_id)
            found[name] = TopicFacts(name, topic_id, len(described.partitions), replication)
        if not settings or not found:
            return found
        in_force = self._settings([ConfigResource(ResourceType.TOPIC, name) for name in found])
        return {name: replace(found[name], settings=kept) for name, kept in in_force.items()}

    def brokers(self) -> list[BrokerFacts]:
        """Return every broker with its settings, or without them where the cluster right is missing."""
        future = self._ask(self._admin.describe_cluster, "describe the cluster")
        cluster = self._result(future, "describe the cluster")
        facts = []
        for node in sorted(cluster.nodes, key=lambda node: node.id):
            resource = ConfigResource(ResourceType.BROKER, str(node.id))
            try:
                settings: dict[str, str] | None = self._settings([resource])[str(node.id)]
            except ConfigError:
                # Stop or retry would be wrong: the check goes on and says what it could not see.
                settings = None
            facts.append(BrokerFacts(node.id, f"{node.host}:{node.port}", settings))
        return facts

    def create(self, plans: Sequence[TopicPlan]) -> list[str]:
        """Create topics and wait until the cluster names a leader for each; return those that were new."""
        if not plans:
            return []
        _check_names(plan.name for plan in plans)
        topics = [
            NewTopic(plan.name, plan.partitions, plan.replication, config=plan.settings) for plan in plans
        ]
        futures = self._ask(
            lambda: self._admin.create_topics(topics, operation_timeout=self._timeout_s), "create topics"
        )
        created = []
        for name, future in futures.items():
            try:
                future.result(self._timeout_s)
            except KafkaException as error:
                if _code(error) == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue
                raise self._sentence(error, f"create topic {name}") from error
            created.append(name)
        self._wait_for_leaders({plan.name: plan.partitions for plan in plans})
        return created

    def grow(self, name: str, partitions: int) -> None:
        """Raise a topic's partition count and wait until it shows."""
        futures = self._ask(
            lambda: self._admin.create_partitions([NewPartitions(name, partitions)]), f"grow topic {name}"
        )
        try:
            self._result(futures[name], f"grow topic {name} to {partitions} partitions")
        except ConfigError:
            found = self.describe([name], settings=False).get(name)
            if found is None or found.partitions != partitions:
                raise  # otherwise somebody else has made them since they were counted
        self._wait_for_leaders({name: partitions})

    def alter(self, name: str, settings: Mapping[str, str]) -> None:
        """Set some of a topic's settings and leave the others."""
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        futures = self._ask(
            lambda: self._admin.incremental_alter_configs([resource]), f"change settings of topic {name}"
        )
        self._result(futures[resource], f"change settings of topic {name}")

    def names(self) -> list[str]:
        """Return the names of all topics that this client may see."""
        return sorted(self._metadata().topics)

    def broker_count(self) -> int:
        """Return how many brokers the cluster has."""
        return len(self._metadata().brokers)

    def delete(self, names: Sequence[str]) -> None:
        """Delete topics; for tests and for `relay dev`."""
        for name, future in self._admin.delete_topics(list(names)).items() if names else ():
            self._result(future, f"delete topic {name}")

    def watermarks(self, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Return low and high watermark of each partition, as a read_uncommitted reader sees them."""
        numbers = list(partitions)
        _check_names([topic])
        low = self._offsets(topic, numbers, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        high = self._offsets(topic, numbers, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return {number: (low[number], high[number]) for number in numbers}

    def offsets_at(self, topic: str, partitions: Iterable[int], wall_ms: int) -> dict[int, int | None]:
        """Return for each partition the first offset of a record that is no older than that; None if all are older."""
        _check_names([topic])
        found = self._offsets(topic, list(partitions), OffsetSpec.for_timestamp(wall_ms))
        return {number: offset if offset >= 0 else None for number, offset in found.items()}

    def _offsets(self, topic: str, partitions: list[int], spec: OffsetSpec) -> dict[int, int]:
        """Ask again while a partition's leader moves or is new, until the time is over: then it is unreachable."""
        found: dict[int, int] = {}
        deadline = clock.monotonic() + self._timeout_s
        while len(found) < len(partitions):
            wanted = {TopicPartition(topic, number): spec for number in partitions if number not in found}
            futures = self._ask(
                partial(self._admin.list_offsets, wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED),
                f"list offsets of {topic}",
            )
            for place, future in futures.items():
                try:
                    found[place.partition] = future.result(self._timeout_s).offset
                except TimeoutError as error:
                    raise self._away(f"list offsets of {topic}[{place.partition}]") from error
                except KafkaException as error:
                    if _code(error) not in LEADER_MOVES:
                        raise self._sentence(error, f"list offsets of {topic}[{place.partition}]") from error
                    if clock.monotonic() > deadline:
                        raise self._away(f"find the leader of {topic}[{place.partition}]") from error
                    clock.sleep(_VISIBLE_PAUSE_S)
        return found

    def _settings(self, resources: list[ConfigResource]) -> dict[str, dict[str, str]]:
        """Return the settings in force; without the topics that this broker does not know, though the one asked before did."""
        futures = self._ask(lambda: self._admin.describe_configs(resources), "describe settings")
        found = {}
        for resource, future in futures.items():
            entries = self._unless_missing(future, f"describe settings of {resource.name}")
            if entries is not None:
                found[resource.name] = {name: entry.value or "" for name, entry in entries.items()}
        return found

    def _wait_for_leaders(self, wanted: dict[str, int]) -> None:
        """Poll until every broker-side partition has a leader: a new topic shows a moment after its creation."""
        deadline = clock.monotonic() + self._timeout_s
        while True:
            known = self._metadata().topics
            waiting = [
                name
                for name, partitions in wanted.items()
                if name not in known
                or len(known[name].partitions) < partitions
                or any(partition.leader < 0 for partition in known[name].partitions.values())
            ]
            if not waiting:
                return
            if clock.monotonic() > deadline:
                raise Unreachable(
                    f"topic = {waiting[0]}: it has no leader after {self._timeout_s:g} s; look at the brokers"
                )
            clock.sleep(_VISIBLE_PAUSE_S)

    def _metadata(self) -> Any:
        def listed() -> Any:
            soon = min(SOON_S, self._timeout_s)
            try:
                return self._admin.list_topics(timeout=soon)
            except KafkaException as error:
                if _code(error) not in _UNREACHABLE or soon == self._timeout_s:
                    raise
            self._tell_of_waiting()
            return self._admin.list_topics(timeout=self._timeout_s - soon)

        return self._ask(listed, "read the cluster's metadata")

    def _ask(self, call: Callable[[], T], doing: str) -> T:
        try:
            self._admin.poll(0)  # what the client has to say is kept until somebody asks, and this is of former calls
            if self._last_error == _CLOSED:
                self._last_error = ""
            return call()
        except KafkaException as error:
            raise self._sentence(error, doing) from error
        except SystemError as error:
            # The client hides what a signal's handler raises within its calls, such as an interrupt, behind an error of its own.
            raise error.__cause__ or error from None

    def _unless_missing(self, future: Future[T], doing: str) -> T | None:
        """Return the answer, or None if it is that the broker does not know the topic."""
        try:
            return self._result(future, doing)
        except ConfigError as refused:
            cause = refused.__cause__
            if isinstance(cause, KafkaException) and _code(cause) in MISSING:
                return None
            raise

    def _result(self, future: Future[T], doing: str) -> T:
        soon = min(SOON_S, self._timeout_s)
        try:
            if not wait([future], soon).done:
                self._tell_of_waiting()
            return future.result(self._timeout_s - soon)
        except KafkaException as error:
            raise self._sentence(error, doing) from error
        except TimeoutError as error:
            raise self._away(doing) from error

    def _tell_of_waiting(self) -> None:
        WAITING.info("waiting for brokers at %s, for up to %g s", self._servers, self._timeout_s)

    def _sentence(self, error: KafkaException, doing: str) -> Unreachable | ConfigError:
        if _code(error) in _UNREACHABLE:
            return self._away(doing)
        if _code(error) == KafkaError._DESTROY:
            self._admin.poll(0)  # which says so if this object is closed
            # Another thread has thrown the client away, since no broker answered it: the one that it made is left to all.
            return self._silent(doing)
        reason = error.args[0].str()
        if _code(error) in NO_RIGHT:
            return ConfigError(f"cannot {doing}: the broker does not allow it ({reason}); {DENIED_REMEDY}")
        return ConfigError(f"cannot {doing}: {reason}; correct the configuration")

    def _note_error(self, error: KafkaError) -> None:
        # "All brokers down" only repeats that nothing answers; the errors before it say why.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last_error = f": {error.str()}"

    def _note_closed(self, said: str) -> None:
        # No error to the client, which tries again: so a port behaves that wants TLS, or a name and a password, and gets none.
        if not self._last_error and "Disconnected" in said:
            self._last_error = _CLOSED

    def _away(self, doing: str) -> Unreachable:
        self._admin.poll(0)
        # The client keeps asking the broker it took for the controller, also when that one is gone: the next takes another.
        with suppress(KafkaException, Unreachable):  # Retry, at the next refusal: no thread or file is left, say, and the one that there is goes on.
            self._admin = AdminClient(self._given)
        return self._silent(doing)

    def _silent(self, doing: str) -> Unreachable:
        return Unreachable(
            f"bootstrap.servers = {self._servers}: no broker answers (cannot {doing}{self._last_error}); "
            f"{_remedy(self._last_error, login_of(self._given))}"
        )


class _Closed:
    """In the place of a client that another thread has closed."""

    def __getattr__(self, _name: str) -> NoReturn:
        raise Unreachable("the client that asks for topics is closed")


class _Ear:
    """The ``logger`` of the client, which hears all that it says."""

    def __init__(self, hear: Callable[[str], None]) -> None:
        self._hear = hear

    def log(self, _level: int, text: str, *args: Any) -> None:
        self._hear(text % args if args else text)


def _check_names(names: Iterable[str]) -> None:
    """Refuse what is no name, before the client is asked: of some it ends the process."""
    for name in names:
        if not is_topic_name(name):
            shown = name if len(name) <= TOPIC_CHARACTERS_MAX else f"{name[:20]}... ({len(name)} characters)"
            raise ConfigError(f"topic {shown!r}: not a topic's name; {TOPIC_REMEDY}")


def _remedy(last_error: str, login: Login | None) -> str:
    # A broker that refuses the handshake or the password is where the address says; librdkafka names the step, in capitals.
    if "SSL" in last_error or "SASL" in last_error or last_error == _CLOSED:
        settings = f'"sasl." settings ({login.where})' if login else '"sasl." settings'
        return f'correct "security.protocol", the certificates, the {settings} or the token to what that port of the broker wants'
    return "start it, or correct the address"


def _code(error: KafkaException) -> int:
    return int(error.args[0].code())


def _uuid_bytes(uuid: Any) -> bytes:
    """Return the 16 bytes of a Kafka Uuid; its text form is URL-safe base64 without padding."""
    return base64.urlsafe_b64decode(str(uuid) + "==")
