"""The audit job over several routes, and what it says beside its counts: as `relay verify` does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from relay.audit.verify import verify
from tests.integration.audit_site import TOPIC_ROUTE, Site, digest
from tests.integration.warm_spark import WarmSpark
from tests.routes import delete_below

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


def test_a_key_that_names_no_message_is_no_letter_of_one(make_site: Callable[..., Site]) -> None:
    """Sixteen bytes that are a digest excused a loss here, and a digest with blanks in it to `relay verify`."""
    site = make_site()
    for number in range(4):
        site.write(site.log, number)
    name = digest(1).hex()
    keys = (digest(0), f"{name[:8]} {name[8:]}", f"{digest(2).hex()}\n", digest(3).hex().upper(), b"\xff", None)
    for key in keys:
        headers = {"__relay.errors.route": b"main", "__relay.errors.code": b"refused"}
        site.producer.produce(site.config.deadletter_topic, key=key, value=b"{}", partition=0, headers=headers)
    assert site.producer.flush(30) == 0
    site.stand_at(4)

    _, report, said = run(str(site.config.path))
    (verified,) = verify(site.config, ["main"])

    assert report, said
    found = report["routes"]["main"]
    assert (found["lost"], found["dead_letters"]) == (verified.findings.lost, verified.findings.dead_letters) == (3, 6)


def test_what_may_be_no_fault_is_noted_as_verify_notes_it(make_site: Callable[..., Site], kafka_admin: AdminClient) -> None:
    """A loss stood there by itself, where the destination alone had forgotten what it had."""
    site = make_site(f'{TOPIC_ROUTE}\nidentity = ["position"]')
    for number in range(3):
        site.write(site.log, number)
        site.write(site.output, number)
    delete_below(kafka_admin, site.output, 1)
    site.stand_at(3)
    former = make_site()
    former.write(former.log, 1)
    former.write(former.output, 1)

    for one, words in ((site, f"the destination begins at {site.output}[0]@1"), (former, "nothing tells that this route ever ran")):
        _, report, said = run(str(one.config.path))
        (verified,) = verify(one.config, ["main"])

        assert report, said
        notes = report["routes"]["main"]["notes"]
        assert any(words in note for note in notes), notes
        assert set(verified.findings.notes) <= set(notes)
