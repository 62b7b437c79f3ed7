"""Guards that can be taken away stay bound to what they guard, each has its proof, and DESIGN.md lists them as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mutations.proofs import Named
from tests.mutations.registry import GUARDS, Guard
from tests.simulation.removals import ALL_REMOVALS

ROOT = Path(__file__).parents[2]
SECTION = re.compile(r"^## Guards removed\n(.*?)^## ", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ALL_REMOVALS)
def test_a_removal_changes_what_is_there(name: str) -> None:
    changes = ALL_REMOVALS[name]()
    assert changes
    for owner, attribute, stand_in in changes:
        assert getattr(owner, attribute) is not stand_in


def test_every_removal_has_one_proof() -> None:
    assert sorted(ALL_REMOVALS) == sorted(guard.removal for guard in GUARDS)


@pytest.mark.parametrize(
    "guard", [guard for guard in GUARDS if isinstance(guard.proof, Named)], ids=lambda g: g.removal
)
def test_a_named_proof_exists(guard: Guard) -> None:
    assert isinstance(guard.proof, Named)
    name = guard.proof.test.rsplit("::", 1)[-1].split("[")[0]
    texts = [(ROOT / guard.proof.file).read_text()]
    assert any(re.search(rf"^ *def {name}\(", text, re.MULTILINE) for text in texts)


def test_the_design_lists_the_guards_as_they_are() -> None:
    found = SECTION.search((ROOT / "DESIGN.md").read_text())
    assert found is not None
    listed = [line for line in found.group(1).splitlines() if line.startswith("| `")]
    assert listed == [f"| `{guard.removal}` | {guard.wrong} | {guard.proof} |" for guard in GUARDS]
