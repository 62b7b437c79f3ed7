"""Every command and option that a sentence of the relay names is one that there is."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from relay.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "relay").rglob("*.py"), *(ROOT / "spark").glob("*.py")])
JOBS = {path.stem for path in (ROOT / "spark").glob("*.py")} - {"__init__"}
FOREIGN = {
    "initdb": {"--pwfile", "--auth", "--encoding", "--locale", "--no-sync"},
    "umount": {"--lazy"},
    "spark-submit": {"--packages", "--jars", "--conf", "--driver-memory", "--driver-java-options"},
    "kafka-consumer-groups": {"--reset-offsets", "--group", "--all-topics", "--to-current", "--execute"},
    "kafka-configs": {"--alter", "--topic", "--add-config"},
    "relay itself": {"--version"},
}
"""Options of other programs that the relay calls."""
_QUOTED = re.compile(r"`relay ([^`]+)`")
_CALLED = re.compile(r"(?:^|[\s(:;])relay ((?:" + "|".join(COMMANDS) + r")\b[^`]*)")
_OPTION = re.compile(r"(?<![\w(-])--[a-z][a-z-]*(?![a-z0-9:-])")
"""Not a variable of a style sheet, such as ``--ink: #333`` and ``var(--ink)``."""


def tree(name: str) -> Any:
    return typer.main.get_command(importlib.import_module(f"relay.cli.{name}").app)


TREES = {name: tree(name) for name in COMMANDS}


def options(command: Any) -> set[str]:
    own = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    return own.union(*(options(inner) for inner in getattr(command, "commands", {}).values()), {"--help"})


def job_options() -> set[str]:
    """Every option that is declared to argparse: those of the Spark jobs and of the relay's own processes."""
    return {
        word.value
        for path in FILES
        if "add_argument" in (text := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"
        for word in node.args
        if isinstance(word, ast.Constant) and str(word.value).startswith("--")
    }


KNOWN = set().union(*(options(one) for one in TREES.values()), job_options(), *FOREIGN.values())


@cache
def literals(path: Path) -> list[str]:
    """Return the texts of a module; what is put into one stands as ``X``."""
    found: list[str] = []
    inside: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in node.values}
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            found.append(node.value)
    return found


def faults_of(words: str) -> Iterator[str]:
    """Yield what is wrong with a command as it stands behind ``relay``."""
    name, *rest = re.sub(r"[.,;:)\"']+(\s|$)", r"\1", words).split() or [""]
    for first in name.split("|"):
        if first.isupper() or first.startswith("-"):
            continue
        if first not in COMMANDS:
            yield f"relay {first}"
            continue
        found = [TREES[first]]
        if first == "spark":
            named = rest[0].split("|") if rest and rest[0].islower() and not rest[0].startswith("-") else []
            yield from (f"relay spark {job}" for job in named if job not in JOBS)
            continue
        inner = getattr(TREES[first], "commands", {})
        if inner and rest and re.fullmatch(r"[a-z]+(\|[a-z]+)*", rest[0]):
            wanted = rest[0].split("|")
            yield from (f"relay {first} {word}" for word in wanted if word not in inner)
            found = [inner[word] for word in wanted if word in inner]
        for option in _OPTION.findall(" ".join(rest)):
            if not any(option in options(one) for one in found):
                yield f"relay {words.strip()}: {option}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_sentence_names_only_what_there_is(path: Path) -> None:
    wrong = []
    for text in literals(path):
        for line in text.splitlines():
            for words in (*_QUOTED.findall(line), *_CALLED.findall(_QUOTED.sub("", line))):
                wrong += faults_of(words)
        wrong += [option for option in _OPTION.findall(text) if option not in KNOWN]

    assert wrong == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_is_sent_to_an_index_for_the_relay_itself(path: Path) -> None:
    # It is on none: whoever took its name there would be installed.
    assert [text for text in literals(path) if re.search(r"pip install '?transactional-relay", text)] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_speaks_of_its_own_options_only(name: str) -> None:
    own = options(TREES[name])
    said = [text for text in literals(ROOT / f"relay/cli/{name}.py") if " " in text and "relay " not in text]

    assert [option for text in said for option in _OPTION.findall(text) if option not in own] == []


@pytest.mark.parametrize(
    "words",
    ["dead list", "queue empty CONFIG", "queue list|stop CONFIG", "indoubt resolve CONFIG X --drop", "spark flight", "run CONFIG --idle"],
)
def test_what_there_is_not_is_found(words: str) -> None:
    assert list(faults_of(words))


@pytest.mark.parametrize("name", ["README.md", "DESIGN.md", "relay/config/CONFIGURATION.md", "spark/README.md"])
def test_a_document_names_only_what_there_is(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    typed = [words for line in text.splitlines() for words in re.findall(r"(?:^|&& |; )relay ([^#;&`]+)", line)]
    source = "".join(path.read_text("utf-8") for path in FILES)

    assert [fault for words in (*_QUOTED.findall(text), *typed) for fault in faults_of(words)] == []
    assert set(_OPTION.findall(text)) - KNOWN == set()
    # Tables, metrics and headers.
    assert {word for word in re.findall(r"\b(?:relay|ce)_[a-z_]+[a-z]\b", text) if word not in source} == set()
