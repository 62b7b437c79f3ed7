"""OPERATING.md names commands, options, states and numbers of `relay status`: each is one that there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from relay.control.status import State
from tests.unit.test_named_commands import KNOWN, faults_of

TEXT = (Path(__file__).parents[2] / "OPERATING.md").read_text("utf-8")
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


def test_its_metrics_know_every_state_and_no_other() -> None:
    (script,) = [text for kind, text in BLOCKS if kind == "sh"]
    (names,) = re.findall(r"IN\(([^)]*)\)", script)

    assert set(re.findall(r"\w+", names)) == {one.value for one in State if not one.is_wrong}
