"""The demonstration's own comparison names every way in which a destination can differ from what was written."""

from __future__ import annotations

import pytest

from relay.demo.course import ALL_FLIGHTS, Outcome, bookings_for
from relay.demo.reckoning import Arrived, compare
from relay.demo.stage import departures

OUTCOME = Outcome(flights=10, rolled_back=frozenset({"b3"}), publisher_crashes=3, kills=2)
BOOKED = {"b1", "b2"}


def test_what_arrived_as_it_was_written_has_no_fault() -> None:
    assert compare("r", Arrived(10, {"b1": 1, "b2": 1}), OUTCOME, BOOKED) == []


@pytest.mark.parametrize(
    ("arrived", "said"),
    [
        (Arrived(9, {"b1": 1, "b2": 1}), "9 flights arrived of 10"),
        (Arrived(11, {"b1": 1, "b2": 1}), "11 flights arrived of 10"),
        (Arrived(10, {"b1": 1}), "1 bookings booked in the database and did not arrive (such as b2)"),
        (Arrived(10, {"b1": 1, "b2": 1, "b3": 1}), "1 bookings rolled back and arrived all the same (such as b3)"),
        (Arrived(10, {"b1": 1, "b2": 1, "b4": 1}), "1 bookings not booked in the database and arrived (such as b4)"),
        (Arrived(10, {"b1": 2, "b2": 1}), "1 bookings arrived more than once (such as b1)"),
    ],
)
def test_each_difference_is_one_sentence(arrived: Arrived, said: str) -> None:
    assert compare("r", arrived, OUTCOME, BOOKED) == [f"r: {said}"]


def test_the_number_of_flights_is_that_of_the_data_set() -> None:
    assert sum(1 for _ in departures()) == ALL_FLIGHTS


def test_bookings_are_bounded() -> None:
    assert [bookings_for(n) for n in (100, 100_000, ALL_FLIGHTS)] == [240, 2500, 8000]
