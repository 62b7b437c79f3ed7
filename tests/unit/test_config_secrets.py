"""No fault of a configuration shows a secret, whatever stands wherever: addresses with passwords, references, misspelt keys."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from relay.config import queues, routes
from relay.config.model import RelaySection, ResourceConfig
from relay.config.reading import read
from relay.config.registry import RegistryConfig
from relay.config.timing import Timing
from relay.kafka.settings import ALLOWED
from relay.local.postgres import without_password
from relay.message.errors import ConfigError

CANARY = "c4n4ry"
SPOILT: dict[str, str] = {
    "address": f"postgresql://bob:{CANARY}@db/shop",
    "of another database": f"log+mysql://bob:{CANARY}@db/shop",
    "with a space": f"postgresql://bob:a {CANARY}@db/shop",
    "with quotes": f"postgresql://bob:a'\"{CANARY}@db/shop",
    "with an at and a slash": f"postgresql://bob:a@b/{CANARY}@db/shop",
    "without a scheme": f"bob:{CANARY}@db:9092",
    "several": f"bob:a@one:9092,bob:{CANARY}@two:9092",
    "as a parameter": f"postgresql://db/shop?user=bob&password={CANARY}",
    "as words": f"host=db user=bob password={CANARY}",
    "as quoted words": f"host=db user=bob password = 'a {CANARY}'",
    "of the JVM": f'PlainLoginModule required username="bob" password="{CANARY}";',
    "long": f"postgresql://bob:{'x' * 2000}{CANARY}@db/shop",
    "cut": f"postgresql://bob:{CANARY * 400}@db/shop",
    "reference": "${env:SECRET}",
    "part of a reference": "a,${env:SECRET}",
    "default of a reference": f"${{env:NONE:-postgresql://bob:{CANARY}@db/shop}}",
}
ENV = {"SECRET": f"h1:9092,{CANARY}:9092", "SHORT": CANARY[:5]}
WHOLE: dict[str, Any] = {
    "relay": {"name": "shop", "instance": "a"},
    "kafka": {"bootstrap.servers": "127.0.0.1:9092"},
    "resources": {"shop": {"url": "sqlite:///shop.db"}},
    "queues": {"q": {"store": "shop", "subscribers": {"a": {}}}},
    "routes": {
        "topic": {"from": ["orders"], "to": {"topic": "ledger"}},
        "table": {"from": ["orders"], "to": {"table": "ledger", "resource": "shop", "columns": {"id": "ce:id"}}},
        "queue": {"from": ["orders"], "to": {"queue": "q"}},
    },
    "registry": {"url": "http://127.0.0.1:8081"},
    "timing": {},
}
MODELS: dict[tuple[str, ...], type[BaseModel]] = {
    ("relay",): RelaySection,
    ("resources", "shop"): ResourceConfig,
    ("queues", "q"): queues.QueueConfig,
    ("queues", "q", "subscribers", "a"): queues.SubscriberEntry,
    ("queues", "q", "retain"): queues.RetainSection,
    ("queues", "q", "balancing"): queues.BalancingSection,
    ("routes", "topic"): routes.RouteConfig,
    ("routes", "topic", "batch"): routes.BatchLimits,
    ("routes", "topic", "inflight"): routes.InFlight,
    ("routes", "topic", "to"): routes.TopicDestination,
    ("routes", "table", "to"): routes.TableDestination,
    ("routes", "table", "to", "columns"): routes.BatchLimits,  # any names: they are columns here
    ("routes", "queue", "to"): routes.QueueDestination,
    ("registry",): RegistryConfig,
    ("timing",): Timing,
}


def places() -> Iterator[tuple[str, ...]]:
    """Every key of a configuration, a misspelt one beside them, and every section itself."""
    for section, model in MODELS.items():
        names = [field.alias or name for name, field in model.model_fields.items()]
        yield from ((*section, name) for name in (*names, "wrod"))
        yield section
    yield from (("kafka", name) for name in (*ALLOWED, "acks", "sasl.jaas.config", "wrod"))
    yield from (("wrod",), ("kafka",), ("resources",), ("resources", "wrod"), ("queues",), ("routes",), ("routes", "wrod"))


def spoilt(place: tuple[str, ...], value: Any) -> dict[str, Any]:
    document: dict[str, Any] = copy.deepcopy(WHOLE)
    table = document
    for name in place[:-1]:
        table = table.setdefault(name, {})
    table[place[-1]] = value
    return document


def said(document: dict[str, Any], folder: Path) -> str:
    config, faults = read(document, folder / "relay.toml", ENV)
    return " ".join([*(str(fault) for fault in faults), *(config.notes if config else ())])


@pytest.mark.parametrize("kind", SPOILT)
def test_no_key_shows_a_secret_that_stands_in_its_value(kind: str, tmp_path: Path) -> None:
    value = SPOILT[kind]
    shown = {
        ".".join(place): text
        for place in places()
        for form in (value, [value], {value: "a"}, {"a": {value: [value]}})
        if CANARY in (text := said(spoilt(place, form), tmp_path))
    }

    assert shown == {}


@pytest.mark.parametrize("place", MODELS)
def test_a_sections_own_error_shows_no_input(place: tuple[str, ...]) -> None:
    """Who builds a section by hand gets pydantic's error, which would quote what it was given."""
    model = MODELS[place]
    with pytest.raises(ValidationError) as raised:
        model.model_validate({name: [SPOILT["address"]] for name in (*model.model_fields, "wrod")})

    assert CANARY not in str(raised.value)
    assert CANARY not in repr(raised.value)


@pytest.mark.parametrize("place", [("registry", "user"), ("kafka", "sasl.username")])
def test_a_password_behind_the_users_name_is_not_shown(place: tuple[str, ...], tmp_path: Path) -> None:
    text = said(spoilt(place, f"bob:{CANARY}"), tmp_path)

    assert place[-1] in text
    assert CANARY not in text


@pytest.mark.parametrize("password", [f"a/{CANARY}", f"a@b/{CANARY}", f"{CANARY} x"])
def test_the_address_of_a_given_postgresql_is_shown_without_its_password(password: str) -> None:
    try:
        text = without_password(f"postgresql://bob:{password}@127.0.0.1:1/shop")
    except ConfigError as error:
        text = str(error)

    assert CANARY not in text
