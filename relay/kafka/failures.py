"""Kafka failures sorted by what they say: of this record, of a right, of the brokers for now, or of the client for good.

A transaction's failure never says that it had no effect: after one, the producer instance is thrown away and the
monitor tells what happened. So nothing here says "abort and go on".
"""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException

from relay.message.errors import ConfigError, RelayError, Unreachable

_REFUSED: Final = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG, KafkaError.INVALID_MSG_SIZE,
     KafkaError.INVALID_TIMESTAMP, KafkaError.RECORD_LIST_TOO_LARGE}
)
"""The broker looked at the record and will never take it."""

NO_RIGHT: Final = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
     KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
)
"""The broker knows who asks, and does not let them."""

LOCKED_OUT: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
"""A broker does not believe who we are, which passes: the password may have changed, and another process has the new one. What
was under way when a connection had to show it again ends with this, too, and may have been done."""

_STOP: Final = NO_RIGHT | {KafkaError.UNSUPPORTED_VERSION}
"""A person must change a right or the broker."""

LET_GO: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""What the client says of records that it let go by itself: why, it says elsewhere."""

DENIED_REMEDY: Final = "grant the right or use a role that has it"

LOCKED_OUT_REMEDY: Final = "; correct the name and the password, or see to what renews the token, if they are not being changed now"

_PASSING: Final = LOCKED_OUT | frozenset(
    {KafkaError.UNKNOWN, KafkaError.REQUEST_TIMED_OUT, KafkaError.NETWORK_EXCEPTION, KafkaError.KAFKA_STORAGE_ERROR,
     KafkaError._TRANSPORT, KafkaError._TIMED_OUT}
)
"""The broker failed at a request, or refuses our password for now, and the client asks again. An event of the consumer's never
calls itself retriable: the client says so of transactions only."""

MISSING: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
"""No broker has such a topic or partition, or none has heard of it yet."""

LEADER_MOVES: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
    }
)
"""Ask again who leads the partition. A new topic's leader, too, answers so for a moment after the metadata names it."""


def kafka_error(failure: BaseException) -> KafkaError | None:
    """Return the KafkaError inside an exception, also inside a SystemError raised across a callback."""
    seen: BaseException | None = failure
    while seen is not None:
        if isinstance(seen, KafkaException) and seen.args and isinstance(seen.args[0], KafkaError):
            return seen.args[0]
        seen = seen.__cause__ or seen.__context__
    return None


def is_refusal(error: KafkaError) -> bool:
    """Did the broker refuse this very record, whatever else is in its batch?"""
    return error.code() in _REFUSED


def sentence(failure: BaseException) -> str:
    """Return the failure as one line without payload or secret."""
    error = kafka_error(failure)
    return f"{error.name()}: {error.str()}" if error is not None else f"{type(failure).__name__}: {failure}"


def is_end_of_partition(error: KafkaError) -> bool:
    """Is this event only the news that the reader has caught up?"""
    return bool(error.code() == KafkaError._PARTITION_EOF)


def is_expelled(error: KafkaError) -> bool:
    """Was the consumer silent for so long that it left the group by itself? Its next poll joins again."""
    return bool(error.code() == KafkaError._MAX_POLL_EXCEEDED)


def is_passing(error: KafkaError) -> bool:
    """Did the broker fail at a fetch, or refuse it to a password, which says nothing of the position?"""
    return error.code() in _PASSING


def is_end(error: KafkaError) -> bool:
    """Has the client failed for good? It takes nothing any more; only of the call that it raises this from it says so."""
    return bool(error.fatal() or error.code() == KafkaError._FATAL)


def has_timed_out(error: KafkaError) -> bool:
    """Did the client give a record up because nobody had taken it for too long? It may have lost all brokers (`relay.kafka.clients`)."""
    return bool(error.code() == KafkaError._MSG_TIMED_OUT)


def is_of_group(error: KafkaError) -> bool:
    """Is it only that a group may not be looked for? Who reads by hand names one, joins none, and reads all the same."""
    return bool(error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED)


def is_locked_out(error: KafkaError) -> bool:
    """Does a broker not believe who we are?"""
    return error.code() in LOCKED_OUT


def is_taken_over(error: KafkaError) -> bool:
    """Did another client of the same transactional id, or a timeout of its transaction, end this one? Brokers answer both alike."""
    return error.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


def is_denied(error: KafkaError) -> bool:
    """Does the broker refuse the right or the request itself?"""
    return error.code() in _STOP


def is_still_ending(error: KafkaError) -> bool:
    """Are the brokers still busy with the last transaction of this id, whose end they have not written everywhere?"""
    return bool(error.code() == KafkaError.CONCURRENT_TRANSACTIONS)


def unavailable(
    said: str, error: KafkaError | None, remedy: str = "", *, denied: type[RelayError] = ConfigError
) -> RelayError:
    """Return what to raise: ``denied`` for want of a right, which comes by no waiting, else Unreachable with its remedy."""
    if error is None:
        return Unreachable(f"{said}{remedy}")
    return (denied if is_denied(error) else Unreachable)(f"{said}{remedy_of(error, remedy)}")


def remedy_of(error: KafkaError, otherwise: str = "") -> str:
    """Return what helps against a broker's refusal, as the end of its sentence, or what helps ``otherwise``."""
    if is_denied(error):
        return f"; {DENIED_REMEDY}"
    return LOCKED_OUT_REMEDY if is_locked_out(error) else otherwise
