"""The relay's own tables as a simulated database holds them: name, columns, unique key (see relay.resources.schema)."""

from __future__ import annotations

from typing import Final

RELAY_TABLES: Final = (
    ("relay_resource", {"uuid": "text", "single": "boolean"}, ("single",)),
    (
        "relay_capture",
        {"capture": "bytes", "nonce": "bytes", "outcome": "text", "partitions": "text", "marked": "boolean",
         "created_at": "number"},
        ("capture",),
    ),
    (
        "relay_position",
        {"relay": "text", "route": "text", "topic_id": "bytes", "topic": "text", "partition": "integer",
         "position": "integer", "epoch": "integer", "worker": "text", "writes": "integer"},
        ("relay", "route", "topic_id", "partition"),
    ),
    (
        "relay_inbox",
        {"relay": "text", "route": "text", "digest": "bytes", "content": "bytes", "topic_id": "bytes",
         "partition": "integer", "log_offset": "integer", "outcome": "integer", "applied": "integer"},
        ("relay", "route", "digest"),
    ),
    (
        "relay_range",
        {"relay": "text", "route": "text", "topic_id": "bytes", "partition": "integer", "publisher": "bytes",
         "state": "bytes"},
        ("relay", "route", "topic_id", "partition", "publisher"),
    ),
)  # fmt: skip
