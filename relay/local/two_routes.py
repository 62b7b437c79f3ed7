"""Two routes that read the same topics, one into a topic and one into a table: what both demonstrations relay, kill and audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

TO_TOPIC: Final = "to-topic"
TO_TABLE: Final = "to-table"
LEDGER: Final = "ledger"
"""The table."""


def two_routes(resource: str, inputs: Sequence[str], output: str, columns: Mapping[str, str] | None = None) -> str:
    """Return the resource and its routes in TOML. ``columns`` are further ones of the table; its address lies in ``postgres.url`` beside."""
    read = ", ".join(f'"{topic}"' for topic in inputs)
    further = "".join(f'{name} = "{source}"\n' for name, source in (columns or {}).items())
    return f"""\
[resources.{resource}]
url = "${{file:postgres.url}}"

[routes.{TO_TOPIC}]
from = [{read}]
to = {{ topic = "{output}" }}

[routes.{TO_TABLE}]
from = [{read}]

[routes.{TO_TABLE}.to]
table = "{LEDGER}"
resource = "{resource}"
mode = "insert"

[routes.{TO_TABLE}.to.columns]
id = "ce:id"
source = "ce:source"
{further}"""
