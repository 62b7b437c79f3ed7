"""How captures without a valid committed marker ended: by their resource's row, else as a person told, else by a hint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from relay.audit import tables, units
from relay.audit.ledger import Ledger, Outcome
from relay.capture.decisions import unit_of
from relay.config.model import RelayConfig
from relay.message.envelope import ResourceName
from relay.monitor.resolution import Resolutions, Told


class Asked(NamedTuple):
    """Whom captures must be asked of, by the resource that their messages name; of ``hinted`` only a marker tells."""

    by_resource: dict[str, list[bytes]]
    of_units: dict[bytes, ResourceName]
    hinted: set[bytes]


def sorted_out(config: RelayConfig, uuids: Mapping[str, str], captures: Iterable[tuple[bytes, bytes, bool]]) -> Asked:
    """Sort captures (id, raw resource, whether an aborted marker names it); ``uuids`` are of the databases that answer.

    Only where this relay has no such resource is an aborted marker believed by itself.
    """
    asked = Asked({}, {}, set())
    for capture, raw, is_hinted in captures:
        name = ResourceName.decode(raw)
        if name is None:
            continue
        if unit_of(name) is not None:
            asked.of_units[capture] = name
        elif name.name not in config.resources:
            asked.hinted.update((capture,) if is_hinted else ())
        elif uuids.get(name.name) == name.uuid:
            asked.by_resource.setdefault(name.name, []).append(capture)
    return asked


def decisions(
    config: RelayConfig, ledger: Ledger, uuids: Mapping[str, str], resolutions: Resolutions
) -> list[tuple[bytes, Outcome | None]]:
    """Decide the captures of the ledger that are open; ``uuids`` are those of the databases that answer.

    Raises Unreachable.
    """
    opened = ledger.open_captures()
    asked = sorted_out(config, uuids, ((capture, raw, ledger.hints(capture)) for capture, raw in opened.items()))
    found = units.outcomes(config, asked.of_units)
    for resource, captures in asked.by_resource.items():
        found |= _rows_of(config, resource, captures)
    return [(capture, ended(capture, found, resolutions, asked)) for capture in opened]


def ended(
    capture: bytes, found: Mapping[bytes, Outcome], resolutions: Resolutions, asked: Asked
) -> Outcome | None:
    """Return how a capture ended: by a row, else as a person told, else by a hint."""
    hinted = Outcome.ABORTED if capture in asked.hinted else None
    return found.get(capture) or told(resolutions, capture) or hinted


def told(resolutions: Resolutions, capture: bytes) -> Outcome | None:
    """Return what a person decided of a capture, if an owner has obeyed."""
    resolution = resolutions.capture(capture)
    if resolution is None or not resolutions.is_obeyed(resolution):
        return None
    return Outcome.COMMITTED if resolution.told is Told.COMMIT else Outcome.ABORTED


def _rows_of(config: RelayConfig, resource: str, captures: Sequence[bytes]) -> dict[bytes, Outcome]:
    """Ask for decisions as they are now: the snapshot of the destination is older than the log's last messages."""
    store = tables.open_store(resource, config.resources[resource])
    try:
        return store.captures(captures)
    finally:
        store.close()
