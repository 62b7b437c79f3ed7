"""Brokers that speak TLS: what is wrong with a certificate is said, nothing is lost, and everything goes on once it is mended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.message.errors import Unreachable
from tests.integration.tls_site import Authority, Encrypted, encrypted_broker
from tests.own_services import or_skipped
from tests.routes import Route, ce, ids, publish, read_all, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(170)]


@pytest.fixture(scope="module")
def encrypted() -> Iterator[Encrypted]:
    with or_skipped(), encrypted_broker() as broker:
        yield broker


class Site:
    """A topic route whose worker goes by the encrypted listener."""

    def __init__(self, encrypted: Encrypted, folder: Path) -> None:
        self.encrypted = encrypted
        self.route = Route(folder, encrypted.kafka, "LOG", '{ topic = "OUT" }')
        self.log, self.out = f"log-{self.route.name}", f"out-{self.route.name}"
        encrypted.topics(self.log, self.out)
        self.text = self.route.path.read_text().replace("LOG", self.log).replace("OUT", self.out)
        self.route.path.write_text(self.text)
        self.route.migrate()
        self.go_by(encrypted.client)
        self.published = 0

    def go_by(self, settings: dict[str, str]) -> None:
        given = {"bootstrap.servers": self.encrypted.listener, "security.protocol": "ssl", **settings}
        lines = "".join(f'"{key}" = "{value}"\n' for key, value in given.items())
        self.route.path.write_text(re.sub(r'"bootstrap.servers" = .*\n', lambda _: lines, self.text))

    def publish(self, count: int) -> None:
        new = range(self.published, self.published + count)
        publish(self.encrypted.kafka, self.log, [(0, ce("/s", f"m-{n}"), b"v") for n in new])
        self.published += count

    def delivered(self) -> list[str]:
        return ids(read_all(self.encrypted.kafka, self.out, 1))

    @property
    def all(self) -> list[str]:
        return [f"m-{n}" for n in range(self.published)]


@pytest.fixture
def site(encrypted: Encrypted, tmp_path: Path) -> Iterator[Site]:
    made = Site(encrypted, tmp_path)
    yield made
    made.route.stop()


def other_authority(encrypted: Encrypted, folder: Path) -> dict[str, str]:
    return {**encrypted.client, "ssl.ca.location": str(Authority("another", folder).place)}


def ended(encrypted: Encrypted, _folder: Path) -> dict[str, str]:
    return {**encrypted.client, **encrypted.pair("ended", encrypted.authority.issue("worker", days=-1.0))}


def none(encrypted: Encrypted, _folder: Path) -> dict[str, str]:
    return {"ssl.ca.location": encrypted.client["ssl.ca.location"]}


UNVERIFIED = "certificate verify failed"
"""Not why: the client does not say more."""


def wrong_ways(encrypted: Encrypted, folder: Path) -> Iterator[tuple[dict[str, str], str]]:
    """Yield settings that no connection comes of, and a word that tells why."""
    yield {**encrypted.client, "ssl.ca.location": str(Authority("another", folder).place)}, UNVERIFIED
    yield {**encrypted.client, "bootstrap.servers": encrypted.listener.replace("127.0.0.1", "localhost")}, UNVERIFIED
    yield {**encrypted.client, **encrypted.pair("ended", encrypted.authority.issue("worker", days=-1.0))}, "certificate"
    yield {"ssl.ca.location": encrypted.client["ssl.ca.location"]}, "certificate"


def test_what_is_wrong_with_certificates_is_said_and_nothing_is_lost(site: Site, tmp_path: Path) -> None:
    """An authority that did not sign the broker's, one for another name, one of one's own that has ended, and none."""
    site.publish(5)
    assert site.route.finish() == 0, site.route.said()
    site.publish(5)
    for number, (settings, word) in enumerate(wrong_ways(site.encrypted, tmp_path), 1):
        site.go_by(settings)
        assert site.route.finish(number) == Unreachable.exit_code, site.route.said(number)
        assert word in site.route.said(number)

    site.go_by(site.encrypted.client)
    assert site.route.finish() == 0, site.route.said()
    assert site.delivered() == site.all


def test_a_brokers_certificate_that_ends_under_a_worker_is_said_and_waited_for(site: Site) -> None:
    authority = site.encrypted.authority
    site.publish(5)
    site.route.start()
    wait_for(lambda: site.delivered() == site.all, told=site.route.said)

    site.encrypted.restart_with(authority.issue("broker", days=-1.0))
    try:
        site.publish(5)
        wait_for(lambda: UNVERIFIED in site.route.said(), what="a word of the certificate", told=site.route.said)
        assert len(site.delivered()) == 5
    finally:
        site.encrypted.restart_with(authority.issue("broker"))
    wait_for(lambda: len(site.delivered()) >= site.published, told=site.route.said)
    assert site.delivered() == site.all
