"""A subscriber's name that was misspelt is said to be unknown, and not that nothing was found of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from relay.cli.main import app
from relay.config.loading import load
from relay.control import in_doubt_reading, queue_desk
from relay.control.queue_desk import QueueDesk
from relay.message.errors import ConfigError, Unreachable
from relay.queue.desired import Audit, Desired, Kind, Move, Step, Subject, Wanted, Wish
from relay.run.supervisor import Supervisor
from relay.world import clock

CONFIG = """\
[relay]
name = "shop"
instance = "one"
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[queues.credit]
store = "sqlite:///credit.db"
subscribers = { approval = {}, clerks = { pool = ["ann", "bob"] } }
"""


def test_a_misspelt_subscriber_is_named_with_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text(CONFIG)
    desk = QueueDesk.__new__(QueueDesk)
    desk.config = load(tmp_path / "relay.toml")

    desk.check_subscriber("credit", None)
    desk.check_subscriber("credit", "ann")
    with pytest.raises(ConfigError, match="no such subscriber; it has approval, ann, bob"):
        desk.check_subscriber("credit", "approvl")


def test_who_would_work_as_a_pool_is_told_its_members(tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text(CONFIG)
    command = f"work app.py --config {tmp_path / 'relay.toml'} --queue credit --subscriber clerks"

    ended = CliRunner().invoke(app, command.split())

    assert ended.exit_code == 2
    assert "no such subscriber; it has approval, ann, bob: name one, or add it to [queues.credit]" in ended.output


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ('resource="shopp"', "@subscriber names resource 'shopp': the configuration has shop, shop2; add [resources.shopp]"),
        ('resource="shop", also=["shop2"]', "@subscriber(also=['shop2']): only PostgreSQL prepares transactions"),
    ],
)
def test_a_handler_that_names_no_resource_is_refused_before_a_process_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: str, said: str
) -> None:
    def run(_: Supervisor) -> int:
        raise AssertionError("a process was started")

    monkeypatch.setattr(Supervisor, "run", run)
    monkeypatch.setattr("relay.cli.work.look_for_control", lambda _: None)  # no broker is waited for
    (tmp_path / "relay.toml").write_text(CONFIG + "".join(f'[resources.{name}]\nurl = "sqlite:///{name}.db"\n' for name in ("shop", "shop2")))
    written = tmp_path / "handler_of_a_test.py"
    written.write_text(f'from relay import subscriber\n\n@subscriber("credit", {declared})\ndef approve(*given):\n    pass\n')
    command = f"work {written} --config {tmp_path / 'relay.toml'} --queue credit --subscriber approval"

    ended = CliRunner().invoke(app, command.split())

    assert ended.exit_code == 2
    assert said in ended.output


COMMANDS = [
    "queue show {config} credti",
    "queue pause {config} credti",
    "queue purge {config} credti --yes",
    "queue migrate {config} credti --to sqlite:///other.db",
    "message list {config} credti",
    "message show {config} credti 1",
    "message reveal {config} credti 1",
    "message redrive {config} credti",
    "subscriber list {config} --queue credti",
    "subscriber pause {config} ann --queue credti",
    "subscriber pause {config} approvl",
    "publisher pause {config} /till --queue credti",
    "journal list {config} credti",
    "journal show {config} --queue credti",
    "journal archive {config} --queue credti",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_misspelt_name_is_told_before_any_broker_is_asked(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "relay.toml"
    path.write_text(CONFIG)
    asked: list[object] = []

    def away(*given: object) -> None:
        asked.append(given)
        raise Unreachable("no broker answers")

    monkeypatch.setattr(queue_desk, "require_topics", away)

    def run(command: str) -> tuple[int, str]:
        done = CliRunner(env={"COLUMNS": "300"}).invoke(app, command.format(config=path).split())
        return done.exit_code, done.output

    code, said = run(command)
    assert code == ConfigError.exit_code, said
    assert "there is no such queue" in said or "no queue has it" in said
    assert asked == []
    code, _ = run(command.replace("credti", "credit").replace("approvl", "approval"))
    assert code == Unreachable.exit_code
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("queue migrate {config} credit --to nonsense://x", "--to 'nonsense://x': not a store; write"),
        ("queue migrate {config} credit --to shopp", "--to shopp: there is no such resource; add it to [resources]"),
        ("message edit {config} credit 1 --value {config} --reason=", "--reason is empty; say why"),
        ("message redrive {config} credit --even-done", "it needs HANDLE... and --subscriber"),
        ("indoubt resolve {config} capture:00000000000000000000000000000000 --abort", "--reason is empty; say why"),
        ("run {config} --instance a/b", "--instance 'a/b': not an instance's name; use 1 to 128 letters"),
    ],
)
def test_wrong_words_are_told_before_any_broker_is_asked(
    words: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "relay.toml"
    path.write_text(CONFIG + '[routes.r]\nfrom = ["orders"]\nto = { queue = "credit" }\n')
    for module in (queue_desk, in_doubt_reading):
        monkeypatch.setattr(module, "require_topics", lambda *_: pytest.fail("a broker was asked"), raising=False)
    monkeypatch.setattr(in_doubt_reading, "Topics", lambda *_: pytest.fail("a broker was asked"))

    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, words.format(config=path).split())

    assert done.exit_code == ConfigError.exit_code, done.output
    assert sentence in done.output


def test_all_queues_wait_once_for_a_broker_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "relay.toml"
    path.write_text(CONFIG + CONFIG[CONFIG.index("[queues") :].replace("credit", "debit"))
    asked: list[object] = []

    def away(*given: object) -> None:
        asked.append(given)
        raise Unreachable("no broker answers")

    monkeypatch.setattr(queue_desk, "require_topics", away)

    done = CliRunner().invoke(app, ["queue", "list", str(path)])

    assert done.exit_code == Unreachable.exit_code
    assert len(asked) == 1


class Record:
    """The control topic and who follows it; what is done to them, in its order."""

    def __init__(self) -> None:
        self.desired = Desired()
        self.said: list[object] = []

    def put(self, key: bytes, value: bytes, *, wait: bool) -> None:
        assert self.desired.add(key, value)
        self.said.append(("put", wait))

    def now(self) -> Desired:
        return self.desired

    def close(self) -> None:
        self.said.append("closed")


class Store(Record):
    def close(self) -> None:
        self.said.append("store closed")


def test_what_a_person_wants_is_durable_before_the_command_ends_and_says_who_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "relay.toml").write_text(CONFIG)
    record, opened = Record(), []
    monkeypatch.setattr(clock, "wall_ms", lambda: 17)
    monkeypatch.setattr(queue_desk, "require_topics", lambda *_: None)
    for name in ("follow", "control_topic"):
        monkeypatch.setattr(queue_desk, name, lambda _, name=name: (opened.append(name), record)[1])

    def store(*_: object) -> Store:
        opened.append("store")
        made = Store()
        made.said = record.said
        return made

    monkeypatch.setattr(queue_desk, "open_queue", store)
    with QueueDesk(load(tmp_path / "relay.toml"), "eve") as desk:
        wish = desk.wish(Kind.SUBSCRIBER, "credit", "ann", Wanted.PAUSE, "stocktaking")
        desk.moved(Move("credit", "u-1", "a", "b", Step.COPYING, "eve", 3))
        desk.audit("credit", "purge", 3, "publisher=x", "test data")
        desk.audit("credit", "purge", 4, "publisher=x", "test data")
        assert desk.store("credit") is desk.store("credit")
        assert record.said == [("put", True)] * 4
        assert desk.names() == ["credit"]

    assert record.said[4:] == ["store closed", "closed", "closed"]
    assert opened == ["follow", "control_topic", "store"]
    assert wish == Wish(Subject(Kind.SUBSCRIBER, "credit", "ann"), Wanted.PAUSE, "eve", "stocktaking", 17)
    assert list(record.desired.wishes.values()) == [wish]
    assert record.desired.moves["credit"].step is Step.COPYING
    assert [one._replace(id="") for one in record.desired.audits] == [
        Audit("", "credit", "purge", changed, "publisher=x", "eve", "test data", 17) for changed in (3, 4)
    ]
    assert len({one.id for one in record.desired.audits}) == 2, "compaction keeps each"
