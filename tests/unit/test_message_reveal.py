"""`relay message reveal` says of a child that its attempt decides, instead of showing it; what is said of messages counts each once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from relay.cli import message as command
from relay.cli.main import app
from tests.contracts.queue_book import QueueBook
from tests.contracts.queue_media import NOW, child, message, settings
from tests.unit.test_queue_desk_names import CONFIG


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> QueueBook:
    """The queue that the command finds."""
    store = QueueBook(settings())

    @contextmanager
    def desk(config: object, who: str) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(store=lambda queue: store, audit=lambda *_: None, check_subscriber=lambda *_: None, who=who, config=config)

    monkeypatch.setattr(command, "QueueDesk", desk)
    return store


def test_a_child_of_an_undecided_attempt_is_refused_with_a_sentence(store: QueueBook, tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text(CONFIG)
    plain = store.put([message("a")], NOW, reveal=False)[0].handle
    made = store.put([child("b")], NOW)[0].handle
    words = ["message", "reveal", str(tmp_path / "relay.toml"), "credit", str(plain), str(made), str(made + 1)]

    said = CliRunner(env={"COLUMNS": "300"}).invoke(app, words)

    assert said.exit_code == 1
    assert "reveal: 1 of 3" in said.stdout
    assert f"handle {made}: made by an attempt that is not decided yet" in said.stdout
    assert f"not in a state for it: handle {made + 1};" in said.stdout
    again = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert (again["refused"], again["undecided"]) == ([plain, made, made + 1], [made])


@pytest.mark.parametrize("word", ["reveal", "withdraw", "expire"])
def test_a_handle_that_is_given_twice_is_one_message(store: QueueBook, tmp_path: Path, word: str) -> None:
    (tmp_path / "relay.toml").write_text(CONFIG)
    handle = str(store.put([message("a")], NOW, reveal=word != "reveal")[0].handle)

    said = CliRunner().invoke(app, ["message", word, str(tmp_path / "relay.toml"), "credit", handle, handle])

    assert (said.exit_code, said.stdout) == (0, f"{word}: 1 of 1\n")


@pytest.mark.parametrize(("more", "waits"), [([], 2), (["--dry-run"], 0)])
def test_what_is_done_once_more_keeps_the_rate(
    store: QueueBook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], waits: int
) -> None:
    (tmp_path / "relay.toml").write_text(CONFIG)
    handles = [str(one.handle) for one in store.put([message("a"), message("b")], NOW)]
    waited: list[command.Pace] = []
    monkeypatch.setattr(command.Pace, "wait", lambda pace: waited.append(pace))

    CliRunner().invoke(
        app,
        ["message", "redrive", str(tmp_path / "relay.toml"), "credit", *handles, "--even-done", "--subscriber", "clerk", "--rate", "1", *more],
    )

    assert len(waited) == waits
