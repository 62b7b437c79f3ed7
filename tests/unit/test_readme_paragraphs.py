"""tests/README.md names a test for each paragraph of document 003: each paragraph has its line, each named test exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| \[(\d+)\](?: to \[(\d+)\])? \| (.+) \| (.+) \|$", (ROOT / "tests/README.md").read_text(), re.MULTILINE)
SHORT = {"003": "tests/acceptance/test_003_intelligent_queue.py", "recovery": "tests/acceptance/test_003_recovery.py"}
NAMED = sorted({name for row in ROWS for name in re.findall(r"`([\w/.]+(?:::\w+)?)`", row[3])})
FIRST, LAST = 22, 96


def test_every_paragraph_has_its_line() -> None:
    found = [n for first, last, *_ in ROWS for n in range(int(first), int(last or first) + 1)]

    assert found == list(range(FIRST, LAST + 1))


def test_every_line_names_a_test_or_says_where_to_look() -> None:
    bare = [row[0] for row in ROWS if "`" not in row[3] and not row[3].startswith("see [") and row[0] != "95"]

    assert bare == []


@pytest.mark.parametrize("named", NAMED)
def test_a_named_test_exists(named: str) -> None:
    path, _, name = named.partition("::")
    text = (ROOT / SHORT.get(path, path)).read_text()

    assert not name or re.search(rf"^\s*def {name}\(", text, re.MULTILINE), f"{path} has no {name}"


def test_every_acceptance_test_of_the_document_is_in_the_table() -> None:
    path = SHORT["003"]
    tests = re.findall(r"^def (test_\w+)\(", (ROOT / path).read_text(), re.MULTILINE)
    known = {name.partition("::")[2] for name in NAMED if SHORT.get(name.partition("::")[0]) == path}

    assert sorted(set(tests) - known) == []
