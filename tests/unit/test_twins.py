"""Of two processes under one name the older stops, whoever looks first."""

from __future__ import annotations

import pytest

from relay.message.errors import TwinDetected
from relay.run.twins import Twins


class Shared:
    """The control topic, in memory."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes]] = []

    def last(self, key: bytes) -> bytes | None:
        return next((value for name, value in reversed(self.records) if name == key), None)

    def put(self, key: bytes, value: bytes, *, wait: bool) -> None:
        assert wait, "joining before the announcement is there would let the older one look too early"
        self.records.append((key, value))


def announced(register: Shared, worker: str) -> Twins:
    twins = Twins(register, worker)
    twins.announce()
    return twins


def test_the_older_of_two_stops_and_the_newer_goes_on() -> None:
    register = Shared()
    older, newer = announced(register, "w"), announced(register, "w")

    newer.check()
    with pytest.raises(TwinDetected, match=r"give each relay its own \[relay\] instance; this older one stops"):
        older.check()
    newer.check()


def test_other_names_do_not_matter() -> None:
    register = Shared()
    one, two = announced(register, "w.1"), announced(register, "w.2")

    one.check()
    two.check()


def test_an_emptied_register_stops_nobody() -> None:
    register = Shared()
    one = announced(register, "w")
    register.records.clear()

    one.check()
