"""Whoever answers inquiries reads a topic that may not be there, or that it may not read, for as long as its process lives."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from relay.kafka import clients
from relay.kafka.inquiries import InquiryReader
from relay.kafka.settings import DefaultTiming
from relay.world import clock

LOOK_S = 0.05


def test_without_the_topic_it_hears_what_its_client_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept by the client, that is 34 MB a day."""
    heard: list[str] = []
    monkeypatch.setattr(clients, "LOOK_S", LOOK_S)
    monkeypatch.setattr(clients._Brokers, "told", lambda _, statistics: heard.append(statistics))
    monkeypatch.setattr(clients.Consumer, "list_topics", lambda *_: SimpleNamespace(topics={}))
    reader = InquiryReader({"bootstrap.servers": "127.0.0.1:1"}, DefaultTiming(), "shop.inquiries")
    until = clock.monotonic() + 10
    while not heard and clock.monotonic() < until:
        assert reader.poll() == []
        clock.sleep(LOOK_S)

    assert heard
    reader.close()
