"""The relay: captured with the database, relayed exactly once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from relay.capture.async_block import AsyncCaptureBlock
    from relay.capture.block import CaptureBlock
    from relay.capture.capture import Capture
    from relay.message.avro_values import AvroEncoder
    from relay.message.errors import (
        CaptureError,
        CaptureFenced,
        CaptureInDoubt,
        ConfigError,
        HeadersRefused,
        InDoubt,
        RelayError,
        Unreachable,
    )
    from relay.resources.port import RowLocked
    from relay.work.coroutines import AwaitedDatabase
    from relay.work.desk import CallOver
    from relay.work.desks import Database
    from relay.work.further import FurtherDatabase
    from relay.work.message import Message
    from relay.work.subscriber import Handler, Later, Unusable, subscriber

__version__ = "0.1.0"
__all__ = [
    "AsyncCaptureBlock",
    "AvroEncoder",
    "AwaitedDatabase",
    "CallOver",
    "Capture",
    "CaptureBlock",
    "CaptureError",
    "CaptureFenced",
    "CaptureInDoubt",
    "ConfigError",
    "Database",
    "FurtherDatabase",
    "Handler",
    "HeadersRefused",
    "InDoubt",
    "Later",
    "Message",
    "RelayError",
    "RowLocked",
    "Unreachable",
    "Unusable",
    "__version__",
    "subscriber",
]
_PLACES: Final = {
    "capture.async_block": ("AsyncCaptureBlock",),
    "capture.block": ("CaptureBlock",),
    "capture.capture": ("Capture",),
    "message.avro_values": ("AvroEncoder",),
    "message.errors": (
        "CaptureError", "CaptureFenced", "CaptureInDoubt", "ConfigError", "HeadersRefused", "InDoubt", "RelayError", "Unreachable",
    ),
    "resources.port": ("RowLocked",),
    "work.coroutines": ("AwaitedDatabase",),
    "work.desk": ("CallOver",),
    "work.desks": ("Database",),
    "work.further": ("FurtherDatabase",),
    "work.message": ("Message",),
    "work.subscriber": ("Handler", "Later", "Unusable", "subscriber"),
}  # fmt: skip


if not TYPE_CHECKING:  # or a checker would believe in any name

    def __getattr__(name: str) -> object:
        """Load what is named on first use, so that importing the package stays light."""
        for place, names in _PLACES.items():
            if name in names:
                found = getattr(import_module(f"relay.{place}"), name)
                globals()[name] = found
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
