"""`relay publisher resume` shows also what a worker that had not heard of it yet has put in the meantime."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import Result
from typer.testing import CliRunner

from relay.cli import publisher as command
from relay.cli import wishing
from relay.cli.main import app
from relay.control.queue_moving import OBEY_S
from relay.queue.desired import Desired, Kind, Subject, Wanted, Wish
from relay.queue.message import NewMessage
from relay.queue.states import PublisherState
from tests.contracts.queue_book import QueueBook
from tests.contracts.queue_media import NOW, settings
from tests.unit.test_queue_desk_names import CONFIG

SOURCE = "/checkout"


def resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: QueueBook, sleep: Callable[[float], None], latest: Desired) -> Result:
    """Run the command; ``latest`` is what the control topic has once it has slept."""
    return run(tmp_path, monkeypatch, store, sleep, latest, "resume", SOURCE, "--json")


def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: QueueBook, sleep: Callable[[float], None], latest: Desired, word: str, *more: str
) -> Result:
    (tmp_path / "relay.toml").write_text(CONFIG)

    @contextmanager
    def desk(config: object, who: str) -> Iterator[SimpleNamespace]:
        def wish(kind: Kind, queue: str, name: str, wanted: Wanted, reason: str) -> Wish:
            wish = Wish(Subject(kind, queue, name), wanted, who, reason, NOW)
            latest.add(*wish.encode())
            return wish

        yield SimpleNamespace(
            store=lambda queue: store, wish=wish, names=lambda queue: ["credit"], config=config, latest=lambda: latest
        )

    monkeypatch.setattr(wishing, "QueueDesk", desk)
    monkeypatch.setattr(command.clock, "sleep", sleep)
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, ["publisher", word, str(tmp_path / "relay.toml"), *more])


def test_what_is_put_while_the_workers_have_not_heard_of_it_is_revealed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = QueueBook(settings())
    put = [store.put([NewMessage(SOURCE, "first", b"v")], NOW, reveal=False)[0].handle]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        put.extend(answer.handle for answer in store.put([NewMessage(SOURCE, "late", b"v")], NOW, reveal=False))

    said = resume(tmp_path, monkeypatch, store, sleep, Desired())

    assert (said.exit_code, slept) == (0, [OBEY_S])
    assert (json.loads(said.stdout)["revealed"], "paused_again" in said.stdout) == (2, False)
    assert [view.state for view in store.views(put)] == [PublisherState.REVEALED] * 2


def test_of_a_publisher_that_is_paused_again_meanwhile_nothing_is_revealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it puts behind that word waits for the next one, and nobody takes back what was shown."""
    store, latest = QueueBook(settings()), Desired()
    put: list[int] = []

    def sleep(_: float) -> None:
        latest.add(*Wish(Subject(Kind.PUBLISHER, "credit", SOURCE), Wanted.PAUSE, "eve", "", NOW).encode())
        put.extend(answer.handle for answer in store.put([NewMessage(SOURCE, "kept", b"v")], NOW, reveal=False))

    said = resume(tmp_path, monkeypatch, store, sleep, latest)

    assert said.exit_code == 0, said.output
    assert {key: json.loads(said.stdout)[key] for key in ("revealed", "paused_again")} == {"revealed": 0, "paused_again": 1}
    assert [view.state for view in store.views(put)] == [PublisherState.PUT]


@pytest.mark.parametrize(
    ("word", "source", "is_noted"),
    [("pause", "credit/approval", True), ("pause", "credit/eve", False), ("pause", "debit/approval", False), ("pause", SOURCE, False), ("resume", "credit/approval", False)],
)
def test_who_pauses_handlers_as_a_publisher_is_told_what_has_them_wait(
    word: str, source: str, is_noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child follows its attempt: put hidden without one, nobody would show it in its order."""
    said = run(tmp_path, monkeypatch, QueueBook(settings()), lambda _: None, Desired(), word, source)

    assert said.exit_code == 0, said.output
    assert ("`relay subscriber pause` approval" in said.stdout) is is_noted
