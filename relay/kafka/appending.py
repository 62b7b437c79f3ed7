"""Records appended outside any transaction, with a note of what is acknowledged: monitor entries, dead letters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message

from relay.kafka.callbacks import weakly
from relay.kafka.clients import Producer
from relay.kafka.failures import DENIED_REMEDY, is_denied, is_refusal, sentence
from relay.message.envelope import Headers
from relay.message.errors import InDoubt, Stopped, Unreachable
from relay.message.record import LogPartition

FULL_WAIT_S: Final = 0.05


class Bundle:
    """Records that count as acknowledged together."""

    __slots__ = ("closed", "open", "token")

    def __init__(self, token: object) -> None:
        self.token = token
        self.open = 0
        self.closed = False


class Appending:
    """An idempotent producer; bundles are acknowledged in the order in which they were closed."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._producer = Producer(dict(settings))
        self._bundles: deque[Bundle] = deque()
        self._failed: KafkaError | None = None
        self._refused: Stopped | None = None
        self._failing = weakly(self._fail)

    def bundle(self, token: object) -> Bundle:
        """Open a bundle; ``token`` is what ``acknowledged`` returns for it."""
        made = Bundle(token)
        self._bundles.append(made)
        return made

    def append(
        self, bundle: Bundle, partition: LogPartition, key: bytes, value: bytes | None, headers: Headers | None = None
    ) -> None:
        """Append one record as part of ``bundle``."""
        bundle.open += 1
        failing = self._failing

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is None:
                bundle.open -= 1
            else:
                failing(error, partition.topic)

        produce: Callable[..., None] = self._producer.produce
        while True:
            try:
                produce(
                    partition.topic,
                    key=key,
                    value=value,
                    partition=partition.partition,
                    headers=headers or [],
                    on_delivery=delivered,
                )
            except BufferError:
                self._producer.poll(FULL_WAIT_S)
            except KafkaException as error:
                self._fail(error.args[0], partition.topic)
                raise self._refused or error from error
            else:
                return

    def close(self, bundle: Bundle) -> None:
        """Nothing more joins this bundle."""
        bundle.closed = True

    def acknowledged(self) -> list[object]:
        """Serve delivery reports and return the tokens of the bundles that are wholly acknowledged.

        Raises Unreachable if a record could not be appended: whether it is there is unknown, and appending it again
        is harmless, which recovery does. Raises Stopped if the broker refuses the record, or the right: it would every time.
        """
        self._producer.poll(0)
        if self._refused is not None:
            raise self._refused
        if self._failed is not None:
            raise Unreachable(f"a record could not be appended ({self._failed.name()}); it is written again at recovery")
        done = []
        while self._bundles and self._bundles[0].closed and not self._bundles[0].open:
            done.append(self._bundles.popleft().token)
        return done

    def flush(self, timeout_s: float) -> None:
        """Wait for every acknowledgement; InDoubt if some stay out, Stopped if a record is refused."""
        try:
            left = self._producer.flush(timeout_s)
        except KafkaException as error:  # its own end
            if is_denied(error.args[0]):
                raise Stopped(f"nothing can be appended outside a transaction: {sentence(error)}; {DENIED_REMEDY}") from error
            raise InDoubt(f"records appended outside a transaction are in doubt: {sentence(error)}") from error
        if self._refused is not None:
            raise self._refused
        if left or self._failed is not None:
            reason = self._failed.name() if self._failed is not None else f"{left} reports missing"
            raise InDoubt(f"records appended outside a transaction are in doubt: {reason}")

    def _fail(self, error: KafkaError, topic: str) -> None:
        self._failed = error
        if is_refusal(error):
            self._refused = Stopped(
                f"a record for {topic!r} is refused ({error.name()}); raise its max.message.bytes to more than the log's, "
                "and \"message.max.bytes\" of [kafka] if it is set, and start again: it is appended then"
            )
        elif is_denied(error):
            self._refused = Stopped(f"a record for {topic!r} cannot be written: {error.name()}: {error.str()}; {DENIED_REMEDY}")
