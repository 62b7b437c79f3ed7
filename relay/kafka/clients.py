"""Kafka's clients, which show another password once they were refused and its file has another (`relay.kafka.logins`).

Each takes it by itself, in the thread that has heard of the refusal, behind the call that told it: inside a callback a client ends
the process if it is called, and from another thread it is not heard while its own one reads (confluent-kafka 2.16). Who only asks,
and never polls, has to ``hear`` after a failure. A connection that is open stays as it is; the next one, or the next time that the
brokers want to see the password on it, goes by the new one.

A client that hears from a broker that there are no brokers (one that is just being started or stopped says so) forgets all of
them, and looks for none any more, whatever its settings (librdkafka 2.10 to 2.16, its issue 5301): what is read or appended by it
waits for ever, without an error. One that is ``watched`` knows that of itself; whoever uses it makes another.

A client that has failed for good raises that out of the call that serves its reports. A ``flush`` of more than 0.2 s goes on serving
them over what is raised already (confluent-kafka 2.16), and what hears them may wipe that out: so no flush of ours is longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition
from confluent_kafka import admin as kafka_admin

from relay.kafka.bearer import Bearer
from relay.kafka.failures import has_timed_out, is_locked_out
from relay.kafka.logins import Credentials, Login, login_of
from relay.message.errors import ConfigError, Unreachable
from relay.world import clock

REFUSED_S: Final = 60.0
"""A client that is still refused says so again within half of this: for so long the files are looked at."""
LOOK_S: Final = 10.0
"""How often a watched client says whom it knows; one that nobody polls would keep all that it says."""
_SLICE_S: Final = 0.1
_LOOKS: Final = 2
_BROKER: Final = ('"source":"learned"', '"source":"configured"')
"""So a client's statistics call a broker, beside the threads that are none (``internal``, ``logical``). No name can hold a quote."""

_MADE_WITH: Final[set[frozenset[tuple[str, str]]]] = set()
"""The settings of TLS with which this process has made a client."""


class _Brokers:
    """Whether a client knows any broker."""

    def __init__(self) -> None:
        self._looks_without = 0

    def told(self, statistics: str) -> None:
        self._looks_without = 0 if any(one in statistics for one in _BROKER) else self._looks_without + 1

    @property
    def are_lost(self) -> bool:
        return self._looks_without >= _LOOKS  # between two of them another look for brokers may have begun


class _Shown:
    """What one client shows, and whether brokers have refused that lately."""

    def __init__(self, login: Login, told: Callable[[KafkaError], object] | None) -> None:
        self._login = login
        self._told = told
        self._now = login.in_force
        self._until = float("-inf")
        self.is_refused = False

    def settings(self) -> dict[str, Any]:
        return {"sasl.username": self._now.user, "sasl.password": self._now.password, "error_cb": self._noticed}

    def _noticed(self, error: KafkaError) -> None:
        if is_locked_out(error):
            self._until = clock.monotonic() + REFUSED_S
            self.is_refused = True
        if self._told is not None:
            self._told(error)

    def another(self) -> Credentials | None:
        """Return what to show in place of what was refused, if there is anything else by now."""
        found = self._login.look()
        if found == self._now:
            self.is_refused = clock.monotonic() < self._until
            return None
        self._now, self.is_refused = found, False
        return found


class _Watched:
    """What consumers and producers know of themselves."""

    _brokers: _Brokers | None
    _bearer: Bearer | None

    @property
    def is_lost(self) -> bool:
        """Has it forgotten all brokers, for ever?"""
        return self._brokers is not None and self._brokers.are_lost

    @property
    def is_overdue(self) -> bool:
        """Has it not asked for its next token in time? The next connection would be refused, until a clock that was put back has caught up."""
        return self._bearer is not None and self._bearer.is_overdue


class Doubt:
    """Whether a producer that is not watched may have lost all brokers: ``told`` hears its reports, and keeps neither it nor its owner."""

    def __init__(self) -> None:
        self.is_there = False

    def told(self, error: KafkaError | None, _record: object = None) -> None:
        """Take one report."""
        self.is_there = self.is_there or (error is not None and has_timed_out(error))


def _shown(settings: Mapping[str, Any]) -> _Shown | None:
    login = login_of(settings)
    return None if login is None else _Shown(login, settings.get("error_cb"))


