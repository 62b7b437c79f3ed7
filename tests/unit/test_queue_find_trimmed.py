"""A page of messages is what there was at one moment: what others trim meanwhile does not end a look through the queue."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from relay.queue.message import MessageView
from relay.queue.port import Filter
from relay.queue.redriving import chosen
from relay.queue.stores.sql_queue import SqlQueue
from tests.contracts.queue_media import HOLDER, NOW, Medium, enter, put, settings


@pytest.mark.parametrize("name", ["sqlite", "log"])
def test_a_page_that_is_trimmed_while_it_is_read_does_not_hide_what_follows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    medium = Medium(name, f"{'log+' if name == 'log' else ''}sqlite:///queues.db", tmp_path)
    store = medium.open(settings("ann"))
    keeper = medium.open(store.settings)
    assert isinstance(store, SqlQueue)
    enter(store)
    handles = put(store, "a", "b", "c", "d")
    store.refuse("ann", [(one.ticket, "bad") for one in store.take("ann", HOLDER, 4, NOW)], NOW)
    monkeypatch.setattr("relay.queue.redriving.PAGE", 2)
    read = store._views
    trimmed: list[int] = []

    def after_the_keeper(asked: Sequence[int], **named: Any) -> list[MessageView]:
        if not trimmed:
            trimmed.append(keeper.trim(handles[:2]))
        return read(asked, **named)

    monkeypatch.setattr(store, "_views", after_the_keeper)

    found = [view.handle for view in chosen(store, Filter(unusable=True))]

    assert trimmed == [2]
    assert found[-2:] == handles[2:]
    medium.close()
