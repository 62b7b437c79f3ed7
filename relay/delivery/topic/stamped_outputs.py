"""What the outputs show of a torn transaction: each record there names the one that wrote it, and its message's digest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from relay.delivery.ports import Reader
from relay.delivery.topic.unshown import Outputs
from relay.message.envelope import OUT_DIGEST, OUT_INSTANCE, OUT_N
from relay.message.identity import DIGEST_BYTES
from relay.message.record import LogPartition, Record, headers_if_any
from relay.monitor.entries import Begin

Stamped = dict[tuple[bytes | None, bytes | None], bytearray]
"""Digests by the transaction that the records' own headers name."""


class Visible(NamedTuple):
    """Digests of what a transaction shows to a read_committed reader: of outputs, and of dead letters."""

    outputs: bytes
    letters: bytes


def what_shows(
    scanner: Reader, reader: Reader, begins: Mapping[tuple[bytes, int], Begin], today: Outputs
) -> dict[tuple[bytes, int], Visible | str]:
    """Return what each transaction shows, or why nobody can tell: where it wrote may have lost that, or be another topic by now.

    Every output partition is read once, however many transactions are looked for in it, and up to its high watermark:
    the last stable offset may lie below the outputs while somebody else's transaction is open there.
    """
    shown: dict[tuple[bytes, int], Visible | str] = {}
    outputs: Stamped = {}
    letters: Stamped = {}
    spans: dict[LogPartition, tuple[int, int]] = {}
    for key, begin in begins.items():
        own = outputs_of(begin, today, scanner)
        if isinstance(own, str):
            shown[key] = own
            continue
        outputs[_stamp(begin)], letters[_stamp(begin)] = bytearray(), bytearray()
        for partition, (first, high) in own.items():
            before = spans.get(partition, (first, high))
            spans[partition] = (min(first, before[0]), max(high, before[1]))
    for found, of_letters in ((outputs, False), (letters, True)):
        for records in reader.read({place: span for place, span in spans.items() if (place in today.deads) is of_letters}):
            for record in records:
                gather_stamped(record, found)
    stamps = {key: _stamp(begin) for key, begin in begins.items() if key not in shown}
    return shown | {key: Visible(bytes(outputs[stamp]), bytes(letters[stamp])) for key, stamp in stamps.items()}


def outputs_of(begin: Begin, today: Outputs, scanner: Reader) -> dict[LogPartition, tuple[int, int]] | str:
    """Return where a transaction may have left records, up to the high watermarks, or why that cannot tell any more what it left."""
    own: dict[LogPartition, tuple[int, int]] = {}
    for output in begin.outputs:
        partition = LogPartition(output.topic, output.partition)
        is_there = today.has(partition, scanner)
        low, high = scanner.watermarks(partition) if is_there else (0, 0)
        if not is_there or low > output.offset or today.is_another(partition, begin):
            is_now = "is another one by now, or no more" if low <= output.offset else f"starts at {low}, above {output.offset}"
            return (
                f"{partition.topic}[{partition.partition}] {is_now}: whether "
                f"transaction {begin.n} of {begin.transactional_id} left records there can no longer be told"
            )
        own[partition] = (output.offset, high)
    return own


def _stamp(begin: Begin) -> tuple[bytes, bytes]:
    return begin.instance.hex().encode(), b"%d" % begin.n


def gather_stamped(record: Record, found: Stamped) -> None:
    """Note an output's digest under the transaction that it is of; nothing for whatever else may lie in the topic."""
    headers = dict(headers_if_any(record))
    into = found.get((headers.get(OUT_INSTANCE), headers.get(OUT_N)))
    if into is None:
        return
    try:
        digest = bytes.fromhex((headers.get(OUT_DIGEST) or b"").decode())
    except ValueError:
        return  # a stranger's: no digest
    if len(digest) == DIGEST_BYTES:
        into += digest
