"""A queue is configured by its store, its subscribers and its bounds; every fault is a sentence with a remedy."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from relay.config import reading
from relay.config.faults import Fault
from relay.config.model import RelayConfig
from relay.queue.message import Audience, Group
from relay.queue.settings import Balancing, Retention
from relay.run.queues import address_of

BASE = """
[relay]
name = "shop"
instance = "a"

[kafka]
"bootstrap.servers" = "127.0.0.1:9092"

[resources.shop]
url = "postgresql://shop:secret@localhost/shop"

[routes.to-queue]
from = ["orders"]
to = { queue = "credit" }
"""


def read(lines: str, tmp_path: Path) -> tuple[RelayConfig | None, list[Fault]]:
    return reading.read(tomllib.loads(f"{BASE}\n[queues.credit]\n{lines}"), tmp_path / "relay.toml", {})


def good(lines: str, tmp_path: Path) -> RelayConfig:
    config, faults = read(lines, tmp_path)
    assert faults == []
    assert config is not None
    return config


def address(config: RelayConfig) -> str:
    queue = config.queues["credit"]
    return address_of(config, queue, queue.store)


FIRST = 'store = "sqlite:///credit.db"\nsubscribers = { approval = {}, clerks = { pool = ["ann", "bob"] } }\n'
AS_WRITTEN = (Group("approval", ("approval",)), Group("clerks", ("ann", "bob")))


def test_the_designs_example_is_a_subscriber_beside_a_pool(tmp_path: Path) -> None:
    config = good(FIRST + 'retain = "7d"', tmp_path)
    settings = config.queues["credit"].settings()

    assert settings.audience == Audience(AS_WRITTEN)
    assert settings.retain == Retention(7 * 86_400_000)
    assert (settings.order, settings.ttl_ms, settings.publishers, settings.tries) == ("publisher", None, None, 5)
    assert address(config) == f"sqlite:///{tmp_path}/credit.db"
    assert config.routes["to-queue"].guarantee == "exactly once into the queue"


@pytest.mark.parametrize("given", ["604800", "604800.0", '"7d"', '{ age = "7d" }'])
def test_a_duration_alone_is_the_age_of_what_is_retained(given: str, tmp_path: Path) -> None:
    assert good(f"{FIRST}retain = {given}", tmp_path).queues["credit"].settings().retain == Retention(7 * 86_400_000)


def test_every_bound_reaches_the_store_in_its_unit(tmp_path: Path) -> None:
    lines = """order = "key"
in_order = true
ttl = "90s"
publishers = ["/checkout"]
message_bytes = "2KiB"
waiting_max = 7
tries = 3
retry_max = "20s"
retain = { count = 10, bytes = "1MiB" }
balancing = { on_above = 100, off_below = 10 }
archive = "biweek"
"""
    settings = good(FIRST + lines, tmp_path).queues["credit"].settings()

    assert settings.audience == Audience(AS_WRITTEN, in_order=True)
    assert (settings.order, settings.ttl_ms, settings.message_bytes) == ("key", 90_000, 2048)
    assert (settings.publishers, settings.waiting_max, settings.tries) == (frozenset({"/checkout"}), 7, 3)
    assert settings.retain == Retention(None, 10, 1024**2)
    assert settings.balancing == Balancing(100, 10)
    assert settings.pause_max_ms == 20_000


@pytest.mark.parametrize(
    ("mode", "groups"),
    [
        ("combined", AS_WRITTEN),
        ("balance", (Group("all", ("approval", "ann", "bob")),)),
        ("publish-subscribe", tuple(Group(name, (name,)) for name in ("approval", "ann", "bob"))),
    ],
)
def test_a_mode_makes_one_pool_of_all_or_none(mode: str, groups: tuple[Group, ...], tmp_path: Path) -> None:
    assert good(f'{FIRST}mode = "{mode}"', tmp_path).queues["credit"].settings().audience.groups == groups


@pytest.mark.parametrize(
    ("store", "url"),
    [
        ("shop", "postgresql://shop:secret@localhost/shop"),
        ("log+shop", "log+postgresql://shop:secret@localhost/shop"),
        ("log+sqlite:///a/b.db", "log+sqlite:///{}/a/b.db"),
    ],
)
def test_a_store_is_an_address_or_a_resource(store: str, url: str, tmp_path: Path) -> None:
    config = good(FIRST.replace("sqlite:///credit.db", store), tmp_path)

    assert address(config) == url.format(tmp_path)
    assert "secret" not in repr(config)


@pytest.mark.parametrize(
    ("lines", "key", "words"),
    [
        (FIRST.replace("sqlite:///credit.db", "elsewhere"), "store", "no such resource"),
        (FIRST.replace("sqlite:///credit.db", "postgresql://a:b@c/d"), "store", "name the resource"),
        (FIRST.replace("sqlite:///credit.db", "mysql://c/d"), "store", "not a store"),
        (FIRST.replace("sqlite:///credit.db", "log+files:///c"), "store", '"log+" before a database'),
        ('store = "shop"', "subscribers", "missing"),
        ('store = "shop"\nsubscribers = {}', "subscribers", "no subscriber"),
        (FIRST.replace('"bob"', '"approval"'), "subscribers", "stands twice"),
        (FIRST.replace('"bob"', '"clerks"'), "subscribers", "a pool and a subscriber"),
        (FIRST.replace('["ann", "bob"]', "[]"), "subscribers.clerks.pool", "no members"),
        (FIRST.replace("approval", '"a b"'), "subscribers", "not a name"),
        (FIRST + "balancing = { on_above = 5, off_below = 5 }", "balancing.off_below", "back and forth"),
        (FIRST + 'mode = "balance"\nin_order = true', "in_order", "no order"),
        (FIRST + 'retry_after = "1m"\nretry_max = "1s"', "retry_max", "shorter"),
        (FIRST + 'tll = "1m"', "tll", "not a setting"),
        (FIRST + 'ttl = "soon"', "ttl", "not a duration"),
        (FIRST + "ttl = 0", "ttl", "leave it out for no bound"),
        (FIRST + 'ttl = "0.1ms"', "ttl", "would expire as it is put"),
        (FIRST + 'publishers = [""]', "publishers", "not a publisher"),
        (FIRST + "publishers = []", "publishers", "nobody could put"),
    ],
)
def test_a_queue_at_fault_is_a_sentence(lines: str, key: str, words: str, tmp_path: Path) -> None:
    config, faults = read(lines, tmp_path)

    assert config is None
    assert [fault.key for fault in faults] == [f"queues.credit.{key}"]
    assert words in str(faults[0])


def test_a_route_does_not_go_into_flat_files(tmp_path: Path) -> None:
    _, faults = read(FIRST.replace("sqlite:///credit.db", "files:///credit"), tmp_path)

    assert [fault.key for fault in faults] == ["routes.to-queue.to.queue"]
