"""Guards of redriving, each removable by name, as in `removals`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import relay.run.redriving
from relay.delivery.table.route import TableDelivery
from relay.delivery.topic.sealed import SealedProducer, SealedWork
from relay.monitor.index import Standing
from relay.monitor.redrive import Do, Wanted

Change = tuple[Any, str, Any]


def every_order_obeyed() -> list[Change]:
    """Whatever an order names is delivered, dead or not."""

    def decide(_wanted: Wanted, standing: Standing | None) -> tuple[Do, str]:
        return (Do.REFUSE if standing is None else Do.DELIVER), ""

    return [(relay.run.redriving, "decide", decide)]


def taken_back_with_the_outputs() -> list[Change]:
    """What takes dead letters back is written before the outputs are acknowledged."""
    write, take_back = SealedProducer._write_outputs, SealedProducer._take_back

    def write_outputs(self: SealedProducer, work: SealedWork) -> None:
        take_back(self, work)
        write(self, work)

    return [(SealedProducer, "_write_outputs", write_outputs), (SealedProducer, "_take_back", lambda self, work: None)]


def trimmed_beside_redrives() -> list[Change]:
    """Inbox rows are trimmed whatever is under way."""
    return [(TableDelivery, "_awaits_redriven", lambda self: False)]


REDRIVE_REMOVALS: Final[Mapping[str, Callable[[], list[Change]]]] = {
    removal.__name__: removal for removal in (every_order_obeyed, taken_back_with_the_outputs, trimmed_beside_redrives)
}
