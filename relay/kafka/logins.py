"""Names and passwords that lie in files: who is not let in with what was read asks what the files say now.

So a password for the brokers, or for a registry, may be changed there and in its file, in any order, under processes that go on
for ever. What a client shows when it is made, and once it was refused, is decided here; that it shows it, in `relay.kafka.clients`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from relay.message.errors import ConfigError
from relay.world import clock

LOOK_S: Final = 1.0
"""However many clients are refused, and however often: the files are read so seldom."""
_log: Final = logging.getLogger("relay.kafka")


@dataclass(frozen=True)
class Credentials:
    """Who somebody is, and how he proves it."""

    user: str
    password: str = field(repr=False)


class Login:
    """What a configuration gives for one place to log in at. ``where`` says which keys and files, for a sentence."""

    def __init__(self, given: Credentials, again: Callable[[], Credentials], where: str) -> None:
        self.in_force = given
        self._again = again
        self._where = where
        self._problem = ""
        self._look_at = float("-inf")

    def look(self) -> Credentials:
        """Return what the files say now, for whoever was refused; what they said before if that cannot be told. Never raises."""
        now = clock.monotonic()
        if now < self._look_at:
            return self.in_force
        self._look_at = now + LOOK_S
        try:
            found = self._again()
        except ConfigError as error:
            self._problem = f" ({error})"
            return self.in_force
        self._problem = ""
        if found != self.in_force:
            self.in_force = found
            _log.info("was refused, and goes on with what is now in %s", self._where)
        return found

    @property
    def where(self) -> str:
        """Return which keys of the configuration have it from which files, and what is wrong with these."""
        return f"{self._where}{self._problem}"


_followed: Final[dict[tuple[str, Credentials], Login]] = {}
"""By what was read with the configuration, which is how everybody's settings go on to say it."""


def follow(place: str, given: Credentials, again: Callable[[], Credentials], where: str) -> None:
    """Let ``again`` say what is to be shown at a place from now on; it raises ConfigError with the reason while that cannot be told."""
    _followed[place, given] = Login(given, again, where)


def login_at(place: str, given: Credentials | None) -> Login | None:
    """Return what is known of a login, None if nothing of it lies in a file."""
    return None if given is None else _followed.get((place, given))


def login_of(kafka: Mapping[str, object]) -> Login | None:
    """Return the login that client settings speak of, None if nothing of it lies in a file."""
    user, password = kafka.get("sasl.username"), kafka.get("sasl.password")
    if not isinstance(user, str) or not isinstance(password, str):
        return None
    return login_at(str(kafka.get("bootstrap.servers", "")), Credentials(user, password))


def refusal_of(kafka: Mapping[str, object]) -> str:
    """Return the beginning of a sentence: brokers refuse what these settings show."""
    if "oauth_cb" in kafka or "token_file" in kafka:
        return "the brokers refuse the token of kafka.token_file"
    login = login_of(kafka)
    return f"the brokers refuse the name and the password{f' of {login.where}' if login else ''}"
