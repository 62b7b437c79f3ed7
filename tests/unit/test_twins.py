"""Of two processes under one name the older stops, whoever looks first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from relay.message.errors import TwinDetected
from relay.run.twins import Twins


class Shared:
    """The control topic, in memory."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes]] = []

    def under(self, prefixes: Sequence[bytes]) -> list[tuple[bytes, bytes | None]]:
        return [(key, value) for key, value in self.records if key.startswith(tuple(prefixes))]

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


def test_a_dead_process_whose_announcement_arrives_late_stops_nobody() -> None:
    register = Shared()
    dead, late = Twins(register, "w"), Shared()
    dead._register = late
    dead.announce()
    living = announced(register, "w")
    register.records += late.records

    living.check()
    living.check()


def test_of_two_that_start_at_the_same_time_one_stops() -> None:
    register = Shared()
    one, other = Twins(register, "w"), Shared()
    one._register = other
    one.announce()
    two = announced(register, "w")
    register.records += other.records
    one._register = register

    two.check()
    with pytest.raises(TwinDetected):
        one.check()
    two.check()


def test_an_announcement_of_the_first_version_is_older_than_any_number() -> None:
    register = Shared()
    register.records.append((b"process/w", b"0" * 32))

    announced(register, "w").check()
