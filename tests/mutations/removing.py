"""A plugin for pytest: ``-p tests.mutations.removing --without GUARD`` runs tests while one guard is taken away.

It goes before tests are collected, so that what they import from production is what is left without it.
"""

from __future__ import annotations

import pytest

from tests.simulation.removals import without


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the guard."""
    parser.addoption("--without", default=None, metavar="GUARD", help="take this guard of the protocol away")


def pytest_configure(config: pytest.Config) -> None:
    """Take the guard away."""
    removal = without(config.getoption("--without"))
    removal.__enter__()
    config.add_cleanup(lambda: removal.__exit__(None, None, None))
