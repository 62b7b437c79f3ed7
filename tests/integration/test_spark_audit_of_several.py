"""The audit job over several routes, and what it says beside its counts: as `relay verify` does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.audit_site import TOPIC_ROUTE, Site
from tests.integration.warm_spark import WarmSpark

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WARM = WarmSpark("audit")


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    yield
    WARM.end()


def run(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run the job; return its exit code, its JSON report (empty if it gave none) and what else it said."""
    code, out, err = WARM.run(*arguments, "--json")
    return code, json.loads(out) if out else {}, err


def test_a_route_that_cannot_be_audited_does_not_keep_the_others_from_it(make_site: Callable[..., Site], tmp_path: Path) -> None:
    """Hours of another route's audit ended with the sentence on this one alone."""
    site = make_site(f'{TOPIC_ROUTE}\n[routes.gone]\nfrom = ["{{output}}"]\nto = {{{{ topic = "elsewhere" }}}}')
    site.write(site.log, 1)
    site.write(site.output, 1)
    site.stand_at(1)
    gone = tmp_path / "gone.toml"
    gone.write_text(site.config.path.read_text("utf-8").replace(f'from = ["{site.output}"]', 'from = ["no-such-topic"]'), "utf-8")
    html = tmp_path / "audit.html"

    code, report, said = run(str(gone), "--route", "gone", "--route", "main", "--html", str(html))

    assert code == 2, said
    assert (report["ok"], report["routes"]["main"]["ok"], report["routes"]["main"]["delivered"]) == (False, True, 1)
    assert report["routes"]["gone"]["ok"] is False
    assert "topic no-such-topic, the log, does not exist" in report["routes"]["gone"]["error"]
    assert "not audited" in html.read_text("utf-8")
    site.write(site.output, 99)
    assert run(str(gone))[0] == 1, "a fault says more than what was not looked at"