def _bearer(settings: Mapping[str, Any]) -> Bearer | None:
    found = settings.get("oauth_cb")
    return found if isinstance(found, Bearer) else None


def _with(shown: _Shown | None, settings: Mapping[str, Any], brokers: _Brokers | None = None) -> dict[str, Any]:
    looking = {} if brokers is None else {"statistics.interval.ms": round(LOOK_S * 1000), "stats_cb": brokers.told}
    return {**settings, **looking, **(shown.settings() if shown is not None else {})}


def _renew(client: confluent_kafka.Consumer | confluent_kafka.Producer, shown: _Shown | None) -> None:
    """Have a client show something else from now on, if it was refused and there is anything else by now."""
    if shown is not None and shown.is_refused and (another := shown.another()):
        client.set_sasl_credentials(another.user, another.password)


def _make(client: Callable[[dict[str, Any]], None], settings: dict[str, Any]) -> None:
    """Make a client; of settings that it does not take raise ConfigError.

    Files of certificates and keys with which one was made may be under way of being renewed, which passes: Unreachable.
    """
    files = frozenset((name, str(value)) for name, value in settings.items() if name.startswith("ssl."))
    try:
        client(settings)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._INVALID_ARG:
            raise  # no thread or file is left, say
        said = error.args[0].str()
        if "ssl" not in said.lower():
            raise ConfigError(f"[kafka]: {said}; correct the setting") from None
        remedy = "correct the setting, its file, or the password of its key"
        raise (Unreachable if files in _MADE_WITH else ConfigError)(f"[kafka]: {said}; {remedy}") from None
    _MADE_WITH.add(files)


class Consumer(_Watched, confluent_kafka.Consumer):
    """A consumer; one that is ``watched`` has to be polled all the time."""

    def __init__(self, settings: Mapping[str, Any], *, watched: bool = False) -> None:
        self._shown = _shown(settings)
        self._brokers = _Brokers() if watched else None
        self._bearer = _bearer(settings)
        _make(super().__init__, _with(self._shown, settings, self._brokers))

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        """Return records and events; see the client's own."""
        found = super().consume(num_messages, timeout)
        _renew(self, self._shown)
        return found

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """Return where a partition begins and where it ends; see the client's own.

        That asks for both at once. Where the first question fails and the other does not, as when a leader has just come or gone, it
        gives the end for both, and no error: whoever reads from there on would read nothing.
        """
        low, high = super().get_watermark_offsets(partition, timeout, cached)
        if 0 < high == low:
            (begin,) = self.offsets_for_times([TopicPartition(partition.topic, partition.partition, OFFSET_BEGINNING)], timeout)
            if begin.error is not None:
                raise KafkaException(begin.error)
            low = min(begin.offset, high)
        return low, high

    def hear(self) -> None:
        """Serve what the client has to say, after a question that failed; for a consumer to which nothing is assigned."""
        self.consume(1, 0)


class Producer(_Watched, confluent_kafka.Producer):
    """A producer; one that is ``watched`` has to be polled all the time."""

    def __init__(self, settings: Mapping[str, Any], *, watched: bool = False) -> None:
        self._shown = _shown(settings)
        self._brokers = _Brokers() if watched else None
        self._bearer = _bearer(settings)
        _make(super().__init__, _with(self._shown, settings, self._brokers))

    def poll(self, timeout: float = -1) -> int:
        """Serve reports; see the client's own."""
        served = super().poll(timeout)
        _renew(self, self._shown)
        return served

    def flush(self, timeout: float = -1) -> int:
        """Wait for reports; see the client's own."""
        until = clock.monotonic() + timeout if timeout >= 0 else float("inf")
        while True:
            left = super().flush(max(0.0, min(_SLICE_S, until - clock.monotonic())))
            _renew(self, self._shown)
            if not left or clock.monotonic() >= until:
                return left


class AdminClient(kafka_admin.AdminClient):
    """An administrative client, which its owner throws away after a failure: the next one shows what is in force then."""

    def __init__(self, settings: Mapping[str, Any], **more: Any) -> None:
        self._shown = _shown(settings)
        _make(partial(super().__init__, **more), _with(self._shown, settings))

    def poll(self, timeout: float = -1) -> int:
        """Serve what the client has to say; see its own."""
        served: int = super().poll(timeout)
        if self._shown is not None and self._shown.is_refused:
            self._shown.another()
        return served
