"""The relay: captured with the database, relayed exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relay.capture.publisher import Capture
    from relay.work.subscriber import Unusable, subscriber

__version__ = "0.1.0"
__all__ = ["Capture", "Unusable", "__version__", "subscriber"]


def __getattr__(name: str) -> Any:
    """Load what is named on first use, so that importing the package stays light."""
    if name == "Capture":
        from relay.capture.publisher import Capture  # noqa: PLC0415 - that is the point

        return Capture
    if name in {"Unusable", "subscriber"}:
        from relay.work import subscriber as declaring  # noqa: PLC0415 - that is the point

        return getattr(declaring, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
