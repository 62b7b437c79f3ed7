"""The publisher's producer: a record counts as appended when every replica in sync has it, and only then.

One idempotent producer serves all threads. Its delivery reports are served by one thread; a ``Receipt`` gathers
the reports of the records that belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from relay.kafka.client_log import ClientLog
from relay.kafka.clients import Producer
from relay.kafka.failures import LET_GO, has_timed_out, is_end, is_locked_out, remedy_of, sentence
from relay.kafka.logins import refusal_of
from relay.kafka.settings import TimingLike, producer
from relay.kafka.topics import BATCH_BYTES, TopicFacts, Topics, fitting_batches, numeric_setting
from relay.message.envelope import Headers
from relay.message.errors import CaptureError, ConfigError, Unreachable
from relay.message.owned_topics import refuse_own_topic
from relay.message.record import TOPIC_REMEDY, is_topic_name
from relay.world import clock, schedule

_POLL_S: Final = 0.1
_FULL_QUEUE_PAUSE_S: Final = 0.001
_CLOSE_S: Final = 5.0
_ASK_S: Final = 5.0
REFUSED_S: Final = 31.0
"""The client repeats an error every 30 seconds, if not sooner."""
_CLOSED: Final = "the log takes nothing from this publisher any more: it was closed"
_LOST: Final = KafkaError(KafkaError._ALL_BROKERS_DOWN, "the client has forgotten all brokers, and another takes its place")
_OVERDUE: Final = KafkaError(KafkaError._AUTHENTICATION, "the client has not asked for its next token, and another takes its place")
DEFAULT_MESSAGE_BYTES: Final = 1_000_000
"""librdkafka's ``message.max.bytes`` when the user gives none."""


class Record(NamedTuple):
    """One record to append."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Receipt:
    """The delivery reports of ``count`` records: waited for by one thread, told by the serving thread."""

    __slots__ = ("_left", "_lock", "failure")

    def __init__(self, count: int) -> None:
        self.failure: KafkaError | None = None
        self._left = count
        self._lock = schedule.lock()
        if count:
            self._lock.acquire()

    def told(self, error: KafkaError | None, _: object) -> None:
        """Take one report."""
        if error is not None:
            self.failure = error
        self._left -= 1
        if self._left == 0:
            self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Wait for the last report, failed or not; False if it did not come in time."""
        return self._lock.acquire(timeout=max(seconds, 0.0))

    @property
    def is_complete(self) -> bool:
        """Has every report come?"""
        return self._left <= 0


