"""CONFIGURATION.md has every option there is, with its default, and none that is not; README's examples are true."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from relay.config import queues as queue_config
from relay.config import routes as route_config
from relay.config.loading import examine
from relay.config.model import RelaySection, ResourceConfig
from relay.config.quantities import duration, size
from relay.config.registry import RegistryConfig
from relay.config.timing import Timing
from relay.kafka import settings
from relay.kafka.settings import Allowed

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "relay/config/CONFIGURATION.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
SPARK = (ROOT / "spark/README.md").read_text("utf-8")
SECTIONS: dict[str, type[BaseModel]] = {
    "## [relay]": RelaySection,
    "## [resources.NAME]": ResourceConfig,
    "## [routes.NAME]": route_config.RouteConfig,
    "### batch": route_config.BatchLimits,
    "### inflight": route_config.InFlight,
    "### to a topic": route_config.TopicDestination,
    "### to a table": route_config.TableDestination,
    "### to a queue": route_config.QueueDestination,
    "## [queues.NAME]": queue_config.QueueConfig,
    "### subscribers": queue_config.SubscriberEntry,
    "### retain": queue_config.RetainSection,
    "### balancing": queue_config.BalancingSection,
    "## [registry]": RegistryConfig,
    "## [timing]": Timing,
}
NAMED = ("## [resources.NAME]", "## [routes.NAME]", "## [queues.NAME]")
"""Here ``name`` is the last word of the section's title."""
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def documented(title: str) -> dict[str, str]:
    """Return the options of one section with their defaults as written."""
    (body,) = re.findall(rf"^{re.escape(title)}\n(.*?)(?=^##|\Z)", REFERENCE, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", body, re.MULTILINE))


def options(title: str) -> dict[str, FieldInfo]:
    fields = SECTIONS[title].model_fields
    return {field.alias or name: field for name, field in fields.items() if (title in NAMED, name) != (True, "name")}


def is_default(written: str, field: FieldInfo) -> bool:
    default: Any = field.get_default(call_default_factory=True)
    if field.is_required() or written == "needed":
        return field.is_required() and written == "needed"
    if default is None or written == "none":
        return default is None and written == "none"
    if isinstance(default, BaseModel):
        return not written.startswith("`")
    value = tomllib.loads(f"value = {written.strip('`')}")["value"]
    if isinstance(default, bool | str | list):
        return bool(value == default)
    if isinstance(default, Path):
        return Path(value) == default
    return (duration(value) if isinstance(default, float) else size(value)) == default


def client_setting(name: str, allowed: Allowed) -> tuple[str, str, str, str]:
    """Return a row of the table of client settings; *client's* is a default that the relay leaves to librdkafka."""
    reading, writing = settings.consumer({}, Timing(), ""), settings.producer({}, Timing())
    given = {who: str(found[name]).lower() for who, found in (("consumers", reading), ("producers", writing)) if name in found}
    values = set(given.values())
    words = ", ".join(f"`{word}`" for word in allowed.words)
    bounds = "" if allowed.least is None else f"{allowed.least} to {allowed.most}"
    if name == "bootstrap.servers":
        default = "needed"
    elif not values:
        default = "client's" if words or bounds else "none"
    elif allowed.scope != "all" or (len(given) == 2 and len(values) == 1):
        default = f"`{values.pop()}`"
    else:
        default = ", ".join(f"`{value}` ({who})" for who, value in given.items())
    return name, allowed.scope + "s" * (allowed.scope != "all"), default, words or bounds or "text"


def test_each_client_setting_that_is_allowed_is_documented_and_no_other_is() -> None:
    (body,) = re.findall(r"^## \[kafka\]\n(.*?)(?=^##)", REFERENCE, re.MULTILINE | re.DOTALL)
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in body.splitlines() if line.startswith("| `")]

    assert [(name.strip("`"), *rest) for name, *rest in rows] == [client_setting(*one) for one in settings.ALLOWED.items()]


@pytest.mark.parametrize("title", SECTIONS)
def test_each_option_is_documented_with_its_default_and_no_other_is(title: str) -> None:
    written, real = documented(title), options(title)

    assert sorted(written) == sorted(real)
    assert [name for name in real if not is_default(written[name], real[name])] == []


def test_what_must_not_be_lost_of_the_state_is_named() -> None:
    (row,) = re.findall(r"^\| `state` \|.*$", REFERENCE, re.MULTILINE)
    source = "".join(path.read_text("utf-8") for folder in ("relay", "spark") for path in sorted((ROOT / folder).rglob("*.py")))
    marks_and_benchmarks = {"work", "fresh"}
    folders = set(re.findall(r'relay\.state / "(\w+)"', source)) - marks_and_benchmarks

    assert {"journal", "spark"} <= folders
    assert [name for name in sorted(folders) if f"`{name}/`" not in row] == []


def test_each_option_and_column_of_sparks_format_is_documented() -> None:
    from relay.spark import options as spark_options  # noqa: PLC0415 - only this test needs PySpark
    from relay.spark import rows  # noqa: PLC0415

    (body,) = re.findall(r'^## format\("relay"\)\n(.*?)(?=^##)', SPARK, re.MULTILINE | re.DOTALL)
    table, columns = body.split("Columns:")

    assert {name.lower() for name in re.findall(r"`(\w+)`", table)} >= spark_options._OWN
    assert set(re.findall(r"`(\w+)`", columns.partition(". ")[0])) == set(rows._TYPES)


def test_readmes_configuration_is_one_file_that_passes_the_check(tmp_path: Path) -> None:
    path = tmp_path / "relay.toml"
    path.write_text("\n".join(text for kind, text in BLOCKS if kind == "toml"))

    config, faults = examine(path, {"HOSTNAME": "here", "SHOP_URL": "postgresql://clerk@127.0.0.1/shop"})

    assert faults == []
    assert config is not None
    assert list(config.routes) == ["to-ledger", "to-table", "to-credit"]
    assert list(config.queues) == ["credit", "mail"]


def test_readmes_python_compiles_and_imports_what_there_is() -> None:
    blocks = [text for kind, text in BLOCKS if kind == "python"]
    trees = [ast.parse(text) for text in blocks]
    names = [
        (node.module, alias.name)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]

    assert names == [("relay", "Capture"), ("relay", "Unusable"), ("relay", "subscriber")]
    assert all(hasattr(__import__("relay"), name) for _, name in names)


def test_readmes_commands_exist() -> None:
    from relay.cli.main import COMMANDS  # noqa: PLC0415 - only this test needs them

    named = set(re.findall(r"^relay ([a-z|]+)", README, re.MULTILINE)) | set(re.findall(r"`relay ([a-z|]+)", README))
    words = {word for group in named for word in group.split("|")} - {""}

    assert words
    assert sorted(words - COMMANDS.keys()) == []
