"""DESIGN.md names tests and files: what it names must exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relay.queue.states import drawn

ROOT = Path(__file__).parents[2]
DESIGN = (ROOT / "DESIGN.md").read_text()
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", DESIGN)))
FILES = sorted(set(re.findall(r"`((?:relay|tests|schemas|spark)/[\w/]+(?:\.\w+|/))`", DESIGN)))
INVARIANTS = re.findall(r"^\| (I\d+) \|", DESIGN, re.MULTILINE)


@pytest.mark.parametrize(("path", "name"), TESTS)
def test_a_named_test_exists(path: str, name: str) -> None:
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path} has no {name}"


@pytest.mark.parametrize("path", FILES)
def test_a_named_file_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_every_invariant_has_its_line() -> None:
    assert [f"I{n}" for n in range(1, 20)] == INVARIANTS


def test_the_queues_states_are_drawn_from_their_table() -> None:
    assert f"```mermaid\n{drawn()}\n```" in DESIGN
