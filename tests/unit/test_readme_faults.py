"""tests/README.md names for each fault the tests that produce it: each is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
(SECTION,) = re.findall(r"^## Faults, and what produces them\n(.*?)^## ", (TESTS / "README.md").read_text(), re.MULTILINE | re.DOTALL)
ROWS = re.findall(r"^\| (.+) \| (.+) \|$", SECTION, re.MULTILINE)[1:]
NAMED = sorted({name for _, tests in ROWS for name in re.findall(r"`([\w/]+\.py(?:::\w+)?)`", tests)})


def test_each_fault_has_a_test() -> None:
    assert len(ROWS) > 30
    assert [fault for fault, tests in ROWS if "`" not in tests and "DESIGN.md" not in tests] == []


@pytest.mark.parametrize("named", NAMED)
def test_a_named_test_exists(named: str) -> None:
    path, _, name = named.partition("::")
    text = (TESTS / path).read_text()

    assert not name or re.search(rf"^\s*def {name}\(", text, re.MULTILINE), f"{path} has no {name}"
