"""What an application imports from ``relay``: every name is there, known to type checkers, and loaded only when it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from contextlib import AbstractContextManager
from inspect import signature
from pathlib import Path

import pytest

import relay
from relay.capture import block
from relay.capture.block import CaptureBlock

SOURCE = Path(relay.__file__)
HEAVY = ("confluent_kafka", "psycopg", "pydantic", "structlog", "orjson", "fastavro", "typer", "asyncio", "sqlite3")
NAMES = [name for name in relay.__all__ if not name.startswith("__")]


def loaded_by(code: str) -> list[str]:
    shown = f"import sys\n{code}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    return run.stdout.split()


def test_importing_the_package_and_its_errors_loads_no_client() -> None:
    assert loaded_by("import relay") == []
    assert loaded_by("from relay import CaptureError, CaptureInDoubt, ConfigError, Unreachable") == []


def test_a_handlers_module_loads_no_kafka_client() -> None:
    assert "confluent_kafka" not in loaded_by("from relay import Unusable, subscriber")


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_there(name: str) -> None:
    fresh = f"from relay import {name}\nassert {name}.__name__ == {name!r}"

    assert subprocess.run([sys.executable, "-c", fresh], check=False).returncode == 0
    assert name in dir(relay)


def test_type_checkers_are_told_of_the_same_names_at_the_same_places() -> None:
    told = {
        alias.name: str(node.module).removeprefix("relay.")
        for block in ast.parse(SOURCE.read_text("utf-8")).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert told == {name: place for place, names in relay._PLACES.items() for name in names}
    assert sorted(told) == sorted(NAMES)
    assert (SOURCE.parent / "py.typed").exists(), "or a type checker takes none of it"


def test_another_name_is_none() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Captor'"):
        relay.Captor  # noqa: B018


def test_what_must_be_told_apart_is_apart() -> None:
    assert not issubclass(relay.CaptureInDoubt, relay.CaptureError), "whoever runs a block again must not do so on this"
    assert issubclass(relay.CaptureFenced, relay.CaptureError)


def test_a_block_is_a_context_manager_to_every_type_checker() -> None:
    """pyright takes no `__exit__` that is looked up as an attribute: neither `ExitStack` nor an annotation took a block."""
    tree = ast.parse(Path(block.__file__).read_text("utf-8"))
    (told,) = [one for one in ast.walk(tree) if isinstance(one, ast.ClassDef) and one.name == "CaptureBlock"]
    seen = [one for part in told.body if isinstance(part, ast.If) for one in part.body]

    assert [one.name for one in seen if isinstance(one, ast.FunctionDef) and not one.decorator_list] == ["__exit__"]
    assert issubclass(CaptureBlock, AbstractContextManager)


def test_what_a_capture_gives_has_a_name_to_annotate_it_with() -> None:
    given = {signature(function).return_annotation for function in (relay.Capture.avro, relay.Capture.transaction)}

    assert given <= set(relay.__all__)
