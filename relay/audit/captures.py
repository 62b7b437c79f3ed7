"""How captures without a valid committed marker ended: by their resource's row, else as a person told, else by a hint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relay.audit import tables, units
from relay.audit.ledger import Ledger, Outcome
from relay.capture.decisions import unit_of
from relay.config.model import RelayConfig
from relay.message.envelope import ResourceName
from relay.monitor.resolution import Resolutions, Told


def decisions(
    config: RelayConfig, ledger: Ledger, uuids: Mapping[str, str], resolutions: Resolutions
) -> list[tuple[bytes, Outcome | None]]:
    """Decide the captures of the ledger that are open; ``uuids`` are those of the databases that answer.

    Only where this relay has no such resource is an aborted marker believed by itself. Raises Unreachable.
    """
    hinted: set[bytes] = set()
    by_resource: dict[str, list[bytes]] = {}
    of_units: dict[bytes, ResourceName] = {}
    for capture, raw in ledger.open_captures().items():
        name = ResourceName.decode(raw)
        if name is None:
            continue
        if unit_of(name) is not None:
            of_units[capture] = name
        elif name.name not in config.resources:
            hinted |= {capture} if ledger.hints(capture) else set()
        elif uuids.get(name.name) == name.uuid:
            by_resource.setdefault(name.name, []).append(capture)
    found = units.outcomes(config, of_units)
    for resource, captures in by_resource.items():
        found |= _rows_of(config, resource, captures)
    return [
        (
            capture,
            found.get(capture) or told(resolutions, capture) or (Outcome.ABORTED if capture in hinted else None),
        )
        for capture in ledger.open_captures()
    ]


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