class Appender:
    """Appends records and tells what the topics are like. Use from any thread.

    The own topics of ``relay``, if its name is given, are none to append to.
    """

    def __init__(self, kafka: Mapping[str, str], timing: TimingLike, relay: str | None = None) -> None:
        self._relay = relay
        self._kafka = kafka
        self._settings = producer(kafka, timing, **_prompt(kafka), log_level=3)
        self._message_bytes = int(kafka.get("message.max.bytes", DEFAULT_MESSAGE_BYTES))
        self._batch_bytes = int(kafka.get("batch.size", BATCH_BYTES))
        self._topics = Topics(kafka, timing)
        self._facts: dict[str, TopicFacts] = {}
        self._fatal = False
        self._end: KafkaError | None = None
        self._closing = False
        self._renewing = schedule.lock()
        self._refused_at = float("-inf")
        self._log = ClientLog()
        self._producer = self._make()
        self._retired: list[Producer] = []
        self._server = schedule.start_thread("relay-append-reports", self._serve_reports)

    def append(self, records: Sequence[Record], receipt: Receipt, deadline: float) -> None:
        """Hand over all records, in order; ``deadline`` is on the monotonic clock.

        Raises CaptureError; records handed over before may still arrive then.
        """
        if self._closing:
            raise CaptureError(_CLOSED)
        if self._fatal:
            self._renew()
        used = self._producer
        produce = used.produce
        told = receipt.told
        asked: set[str] = set()
        for topic, partition, key, value, headers in records:
            while True:
                try:
                    produce(topic, value, key, partition, on_delivery=told, headers=headers)  # type: ignore[arg-type]
                    break
                except BufferError as error:
                    if clock.monotonic() >= deadline:
                        # Abort: what is in the queue belongs to a capture that will not commit.
                        raise CaptureError(
                            "the producer's queue stays full; the brokers may be away, or raise "
                            "queue.buffering.max.messages"
                        ) from error
                    clock.sleep(_FULL_QUEUE_PAUSE_S)
                except RuntimeError as error:
                    if not self._closing:
                        raise
                    raise CaptureError(_CLOSED) from error  # by another thread, since this began
                except KafkaException as error:
                    if topic not in asked and _is_unheard_of(error):
                        asked.add(topic)
                        _ask_partitions(used, topic, deadline - clock.monotonic())
                        continue
                    # Of an earlier one it is no news: its successor, renewed in its turn, would take records that nobody reports.
                    if is_end(error.args[0]):
                        known = self._end if self._fatal else None  # why it ended is told once, and behind that only that it did
                        self._replace_next(used, known or error.args[0])
                    raise CaptureError(f"topic {topic}: a message was refused: {self.reason(error.args[0])}") from error
        if used is not self._producer:
            # Another thread has replaced it, and it may have been served for the last time before it took these.
            raise CaptureError("the producer was replaced while it took the messages; run the block again")

    def reason(self, failure: KafkaError, remedy: str = "") -> str:
        """Return why a record failed, and what helps; of what a client had when it ended, why that was."""
        if has_timed_out(failure) and self._is_locked_out:
            return f"{refusal_of(self._kafka)}{remedy}"
        cause = self._end if self._end is not None and (is_end(failure) or failure.code() in LET_GO) else failure
        return f"{cause.str()}{remedy_of(cause, remedy)}"

    def silence(self) -> str:
        """Return why no report came, as far as that is known."""
        return refusal_of(self._kafka) if self._is_locked_out else "no delivery report came"

    @property
    def _is_locked_out(self) -> bool:
        return clock.monotonic() - self._refused_at < REFUSED_S

    def topic(self, name: str, wait_s: float = 0.0) -> TopicFacts:
        """Return the facts of a topic, known or asked for now, and again for ``wait_s`` seconds while it is missing.

        Raises ConfigError for one that does not exist, is compacted or the relay's own, Unreachable.
        """
        facts = self._facts.get(name)
        if facts is None:
            # Looked at here: the client ends the process when it is asked about what is no UTF-8.
            if not is_topic_name(name):
                raise ConfigError(f"topic {name!r}: not a topic's name; {TOPIC_REMEDY}")
            if self._relay is not None:
                refuse_own_topic(self._relay, name)
            facts = self.describe([name], wait_s).get(name)
            if facts is None:
                raise ConfigError(f"topic {name!r} does not exist; create it before publishing to it")
            if "compact" in facts.settings.get("cleanup.policy", "delete"):
                raise ConfigError(
                    f"topic {name}: cleanup.policy = {facts.settings['cleanup.policy']} could drop a committed "
                    "message in favour of an aborted one; publish to a topic whose cleanup.policy is delete"
                )
            self._facts[name] = facts
            self._fit()
        return facts

    def record_bytes(self, facts: TopicFacts) -> int:
        """Return how large a record of this topic may be, with key and headers."""
        return min(self._message_bytes, numeric_setting(facts.settings, "max.message.bytes", self._message_bytes))

    def describe(self, names: Sequence[str], wait_s: float = 0.0) -> dict[str, TopicFacts]:
        """Ask for the topics' facts; without the right to read settings, those stay empty."""
        try:
            return self._topics.describe(names, wait_s=wait_s)
        except ConfigError:
            # Not a failure: the broker checks its own limits again; retention is then taken as unknown.
            return self._topics.describe(names, settings=False, wait_s=wait_s)

    def refresh(self) -> None:
        """Ask again for every known topic: partitions may have been added, or the topic recreated."""
        self._facts = self.describe(list(self._facts))
        self._fit()

    def known_topics(self) -> list[TopicFacts]:
        """Return the facts of the topics published to."""
        return list(self._facts.values())

    def forget(self, names: Sequence[str]) -> None:
        """Ask for these topics again before they are used again: an append to them failed."""
        for name in names:
            self._facts.pop(name, None)

    def close(self) -> None:
        """Wait shortly for what is under way, then end the client: a forgotten one would go on looking for its brokers."""
        self._closing = True
        self._server.join()
        for client in (*self._retired, self._producer):
            self._let_go(client)  # first: the client's own close would wait for what is left until it times out
            client.close()
        self._topics.close()

    def _serve_reports(self) -> None:
        while not self._closing:
            while self._retired:
                self._let_go(self._retired.pop())
            used = self._producer
            self._hear(used, used.poll, _POLL_S)
            if used.is_lost or used.is_overdue:
                self._replace_next(used, _LOST if used.is_lost else _OVERDUE)

    def _let_go(self, client: Producer) -> None:
        """Wait shortly for what is under way, and report what is left as failed.

        Whoever gives a replaced one to this keeps it no longer: it would keep all that it says of itself.
        """
        if not client.is_lost:
            self._hear(client, client.flush, _CLOSE_S)
        client.purge()
        self._hear(client, client.flush, _CLOSE_S)

    def _hear(self, client: Producer, call: Callable[[float], object], seconds: float) -> None:
        """Serve reports; the client raises its own end out of this, which must not end the thread that all captures wait for."""
        try:
            call(seconds)
        except KafkaException as error:
            self._replace_next(client, error.args[0])

    def _replace_next(self, client: Producer, why: KafkaError) -> None:
        """Let the next append take another producer, unless it has one already; ``why`` is told of records that this one lets go."""
        self._end = why
        with self._renewing:
            if client is self._producer:
                self._fatal = True

    def _make(self) -> Producer:
        return Producer({**self._settings, "error_cb": self._noticed, "logger": self._log}, watched=True)

    def _noticed(self, error: KafkaError) -> None:
        # Anything else is the client's own business: the delivery reports tell what it led to, but not by which password.
        if is_locked_out(error):
            self._refused_at = clock.monotonic()

    def _fit(self) -> None:
        """Let the next append take a new producer, as after a fatal error, if a topic takes less than a batch of this one."""
        with self._renewing:  # one that is just being made has read the settings already
            batches = fitting_batches(self._kafka, list(self._facts.values()))
            if batches.get("batch.size", self._batch_bytes) < self._batch_bytes:
                self._batch_bytes = batches["batch.size"]
                self._settings.update(batches)
                self._end, self._fatal = None, True

    def _renew(self) -> None:
        """Take a new producer: one has ended, or its batches are too large for a topic."""
        with self._renewing:
            if not self._fatal:
                return  # another thread was faster
            try:
                made = self._make()
            except (KafkaException, Unreachable) as error:  # no thread or file is left, say: the next append tries again
                raise CaptureError(f"no producer can be made in place of one that has ended: {sentence(error)}; run the block again") from error
            old, self._producer = self._producer, made
            self._fatal = False
            self._retired.append(old)  # last: whoever still finds it in its place gives it nothing too late for its last reports


def _is_unheard_of(error: KafkaException) -> bool:
    """Does the client know no such partition?"""
    return bool(error.args[0].code() == KafkaError._UNKNOWN_PARTITION)


def _ask_partitions(client: Producer, topic: str, wait_s: float) -> None:
    """Have a client ask for a topic's partitions: of added ones it hears by itself minutes after whoever describes the topic."""
    if wait_s > 0:
        with suppress(KafkaException):  # what it is asked for will be refused, with the reason
            client.list_topics(topic, timeout=min(wait_s, _ASK_S))


def _prompt(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Return what differs from other producers, unless the user says so himself.

    A capture waits for its reports while its database holds locks, so it does not linger for company, which would save the
    broker a third of its work for it ("linger.ms"); compressing single messages costs both sides more than their bytes.
    """
    wanted = {"linger.ms": 0, "socket.nagle.disable": True, "compression.type": "none"}
    return {key: value for key, value in wanted.items() if key not in kafka}
