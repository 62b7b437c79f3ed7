"""Dead letters as a process sees them that looks for weeks: it counts those that it knows of, and does not grow with them."""

from __future__ import annotations

import tracemalloc

from relay.control.status import DeadLetters
from relay.control.status_reading import BESIDE_MAX, DEAD_LETTERS_KEPT, SeenLetters
from relay.message.envelope import DEAD_CODE, DEAD_REPLAY, DEAD_ROUTE, REDRIVEN
from tests.unit.test_intake import Fake


def letter(number: int, code: str = "not_json", replay: int = 0, route: str = "main") -> Fake:
    headers = [(DEAD_ROUTE, route.encode()), (DEAD_CODE, code.encode()), (DEAD_REPLAY, b"%d" % replay)]
    return Fake(number, headers, None, b"%032x" % number)


def test_each_letter_counts_once_and_none_that_a_redrive_took_back() -> None:
    seen = SeenLetters()
    for one in (letter(1), letter(1), letter(2, "23505"), letter(3, route="other"), letter(2, REDRIVEN, 1), Fake(9)):
        seen.take(one)

    assert seen.of("main", complete=True) == DeadLetters(1, {"not_json": 1}, complete=True)
    assert seen.of("other", complete=False) == DeadLetters(1, {"not_json": 1}, complete=False)


def test_those_of_routes_that_were_renamed_or_taken_out_are_told_beside() -> None:
    """Nothing else of `relay status` shows them, and nobody redrives what they do not know of."""
    seen = SeenLetters()
    for one in (letter(1), letter(2, route="former"), letter(3, route="former"), letter(4, route="mended"), letter(4, REDRIVEN, 1, "mended")):
        seen.take(one)
    assert list(seen.beside({"main"})) == [
        "route former is not in this configuration and has dead letters (2); `relay deadletter list` shows them"
    ]
    for number in range(1000):
        seen.take(letter(number, route=f"strange-{number}"))

    assert len(list(seen.beside({"main"}))) == BESIDE_MAX


def test_of_more_than_are_kept_the_latest_count_and_there_are_said_to_be_more() -> None:
    seen = SeenLetters(most=3)
    for number in range(5):
        seen.take(letter(number, f"c-{number}"))

    assert seen.of("main", complete=True) == DeadLetters(3, {"c-2": 1, "c-3": 1, "c-4": 1}, complete=False)


def test_what_is_kept_of_them_is_bounded() -> None:
    seen = SeenLetters(most=1000)
    tracemalloc.start()
    try:
        for number in range(20_000):
            seen.take(letter(number))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000
    assert DEAD_LETTERS_KEPT * kept / 1000 < 500 * 1024**2
