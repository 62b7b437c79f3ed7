"""Which of Kafka's requests tests keep back, beside those that `relay chaos` does."""

from __future__ import annotations

from typing import Final

from relay.chaos.frame_proxy import PRODUCE, Match

LIST_OFFSETS: Final = 2
API_VERSIONS: Final = 18
ADD_OFFSETS_TO_TXN: Final = 25


def produce_to(topic: str) -> Match:
    """Match a Produce request to ``topic``."""
    return lambda request: request.api_key == PRODUCE and request.produce_topic() == topic
