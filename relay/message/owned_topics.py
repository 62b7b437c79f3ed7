"""Topics of the relay's own, by their names: none of them is a log or a destination."""

from __future__ import annotations

from typing import Final

from relay.message.errors import ConfigError

_OWNED: Final = frozenset({"deadletter", "control", "journal", "decisions", "inquiries"})


def is_owned_topic(relay: str, topic: str) -> bool:
    """Tell whether a topic's name is one that the relay called ``relay`` gives to its own topics."""
    head, dot, rest = topic.partition(".")
    return head == relay and bool(dot) and (rest in _OWNED or rest.endswith(".monitor"))


def refuse_own_topic(relay: str, topic: str, option: str = "topic") -> None:
    """Raise ConfigError for one of the relay's own topics: a capture among its decisions stops everybody who reads them."""
    if is_owned_topic(relay, topic):
        raise ConfigError(f"{option} {topic}: a topic of the relay's own is not a log; name a log topic, which a route delivers")
