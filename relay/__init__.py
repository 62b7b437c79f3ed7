"""The relay: captured with the database, relayed exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relay.capture.publisher import Capture

__version__ = "0.1.0"
__all__ = ["Capture", "__version__"]


def __getattr__(name: str) -> Any:
    """Load `Capture` on first use, so that importing the package stays light."""
    if name == "Capture":
        from relay.capture.publisher import Capture  # noqa: PLC0415 - that is the point

        return Capture
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
