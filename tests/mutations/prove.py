"""One guard is taken away at a time, and something must fail: ``make mutations``, apart from all other tests.

The name keeps pytest from collecting it unless it is asked to.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.mutations.proofs import ROOT, Named
from tests.mutations.registry import GUARDS, Guard
from tests.simulation.conftest import _alone  # noqa: F401 - as every test that runs seeds

ALL_NAMED_S = 300
NAMED = sorted({guard.proof.node for guard in GUARDS if isinstance(guard.proof, Named)})


@pytest.mark.timeout(ALL_NAMED_S)
def test_with_every_guard_in_place_the_named_tests_pass() -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *NAMED]
    ended = subprocess.run(words, cwd=ROOT, timeout=ALL_NAMED_S, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.removal)
def test_a_guard_that_is_taken_away_is_missed(guard: Guard) -> None:
    assert guard.proof.shows(guard.removal), f"without it {guard.wrong}: {guard.proof} does not show that"
