"""What a queue's archive has of its messages, read as any reader of Avro would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro


def archived(folder: Path, queue: str) -> Iterator[dict[str, Any]]:
    """Yield the archived messages of a queue, oldest file first, each handle once, as it was written last."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob(f"{queue}.*.avro")):
        with path.open("rb") as file:
            found += fastavro.reader(file)  # type: ignore[arg-type]
    last = {record["handle"]: place for place, record in enumerate(found)}
    yield from (record for place, record in enumerate(found) if last[record["handle"]] == place)
