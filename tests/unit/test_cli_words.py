"""Every command says what it does, what each of its options means, and what is wrong with what it was given."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from relay.cli import report, serve, status
from relay.cli.main import COMMANDS
from relay.cli.main import app as relay
from relay.config.loading import load
from relay.config.quantities import ago
from relay.kafka.topics import Topics
from relay.local.services import LocalServices
from relay.message.errors import Unreachable
from relay.run.supervisor import Supervisor

CONFIG = """\
[relay]
name = "shop"
instance = "one"
state = "state"

[kafka]
"bootstrap.servers" = "127.0.0.1:1"

[routes.to-credit]
from = ["orders"]
to = { queue = "credit" }

[queues.credit]
store = "sqlite:///credit.db"
subscribers = { approval = {} }
"""


def commands(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands((*words, name), inner)


ALL = {
    " ".join(words): command
    for name in COMMANDS
    for words, command in commands((name,), typer.main.get_command(importlib.import_module(f"relay.cli.{name}").app))
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "relay.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(relay, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), "an error is a sentence, not a traceback"
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("words", ALL)
def test_a_commands_help_is_a_sentence_and_so_is_each_options(words: str) -> None:
    command = ALL[words]

    assert command.help, words
    assert not command.help.startswith("`"), "the name stands in the line above already"
    for parameter in command.params:
        if parameter.name != "help":
            text = getattr(parameter, "help", None) or ""
            assert len(text.split()) > 2, f"relay {words} {parameter.name} says nothing that its name does not"


@pytest.mark.parametrize("words", ALL)
def test_the_window_breaks_the_lines_of_a_help_and_not_the_source(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    monkeypatch.setenv("TERMINAL_WIDTH", "2000")
    code, out, _ = said(*words.split(), "--help")
    lines = [" ".join(line.split()) for line in out.splitlines()]

    assert code == 0
    assert [part for part in re.split(r"\n\n", ALL[words].help) if " ".join(part.split()) not in lines] == []
    assert "``" not in out, "as the source quotes, not as a person reads"
    assert not re.search(r"\[\[|\.\.\.[\]}]?\.\.\.", out), "an argument's name stands in brackets and dots of its own"


@pytest.mark.parametrize("words", ALL)
def test_nothing_of_a_help_is_taken_for_markup(words: str) -> None:
    texts = [ALL[words].help, *(getattr(parameter, "help", "") for parameter in ALL[words].params)]

    assert [text for text in texts if re.search(r"\[[a-z]+\]", text or "")] == []


def test_the_exit_codes_stand_in_the_help() -> None:
    code, out, _ = said("--help")

    assert code == 0
    assert "2 usage or configuration, 3 unreachable" in " ".join(out.split())
    assert "With --json standard output has JSON or" in " ".join(out.split())
    assert "Durations are seconds, or texts such as 90s and 5min" in " ".join(out.split())


JSON = [words for words, command in ALL.items() if any("--json" in one.opts for one in command.params)]
NEEDED = {
    "queue": "credit", "subscriber": "approval", "name": "capture:" + "a" * 32, "application": "json", "value": "relay.toml",
    "directory": "relay.toml",
}  # fmt: skip
MORE = {
    "bench": ["other"], "chaos": ["--dir", "."], "check": ["--connect"], "deadletter redrive": ["--all"], "demo": ["--dir", "."],
    "demo credit": ["--sales", "1"], "indoubt resolve": ["--commit", "--reason", "x"], "queue purge": ["--yes"],
}  # fmt: skip
"""What a command needs beside its arguments to go as far as the brokers, or to be wrong without them."""


def whole(words: str, config: str) -> list[str]:
    """Return a command with all that it needs."""
    said = words.split()
    for one in ALL[words].params:
        if one.required or one.name == "config":
            option = [one.opts[0]] if one.opts[0].startswith("--") else []
            said += [*option, config if one.name == "config" else NEEDED.get(one.name, "1")]
    return [*said, *MORE.get(words, []), "--json"]


@pytest.mark.parametrize("words", JSON)
def test_with_json_standard_output_is_json_or_empty_beside_a_sentence(
    place: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    def away(*_: object, **__: object) -> None:
        raise Unreachable("no broker answers")

    for ask in ("describe", "brokers", "names", "watermarks"):
        monkeypatch.setattr(Topics, ask, away)
    monkeypatch.setattr(Supervisor, "run", lambda _: 3)
    monkeypatch.setattr(serve, "_listen", away)
    for config, expected in (("none.toml", {2}), ("relay.toml", {2, 3})):
        code, out, error = said(*whole(words, config))

        assert code in expected
        assert json.loads(out) if out else error


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("check none.toml", "give the path of a configuration"),
        ("chaos none.toml", "give the path of a configuration"),
        ("queue purge relay.toml credit --since yesterday --yes", "write a duration"),
        ("message list relay.toml credit --state lost", "give one of PUT"),
        ("message list relay.toml credit --is AVAILABLE", "say whose state is meant"),
        ("message edit relay.toml credit 1 --value none --reason x", "correct the path"),
        ("publisher pause relay.toml ''", "give the ce_source"),
        ("message redrive relay.toml credit --rate 1e-300", "give more, or 0 for no bound"),
        ("message redrive relay.toml credit 7 --publisher /till", "leave --publisher, --since and --until out"),
        ("unit close relay.toml u r --reason ''", "say why"),
        ("unit close relay.toml decisions:flights/7 r --reason gone", "between the colon and the last slash"),
        ("unit close relay.toml flights 7/r --reason gone", "between the colon and the last slash"),
        ("unit close relay.toml '' r --reason gone", "name no run"),
        ("unit close relay.toml u '' --reason gone", "name no run"),
        ("unit close --reason gone -- relay.toml -flights 7/r", "UNIT '-flights' and RUN '7/r' name no run"),
        ("check -- -none.toml", "-none.toml: the file cannot be read"),
        ("message show relay.toml credit -- -1", "Invalid value for"),
        ("run relay.toml --route other", "there is no such route; there are: to-credit"),
        ("work none.py --queue credit --subscriber approval", "give the path of a .py file"),
        ("verify relay.toml --route other", "there is no such route; there are: to-credit"),
        ("work ../app --queue credit --subscriber approval --config relay.toml", "there is no such module; give a module's name"),
        ("work :f --queue credit --subscriber approval --config relay.toml", "there is no such module; give a module's name"),
        ("queue pause relay.toml credit --reason no\udcffutf8", "'no\\udcffutf8' is not UTF-8"),
        ("queue pause relay.toml credit --who=no\udcffutf8", "is not UTF-8, and no file is called so"),
        ("check no\udcffutf8.toml", "is not UTF-8, and no file is called so"),
        ("serve relay.toml --host a..localhost", "choose an address of this machine"),
        ("work json --queue other --subscriber approval", "other"),
        ("dev up --dir relay.toml", "name a directory"),
        ("dev up --dir services --kafka-port 80", "should be greater than or equal to"),
        ("dev status --dir .", "relay dev up"),
        ("bench other", "choose from"),
        ("spark other", "there are: "),
        ("demo --dir .", "name one that is empty"),
    ],
)
def test_what_is_wrong_is_said_with_its_remedy(place: Path, words: str, remedy: str) -> None:
    code, out, error = said(*("" if word == "''" else word for word in words.split()))

    assert (code, out) == (2, "")
    assert remedy in " ".join(error.split())


NUMBERS = {
    "run relay.toml --until-idle": "from 0.1 to 2592000 seconds",
    "work none.py --queue credit --subscriber approval --config relay.toml --deadline": "from 0.1 to 2592000 seconds",
    "work none.py --queue credit --subscriber approval --config relay.toml --drain": "from 0.1 to 2592000 seconds",
    "work none.py --queue credit --subscriber approval --config relay.toml --until-idle": "from 0.1 to 2592000 seconds",
    "deadletter redrive none.toml --all --wait": "from 0 to 86400 seconds",
    "queue migrate none.toml credit --to files:///q --wait": "from 0 to 86400 seconds",
    "message redrive none.toml credit --rate": "from 0 to 1000000 a second",
    "chaos none.toml --minutes": "from 0.1 to 1440 minutes",
}


@pytest.mark.parametrize("given", ["inf", "nan", "1e308", "-1", "soon"])
@pytest.mark.parametrize("words", NUMBERS)
def test_a_number_that_is_none_or_beyond_all_use_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, words: str, given: str
) -> None:
    def must_not_start(*_: object) -> int:
        raise AssertionError("it was taken")

    monkeypatch.setattr(Supervisor, "run", must_not_start)
    code, out, error = said(*words.split(), given)

    assert (code, out) == (2, "")
    sentence = " ".join(word for word in error.split() if word != "│")
    assert f"Invalid value for '{words.rsplit(maxsplit=1)[-1]}': {given} is not {NUMBERS[words]}; write" in sentence


@pytest.mark.parametrize(("given", "seconds"), [("5min", 300.0), ("250ms", 0.25), ("90", 90.0), ("1e3", 1000.0)])
def test_a_duration_is_written_as_in_the_configuration(
    place: Path, monkeypatch: pytest.MonkeyPatch, given: str, seconds: float
) -> None:
    calls: list[list[str]] = []

    def noted(supervisor: Supervisor) -> int:
        calls.append(supervisor._command("to-credit", 0))
        return 0

    monkeypatch.setattr(Supervisor, "run", noted)
    monkeypatch.setattr("relay.cli.run.require_at_start", lambda *_: None)  # no broker is waited for

    assert said("run", "relay.toml", "--until-idle", given)[0] == 0
    assert float(calls[0][-1]) == seconds


def test_a_command_that_is_told_can_be_copied(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = LocalServices(place, "127.0.0.1:1", None)
    monkeypatch.setattr(LocalServices, "up", classmethod(lambda *_, **__: made))
    monkeypatch.setattr(Topics, "describe", lambda *_, **__: {})
    (place / "my shop.toml").write_text(CONFIG)

    assert "relay dev down --dir 'my services'\n" in said("dev", "up", "--dir", "my services")[1]
    assert "`relay dev up --dir 'my services'`" in said("bench", "topic", "--dir", "my services")[2]
    for words in (("status", "my shop.toml"), ("queue", "pause", "my shop.toml", "credit")):
        assert "`relay migrate 'my shop.toml'`" in said(*words)[2]


@pytest.mark.parametrize("words", ["dev up", "dev down", "dev status", "dev topic orders", "demo", "chaos --demo", "bench topic"])
def test_an_empty_text_is_not_the_present_directory(place: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setattr(LocalServices, "up", classmethod(lambda *_, **__: LocalServices(place, "127.0.0.1:1", None)))

    code, out, error = said(*words.split(), "--dir", "")

    assert (code, out) == (2, "")
    assert "it is empty; name a directory" in error


def test_a_file_whose_name_is_not_utf8_is_taken(place: Path) -> None:
    name = "no\udcffutf8.toml"
    (place / name).write_text(CONFIG)

    code, out, _ = said("check", name)

    assert code == 0
    assert "ok (configuration)" in out


def test_purging_needs_a_yes(place: Path) -> None:
    code, _, error = said("queue", "purge", "relay.toml", "credit")

    assert code == 2
    assert "--yes" in error


def test_a_check_prints_json_for_programs(place: Path) -> None:
    code, out, _ = said("check", "relay.toml", "--json")

    assert code == 0
    assert json.loads(out)["routes"][0]["name"] == "to-credit"


def test_a_directory_that_is_told_is_no_markup(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = "passing through /srv/shop[red]/:smile:[/b]" + "/x" * 40

    def up(*_: object, tell: Any, **__: object) -> LocalServices:
        tell(told)
        return LocalServices(place, "127.0.0.1:1", None)

    monkeypatch.setattr(LocalServices, "up", up)

    assert said("dev", "up", "--dir", ".")[2] == told + "\n"


@pytest.mark.parametrize("id_", ["42\\", "C:\\", "[\\[/", "[/]", "\\[red]", "a\\\\"])
def test_backslashes_and_brackets_of_a_cell_are_shown_as_they_are(capsys: pytest.CaptureFixture[str], id_: str) -> None:
    report.print_table(("id", "state"), [(id_, "REVEALED")])

    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert rows == [f"│ {id_:2} │ REVEALED │"]


@pytest.mark.parametrize("show", [report.print_line, report.print_problem, lambda text: report.print_table(["cause"], [[text]])])
def test_a_columns_source_is_no_pictogram(capsys: pytest.CaptureFixture[str], show: Any) -> None:
    show("routes.to-table.to.columns.id = ce:id: the right to insert is missing")

    out, err = capsys.readouterr()
    assert "ce:id: the right" in out + err


@pytest.mark.parametrize("show", [report.print_line, report.print_problem, lambda text: report.print_table(["cause"], [[text]])])
def test_nothing_that_a_stranger_wrote_reaches_the_terminal_as_an_order(capsys: pytest.CaptureFixture[str], show: Any) -> None:
    show("a\x1b]0;title\x07b\x1b[2Jc\x9b1Ad\u202ee\rf")

    said = "".join(capsys.readouterr())
    assert "a\\x1b]0;title\\x07b\\x1b[2Jc\\x9b1Ad\\u202ee\\rf" in said


@pytest.mark.parametrize("show", [report.print_line, report.print_problem, lambda text: report.print_table(["cause"], [[text]])])
def test_a_window_that_is_said_to_have_no_columns_shows_everything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, show: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    monkeypatch.setattr(report.Console, "is_terminal", True)

    show("a person must decide")

    assert "a person must decide" in "".join(capsys.readouterr())


def test_a_docstring_is_the_help_without_the_name() -> None:
    assert report.purpose("``relay queue``: see every queue.") == "See every queue."


def test_a_table_in_a_pipe_shows_every_cell_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    long = "sqlite:///" + "x" * 60

    report.print_table(("queue", "store"), [("credit", long), ("[bold]", None)])

    out = capsys.readouterr().out
    assert long in out
    assert "[bold]" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("words", "closed"),
    [
        (["check", "relay.toml"], "stdout"),
        (["check", "relay.toml", "--json"], "stdout"),
        (["message", "list", "--help"], "stdout"),
        (["--help"], "stdout"),
        (["--version"], "stdout"),
        (["check", "none.toml"], "stderr"),
    ],
)
def test_a_command_that_nobody_reads_any_more_ends_quietly(place: Path, words: list[str], closed: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: writing}

    done = subprocess.run([sys.executable, "-m", "relay.cli.main", *words], **streams)
    os.close(writing)

    assert done.returncode == 141, "1 would say that a check failed"
    assert not done.stdout
    assert not done.stderr


def test_a_command_without_an_output_does_its_work(place: Path) -> None:
    command = [sys.executable, "-m", "relay.cli.main", "check", "relay.toml", "--json"]

    done = subprocess.run(["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True)

    assert (done.returncode, done.stderr) == (0, "")


def test_json_reaches_a_pipe_at_once_and_on_one_line_where_more_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="utf-8"))

    report.print_json({"at": 1, "näme": [1, 2]}, one_line=True)
    first = written.getvalue().decode("utf-8")
    report.print_json({"at": 2})

    assert first == '{"at": 1, "näme": [1, 2]}\n'
    assert json.loads(written.getvalue().decode("utf-8").removeprefix(first)) == {"at": 2}


def test_each_look_of_a_watch_is_one_line_for_programs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Seen:
        notes = ("one", "two")
        unseen = None

        def read(self) -> list[Any]:
            return []

    for _ in range(2):
        status.show_once(load(place / "relay.toml"), Seen(), as_json=True, more=True)

    assert [json.loads(line)["notes"] for line in capsys.readouterr().out.splitlines()] == [["one", "two"]] * 2


def test_json_is_json_also_where_the_output_is_not_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1", errors="backslashreplace"))

    report.print_json(["é", "€", "\udcff"])

    assert json.loads(written.getvalue()) == ["é", "€", "\udcff"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
@pytest.mark.parametrize(("words", "command"), [("queue --help", "relay queue"), ("--help", "relay"), ("--version", "relay")])
def test_an_output_that_cannot_be_written_is_a_sentence(words: str, command: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "relay.cli.main", *words.split()], stdout=full, stderr=subprocess.PIPE, text=True
        )

    assert (done.returncode, done.stderr) == (1, f"{command}: No space left on device: what it wrote is not whole\n")


def test_an_output_that_may_be_no_longer_is_a_sentence(place: Path) -> None:
    command = ["/bin/sh", "-c", 'ulimit -f 0; exec "$@" >out', "sh", sys.executable, "-m", "relay.cli.main", "check", "relay.toml"]

    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)

    assert (done.returncode, done.stderr) == (1, "relay check: File too large: what it wrote is not whole\n")


@pytest.mark.parametrize(
    ("age_ms", "words"),
    [(-5, "0 s ago"), (119_400, "119 s ago"), (284_000, "5 min ago"), (7_200_000, "2 h ago"), (200 * 3_600_000, "8 d ago")],
)
def test_how_long_ago_is_told_in_a_unit_that_is_read_at_once(age_ms: int, words: str) -> None:
    assert ago(age_ms) == words


DIGEST = "87f2d34e5b9b9bb940622f24607ac56f"


@pytest.mark.parametrize("columns", ["80", "60", "30"])
def test_a_table_whose_words_the_window_would_break_shows_its_rows_one_below_the_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(report.Console, "is_terminal", True)

    report.print_table(("digest", "route", "last error", "id"), [(DIGEST, "to-table", "[red]no", DIGEST[::-1] + "-1"), ("x", None, "", "")])

    assert capsys.readouterr().out == (
        f"digest:     {DIGEST}\nroute:      to-table\nlast error: [red]no\nid:         {DIGEST[::-1]}-1\n\n"
        "digest:     x\n\n"
    )


def test_a_table_breaks_between_words_where_that_is_enough(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(report.Console, "is_terminal", True)

    report.print_table(("digest", "cause"), [(DIGEST, "one word, and another, and many more of them")])

    out = capsys.readouterr().out
    assert DIGEST in out
    assert "another," in out
    assert max(map(len, re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines())) <= 60


def test_each_spark_job_is_listed_with_what_it_is_for() -> None:
    said = CliRunner().invoke(relay, ["spark"]).output

    for job, purpose in (("archive", "to Parquet"), ("audit", "at any scale"), ("capture", "each row exactly once"), ("flights", "New York")):
        assert any(job in line and purpose in line for line in said.splitlines()), said


@pytest.mark.parametrize("word", ["pause", "resume"])
def test_a_publisher_of_no_queue_is_neither_held_nor_resumed(word: str, tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text(CONFIG.partition("[queues")[0].replace("queue =", "topic ="))

    result = CliRunner().invoke(relay, ["publisher", word, str(config), "/checkout"])

    assert (result.exit_code, result.stdout) == (2, "")
    assert "there are no queues; nothing was recorded of publisher '/checkout'" in " ".join(result.stderr.split())
