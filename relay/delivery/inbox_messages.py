"""The messages of inbox rows: as far as an entry needs them, or whole, read from the log again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relay.delivery.ports import Reader
from relay.message.envelope import outgoing
from relay.message.identity import content_digest
from relay.message.record import LogMessage, Record, headers_if_any
from relay.transfer.cursor import InboxRow


def read_again(reader: Reader, rows: Sequence[InboxRow]) -> Iterator[LogMessage]:
    """Read the messages of inbox rows from the log, but for those that have left it by now.

    What lies between is read as well: that is far less than asking for each, and there may be many thousands. At a
    row's place may lie the message of another topic of that name, which the content tells.
    """
    wanted = {(row.partition, row.offset): row for row in rows}
    for place in {row.partition for row in rows}:
        low, high = reader.watermarks(place)
        offsets = [row.offset for row in rows if row.partition == place and low <= row.offset < high]
        if not offsets:
            continue
        for records in reader.read({place: (min(offsets), max(offsets) + 1)}):
            for record in records:
                row = wanted.get((place, record.offset() or 0))
                if row is not None and content_digest(record.key(), record.value()) == row.content:
                    yield _as_read(row, record)


def _as_read(row: InboxRow, record: Record) -> LogMessage:
    headers = outgoing(headers_if_any(record))
    return as_message(row)._replace(
        key=record.key(), value=record.value(), headers=headers, timestamp_ms=record.timestamp()[1]
    )


def as_message(row: InboxRow) -> LogMessage:
    """An inbox row as far as an entry needs it."""
    return LogMessage(
        row.partition.topic, row.partition.partition, row.offset, None, None, [], row.digest, row.content, b"", None, 0
    )
