"""The section ``[registry]``: where a Confluent-compatible schema registry listens, and what is kept of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from relay.config.faults import Fault, Wrong
from relay.config.quantities import Seconds
from relay.kafka.settings import is_loopback
from relay.message.limits import raise_limit

_EXAMPLE: Final = 'write url = "https://host:8081"'
KEY: Final = "registry"


def _url_rule(value: str) -> str:
    try:
        parts = urlsplit(value)
        lawful = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        raise Wrong("not an address", _EXAMPLE) from None
    if not lawful:
        raise Wrong("not the address of a registry", _EXAMPLE)
    if parts.username is not None or parts.password is not None:
        raise Wrong(
            "an address is shown in messages, so it holds no password", "write user = ... and password = ..."
        )
    if parts.query or parts.fragment or "," in value or any(one.isspace() for one in value):
        raise Wrong("it holds more than one address", _EXAMPLE)
    return value.rstrip("/")


class RegistryConfig(BaseModel):
    """A registry. ``register_`` lets publishers register their schemas; without it they must be there already.

    ``timeout`` bounds connecting and each pause of an answer; ``cache`` is the number of schemas kept.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, populate_by_name=True)

    url: Annotated[str, AfterValidator(_url_rule)]
    user: str | None = Field(default=None, min_length=1, pattern="^[^:]*$")
    password: SecretStr | None = None
    ca: Path | None = None
    timeout: Seconds = Field(default=5.0, ge=0.1, le=60)
    cache: int = Field(default=1_000, ge=1, le=100_000)
    register_: bool = Field(default=False, alias="register")

    @property
    def credentials(self) -> str | None:
        """``user:password``; a secret."""
        if self.user is None or self.password is None:
            return None
        return f"{self.user}:{self.password.get_secret_value()}"


def registry_faults(registry: RegistryConfig, *, allow_plaintext: bool) -> Iterator[Fault]:
    """Yield every broken rule between the section's settings."""
    parts = urlsplit(registry.url)
    if parts.scheme == "http" and not allow_plaintext and not is_loopback(parts.hostname or ""):
        remedy = "write https://, or [relay] allow_plaintext = true"
        yield Fault(f"{KEY}.url", repr(registry.url), "another machine, and http is not encrypted", remedy)
    if (registry.user is None) != (registry.password is None):
        yield Fault(
            f"{KEY}.user", "", "a user needs a password and a password a user", "give both or neither"
        )
    if registry.ca is not None:
        if parts.scheme == "http":
            yield Fault(
                f"{KEY}.ca",
                str(registry.ca),
                "http has no use for certificates",
                "write https://, or leave it out",
            )
        try:
            with registry.ca.open("rb"):
                pass
        except OSError as error:
            raise_limit(error)
            yield Fault(
                f"{KEY}.ca",
                str(registry.ca),
                f"the file cannot be read ({error.strerror})",
                "correct the path",
            )
