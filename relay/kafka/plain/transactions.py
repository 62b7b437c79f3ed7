"""A producer as applications have it, whose transactions end as it is told to: traffic for trials, not for the relay.

A stray EndTxn of an earlier commit could make part of an aborted transaction visible (KAFKA-17754), and that would be
this producer's fault, not the relay's: before each transaction that it will abort it takes a new epoch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from relay.kafka.appender import Record
from relay.message.errors import InDoubt

TIMEOUT_S: Final = 10.0


class PlainTransactions:
    """One producer, used by one thread; after any trouble its successor fences it."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        self._producer: Producer | None = None

    def send(self, records: Iterable[Record], *, abort: bool) -> None:
        """Append all in one transaction and end it. Raises InDoubt: it may hold; send the same again, or not."""
        try:
            if abort:
                self.discard()
            producer = self._open()
            producer.begin_transaction()
            for topic, partition, key, value, headers in records:
                producer.produce(topic, value=value, key=key, partition=partition, headers=list(headers))
            if producer.flush(TIMEOUT_S):
                raise InDoubt("some records have no delivery report")
            end = producer.abort_transaction if abort else producer.commit_transaction
            end(TIMEOUT_S)
        except (KafkaException, BufferError, InDoubt) as error:
            # In doubt, whatever it was: the successor's init_transactions ends what is open.
            self.discard()
            raise InDoubt(f"the transaction may hold or not: {error}") from error

    def discard(self) -> None:
        """Throw the producer away."""
        if self._producer is not None:
            with contextlib.suppress(KafkaException):
                self._producer.purge()
            self._producer = None

    def _open(self) -> Producer:
        if self._producer is None:
            producer = Producer(self._settings)
            producer.init_transactions(TIMEOUT_S)
            self._producer = producer
        return self._producer
