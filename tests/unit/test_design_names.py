"""DESIGN.md names tests, files and crash points: what it names must exist, and what there is must have its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relay.queue.states import drawn
from tests.unit.test_crash_points import POINTS

ROOT = Path(__file__).parents[2]
DESIGN = (ROOT / "DESIGN.md").read_text()
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", DESIGN)))
FILES = sorted(set(re.findall(r"`((?:relay|tests|schemas|spark)/[\w/]+(?:\.\w+|/))`", DESIGN)))
SHORT = sorted(set(re.findall(r"`((?:[a-z]\w*/)*\w+\.py)`", DESIGN)) - set(FILES))
"""Without the folder above, such as ``delivery/topic/sealed.py``; ``_table.py`` is the end of a name."""
SOURCES = [f"/{path.relative_to(ROOT).as_posix()}" for top in ("relay", "tests", "spark") for path in (ROOT / top).rglob("*.py")]
INVARIANTS = re.findall(r"^\| (I\d+) \|", DESIGN, re.MULTILINE)


@pytest.mark.parametrize(("path", "name"), TESTS)
def test_a_named_test_exists(path: str, name: str) -> None:
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path} has no {name}"


@pytest.mark.parametrize("path", FILES)
def test_a_named_file_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("path", SHORT)
def test_a_file_named_in_short_exists(path: str) -> None:
    end = path if path.startswith("_") else f"/{path}"

    assert [one for one in SOURCES if one.endswith(end)]


def test_each_folder_is_in_the_file_map() -> None:
    (rows,) = re.findall(r"^## File map\n(.*?)^## ", DESIGN, re.MULTILINE | re.DOTALL)
    folders = {path.parent.name for path in (ROOT / "relay").glob("*/__init__.py")}

    assert folders == set(re.findall(r"`relay/(\w+)/`", rows))


def test_each_crash_point_is_in_the_table_and_no_other_is() -> None:
    (rows,) = re.findall(r"^## Crash points\n(.*?)^## ", DESIGN, re.MULTILINE | re.DOTALL)
    told, families = set(), list[str]()
    for row in re.findall(r"^\|.*", rows, re.MULTILINE):
        group = ""
        for before, step in re.findall(r"`([a-z]*)\.([a-z]+|\*)(?::\d)?`", row):
            group = before or group
            if step == "*":
                families.append(f"{group}.")
            else:
                told.add(f"{group}.{step}")

    assert told <= set(POINTS)
    assert [point for point in POINTS if point not in told and not point.startswith(tuple(families))] == []


def test_every_invariant_has_its_line() -> None:
    assert [f"I{n}" for n in range(1, 20)] == INVARIANTS


def test_the_queues_states_are_drawn_from_their_table() -> None:
    assert f"```mermaid\n{drawn()}\n```" in DESIGN
