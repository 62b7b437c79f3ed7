"""OPERATING.md names commands, options, and paths of `relay serve`: each is one that there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from starlette.routing import Route

import relay.run
from relay.serve.http import Door, application
from relay.serve.watching import Watching
from tests.unit.test_named_commands import KNOWN, faults_of

PAGE = Path(relay.run.__file__).with_name("OPERATING.md")
TEXT = PAGE.read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
FOREIGN = {"--preload"}


def test_each_command_and_option_exists() -> None:
    told = re.findall(r"(?:`|bin/|^)relay ([^`\n|]+)", TEXT, re.MULTILINE)

    assert len(told) > 10
    assert [fault for words in told for fault in faults_of(words.replace(r"\n", " "))] == []
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", TEXT)) - KNOWN - FOREIGN == set()


def test_its_python_compiles() -> None:
    blocks = [text for kind, text in BLOCKS if kind == "python"]

    assert len([ast.parse(text) for text in blocks]) == 2


def test_its_links_lead_somewhere() -> None:
    named = re.findall(r"\]\(([^)#:]+)\)", TEXT)

    assert len(named) > 1
    assert [one for one in named if not (PAGE.parent / one).exists()] == []


def test_it_names_every_path_that_is_answered() -> None:
    watching: Watching = None  # type: ignore[assignment]
    answered = {route.path for route in application("shop", "1", watching, Door()).routes if isinstance(route, Route)}

    assert answered - {"/healthz"} == set(re.findall(r"`(/[a-z]*)`", TEXT))
