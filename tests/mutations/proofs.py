"""How the removal of a guard is shown: by seeds of which one fails, or by a named test that passes only with the guard."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.kinds import run
from tests.simulation.removals import without

ROOT = Path(__file__).parents[2]
TESTS_FAILED = 1
"""Pytest's exit status when tests ran and some failed; anything else proves nothing."""
NAMED_TEST_S = 150


@dataclass(frozen=True)
class Search:
    """Seeds of a kind of run; without the guard one of them at least has a problem that begins with ``anomaly``."""

    kind: str
    seeds: range
    anomaly: str = ""

    def shows(self, removal: str) -> bool:
        """Does the search find the guard's absence?"""
        with without(removal):
            return any(
                problem.startswith(self.anomaly)
                for seed in self.seeds
                for problem in run(seed, self.kind).problems
            )

    def __str__(self) -> str:
        found = f": {self.anomaly}" if self.anomaly else ""
        which = (
            f"seeds {self.seeds[0]} to {self.seeds[-1]}" if len(self.seeds) > 1 else f"seed {self.seeds[0]}"
        )
        return f"{which} of `{self.kind}`{found}"


@dataclass(frozen=True)
class Named:
    """A test of the ordinary suite, by file and name (and class, parameter): it passes there, and fails here."""

    file: str
    test: str

    @property
    def node(self) -> str:
        """The name by which pytest knows it."""
        return f"{self.file}::{self.test}"

    def shows(self, removal: str) -> bool:
        """Does the test fail in a process of its own without the guard?"""
        words = [
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-p",
            "tests.mutations.removing",
            "--without",
            removal,
            self.node,
        ]
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            cwd=ROOT, env=_own_environment(), timeout=NAMED_TEST_S, capture_output=True, check=False,
        )  # fmt: skip
        return ended.returncode == TESTS_FAILED

    def __str__(self) -> str:
        return f"`{self.file}::{self.test.split('[')[0]}`"


def _own_environment() -> dict[str, str]:
    """Nothing of the pytest that asks: the test is one of its own, with services of its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {"PYTHONHASHSEED": "0"}


Proof = Search | Named
