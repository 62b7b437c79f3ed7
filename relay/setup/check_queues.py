"""What ``relay check --connect`` asks of queues: whether each store is there, is the one recorded, and can be used."""

from __future__ import annotations

from pathlib import Path

from relay.config.model import RelayConfig
from relay.message.errors import ConfigError, Retriable, Stopped, Unreachable
from relay.queue.desired import Desired, Step
from relay.run.queues import address, open_queue
from relay.setup.check_topics import Findings


def check_queues(config: RelayConfig, desired: Desired, findings: Findings) -> None:
    """Ask every store; what does not answer is a finding, not an error. Nothing is created."""
    for name in config.queues:
        _check(config, name, desired, findings)


def _check(config: RelayConfig, name: str, desired: Desired, findings: Findings) -> None:
    key = f"queues.{name}.store"
    path = _path(address(config, name, desired))
    if path is not None and not path.exists():
        findings.fault(key, str(path), "does not exist on this host", "run `relay migrate`, or run where it lies")
        return
    try:
        open_queue(config, name, desired).close()
    except (ConfigError, Stopped) as other:  # another store, or its tables or the rights to them are missing
        findings.refused(key, other)
        return
    except (Retriable, Unreachable) as away:
        findings.unreachable.append(f"queue {name}: {away}")
        return
    findings.checked.append(f"queue {name}")
    move = desired.moves.get(name)
    if move is not None and move.step is not Step.MOVED:
        findings.notes.append(f"queue {name}: its move to {move.target} is not finished; run `relay queue migrate` again")
    elif desired.store_of(name, config.queues[name].store) != config.queues[name].store:
        where = desired.store_of(name, config.queues[name].store)
        findings.notes.append(f"queue {name}: it lies in {where} by now; write store = {where!r} into the configuration")


def _path(url: str) -> Path | None:
    inner = url.removeprefix("log+")
    for prefix in ("sqlite:///", "files:///"):
        if inner.startswith(prefix):
            return Path(inner.removeprefix(prefix))
    return None
