"""`relay publisher resume` shows also what a worker that had not heard of it yet has put in the meantime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from relay.cli import publisher as command
from relay.cli import wishing
from relay.cli.main import app
from relay.control.queue_moving import OBEY_S
from relay.queue.desired import Subject, Wish
from relay.queue.message import NewMessage
from relay.queue.states import PublisherState
from tests.contracts.queue_book import QueueBook
from tests.contracts.queue_media import NOW, settings
from tests.unit.test_queue_desk_names import CONFIG

SOURCE = "/checkout"


def test_what_is_put_while_the_workers_have_not_heard_of_it_is_revealed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "relay.toml").write_text(CONFIG)
    store = QueueBook(settings())
    put = [store.put([NewMessage(SOURCE, "first", b"v")], NOW, reveal=False)[0].handle]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        put.extend(answer.handle for answer in store.put([NewMessage(SOURCE, "late", b"v")], NOW, reveal=False))

    @contextmanager
    def desk(config: object, who: str) -> Iterator[SimpleNamespace]:
        def wish(kind: command.Kind, queue: str, name: str, wanted: command.Wanted, reason: str) -> Wish:
            return Wish(Subject(kind, queue, name), wanted, who, reason, NOW)

        yield SimpleNamespace(store=lambda queue: store, wish=wish, names=lambda queue: ["credit"], config=config)

    monkeypatch.setattr(wishing, "QueueDesk", desk)
    monkeypatch.setattr(command.clock, "sleep", sleep)
    said = CliRunner().invoke(app, ["publisher", "resume", str(tmp_path / "relay.toml"), SOURCE, "--json"])

    assert (said.exit_code, slept) == (0, [OBEY_S])
    assert [view.state for view in store.views(put)] == [PublisherState.REVEALED] * 2
