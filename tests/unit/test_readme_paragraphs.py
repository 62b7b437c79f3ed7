"""tests/README.md names a test for each paragraph of document 003: each paragraph has its line, each named test exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| \[(\d+)\](?: to \[(\d+)\])? \| (.+) \| (.+) \|$", (ROOT / "tests/README.md").read_text(), re.MULTILINE)
SHORT = {
    "media": "tests/acceptance/test_003_22_to_38_media_and_modes.py",
    "states": "tests/acceptance/test_003_39_to_63_states.py",
    "recovery": "tests/acceptance/test_003_65_to_80_recovery.py",
    "messages": "tests/acceptance/test_003_81_to_94_messages.py",
}
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


def test_every_module_of_the_document_has_a_short_name() -> None:
    found = [str(path.relative_to(ROOT)) for path in (ROOT / "tests/acceptance").glob("test_003_*.py")]

    assert sorted(found) == sorted(SHORT.values())


@pytest.mark.parametrize("short", SHORT)
def test_every_acceptance_test_of_the_document_is_in_the_table(short: str) -> None:
    tests = re.findall(r"^def (test_\w+)\(", (ROOT / SHORT[short]).read_text(), re.MULTILINE)
    known = {name.partition("::")[2] for name in NAMED if name.startswith(f"{short}::")}

    assert tests
    assert sorted(set(tests) - known) == []
