"""OPERATING.md names commands, options, paths of `relay serve`, alerts, and what logs say: each is one that there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from starlette.routing import Route

import relay.run
from relay.cli.serve import PORT
from relay.serve.http import Door, application
from relay.serve.watching import Watching
from tests.unit.test_named_commands import FILES, KNOWN, faults_of

PAGE = Path(relay.run.__file__).with_name("OPERATING.md")
TEXT = PAGE.read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
ROOT = Path(__file__).parents[2]
SOURCE = "".join(path.read_text("utf-8") for path in FILES)
FOREIGN = {"--preload"}


def test_each_command_and_option_exists() -> None:
    told = re.findall(r"(?:`|bin/|^)relay ([^`\n|]+)", TEXT, re.MULTILINE)

    assert len(told) > 10
    assert [fault for words in told for fault in faults_of(words.replace(r"\n", " "))] == []
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", TEXT)) - KNOWN - FOREIGN == set()


def test_its_python_compiles() -> None:
    blocks = [text for kind, text in BLOCKS if kind == "python"]

    assert len([ast.parse(text) for text in blocks]) == 5


def test_its_links_lead_somewhere() -> None:
    named = re.findall(r"\]\(([^)#:]+)\)", TEXT)

    assert len(named) > 1
    assert [one for one in named if not (PAGE.parent / one).exists()] == []


def test_it_names_every_path_that_is_answered() -> None:
    watching: Watching = None  # type: ignore[assignment]
    answered = {route.path for route in application("shop", "1", watching, Door()).routes if isinstance(route, Route)}

    assert answered - {"/healthz"} == set(re.findall(r"`(/[a-z]*)`", TEXT))
    assert f"port {PORT} " in TEXT


def test_each_alert_that_is_named_exists() -> None:
    rules = set(re.findall(r"alert: (\w+)", (ROOT / "docker/prometheus-alerts.yaml").read_text("utf-8")))
    named = set(re.findall(r"`(Relay[A-Z]\w+)`", TEXT + (ROOT / "relay/config/CONFIGURATION.md").read_text("utf-8")))

    assert named
    assert named - rules == set()


def test_each_sentence_and_table_that_is_named_exists() -> None:
    sentences = set(re.findall(r"`((?!relay )[a-z]+(?:[ '][a-z]+)+)`", TEXT))

    assert "ending what may hang" in sentences
    assert [one for one in sorted(sentences - {"async with"}) if one not in SOURCE] == []
    assert {word for word in re.findall(r"\b(?:relay|ce)_[a-z_]+[a-z]\b", TEXT) if word not in SOURCE} == set()
