"""A token that somebody else renews in a file: how a client proves who it is by OAUTHBEARER (RFC 7628, KIP-255).

What renews it may be a platform (Kubernetes' projected tokens) or a process beside this one. Nothing here asks an identity
provider, so no configuration makes a process call an address of somebody's choice.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from pathlib import Path
from typing import Any, Final

import orjson

from relay.message.errors import Unreachable
from relay.message.limits import raise_limit
from relay.world import clock
from relay.world.seldom import Repeats

LIFE_S: Final = 300.0
"""So long a client goes by what it has read; it reads again when four fifths are over, or sooner where the token ends sooner."""
LEAST_S: Final = 10.0
"""An old token is better than none: without any, a client cannot even be made, while a broker that refuses one says so."""
OVERDUE_S: Final = 30.0
"""A client asks when four fifths are over: so long after the end it goes by a clock that was put back."""
_BYTES_MAX: Final = 64 << 10
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_JWT_PARTS: Final = 3
_log: Final = logging.getLogger("relay.kafka")


class Bearer:
    """The ``oauth_cb`` of one client. Raises Unreachable if the file cannot be read, or holds no token, now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._repeats = Repeats()
        self._token = self._read()
        self._ends_at = float("inf")

    def __call__(self, _config: str) -> tuple[str, float]:
        """Return a token and its end in seconds since the epoch; never raises: the client's own thread asks."""
        now = clock.wall_ms() / 1000
        life_s = self._life_s(now)
        self._ends_at = clock.monotonic() + life_s
        return self._token, now + life_s

    @property
    def is_overdue(self) -> bool:
        """Should its client have asked again long ago? That goes by the wall clock alone, which may have been put back by hours."""
        return clock.monotonic() > self._ends_at + OVERDUE_S

    def _life_s(self, now: float) -> float:
        """Read again, and return for how long the client is to go by what there is."""
        try:
            self._token = self._read()
        except Exception as error:  # noqa: BLE001 - retry soon, with the token that is there
            self._say(str(error))
            return LEAST_S
        end = end_of(self._token)
        if end is not None and end <= now:
            self._say(f"{self._where}: its token ended {now - end:.0f} s ago; see to what renews it")
        return max(LEAST_S, min(LIFE_S, LIFE_S if end is None else end - now))

    @property
    def _where(self) -> str:
        return f"kafka.token_file = {self._path}"

    def _read(self) -> str:
        try:
            with self._path.open("rb") as file:
                text = file.read(_BYTES_MAX + 1).decode("ascii", "replace").strip()
        except OSError as error:
            raise_limit(error)
            reason = error.strerror or "unknown"
            raise Unreachable(f"{self._where}: the file cannot be read ({reason}); correct the path, or the right to read it") from None
        if len(text) > _BYTES_MAX or not _TOKEN.fullmatch(text):
            raise Unreachable(f"{self._where}: the file holds no bearer token, which is one word of at most 64 KiB; see to what writes it")
        return text

    def _say(self, sentence: str) -> None:
        if not self._repeats.is_one(sentence, clock.monotonic()):
            _log.warning("%s", sentence)


def end_of(token: str) -> float | None:
    """Return when a token says that it ends, in seconds since the epoch; None if it is no JWT, or does not say."""
    parts = token.split(".")
    if len(parts) != _JWT_PARTS:
        return None
    try:
        claims: Any = orjson.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, orjson.JSONDecodeError):
        return None
    end = claims.get("exp") if isinstance(claims, dict) else None
    return float(end) if isinstance(end, int | float) else None
