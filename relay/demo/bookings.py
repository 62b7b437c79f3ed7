"""The booking service: four threads book seats in database transactions, and each booking tells of itself by Capture.

Run by the demonstration as ``python -m relay.demo.bookings``. One booking in fourteen must not be: a card is refused
inside the block, or the passenger does not exist, which the database says only at COMMIT, when the message is in the
log already.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from relay.capture.capture import Capture
from relay.config.loading import load
from relay.demo.stage import BOOKINGS, PASSENGERS, RESOURCE
from relay.message.errors import CaptureError, CaptureInDoubt, RelayError
from relay.world import schedule

SOURCE: Final = "/bookings"
EVENT_TYPE: Final = "seat.booked"
REFUSED_SHARE: Final = 0.04
UNKNOWN_SHARE: Final = 0.03
FAILURES_MAX: Final = 20
"""Captures that fail in a row without being meant to: more than these are no passing trouble."""
ROLLED_BACK: Final = "rolled back "
"""Begins the line that names a booking which must never show."""


class Refused(Exception):
    """The application says no, and its transaction is rolled back."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A flight that can be booked."""

    id: str
    carrier: str
    flight: int
    origin: str
    dest: str


class Counter:
    """Counts committed bookings up to a target; the service ends when it is reached or when told to."""

    def __init__(self, done: int, target: int) -> None:
        self._left = target - done
        self._lock = threading.Lock()
        self.failure: BaseException | None = None
        self.stopping = threading.Event()

    def booked(self) -> None:
        """One more is committed."""
        with self._lock:
            self._left -= 1
            if self._left <= 0:
                self.stopping.set()

    def failed(self, failure: BaseException) -> None:
        """A thread cannot go on, so that nobody should."""
        self.failure = self.failure or failure
        self.stopping.set()


def main(arguments: list[str] | None = None) -> int:
    """Book until the table holds the target; return the exit code."""
    options = _options(arguments)
    url = load(options.config).resources[RESOURCE].url.get_secret_value()
    flights, done = _known(url)
    counter = Counter(done, options.target)
    signal.signal(signal.SIGTERM, lambda *_: counter.stopping.set())
    if done >= options.target:
        counter.stopping.set()
    with Capture.open(options.config, resource=RESOURCE, source=SOURCE) as capture:

        def clerk(number: int) -> None:
            name = f"b{options.run}-{number}"
            chance = random.Random(f"{options.seed}/{name}")  # noqa: S311 - a repeatable demonstration
            try:
                _book_on(capture, counter, flights, chance, name)
            except BaseException as failure:  # noqa: BLE001 - reported by the main thread
                counter.failed(failure)

        threads = [schedule.start_thread(f"clerk-{n}", lambda n=n: clerk(n)) for n in range(options.threads)]  # type: ignore[misc]
        for thread in threads:
            thread.join()
    if counter.failure is not None:
        print(f"{type(counter.failure).__name__}: {counter.failure}", file=sys.stderr, flush=True)
        return counter.failure.exit_code if isinstance(counter.failure, RelayError) else 1
    return 0


def _book_on(
    capture: Capture, counter: Counter, flights: list[Flight], chance: random.Random, name: str
) -> None:
    """Book one seat after the other."""
    failures = number = 0
    while not counter.stopping.is_set():
        number += 1
        booking, dice = f"{name}-{number}", chance.random()
        known = not REFUSED_SHARE <= dice < REFUSED_SHARE + UNKNOWN_SHARE
        passenger = chance.randrange(PASSENGERS) if known else PASSENGERS + number
        try:
            book(capture, booking, chance.choice(flights), passenger, pays=dice >= REFUSED_SHARE)
            counter.booked()
            failures = 0
        except Refused:
            _say(ROLLED_BACK + booking)
        except CaptureInDoubt as doubt:
            _say(str(doubt))  # in doubt: the table tells the demonstration whether it is booked
        except CaptureError as error:
            # Abort: rolled back as a whole. The next booking is a new one.
            _say(ROLLED_BACK + booking)
            failures += known
            if failures > FAILURES_MAX:
                raise error from None


def book(capture: Capture, booking: str, flight: Flight, passenger: int, *, pays: bool) -> None:
    """Book a seat and tell of it, both or neither. Raises Refused or CaptureError."""
    with capture.transaction() as tx:
        tx.execute(
            "insert into booking (id, flight, passenger) values (%s, %s, %s)", (booking, flight.id, passenger)
        )
        taken = tx.execute(
            "update flight set seats = seats - 1 where id = %s and seats > 0 returning seats", (flight.id,)
        ).fetchone()
        if taken is None:
            raise Refused("sold out")
        tx.publish(BOOKINGS, _event(flight, passenger, taken[0]), key=flight.id, type=EVENT_TYPE, id=booking)
        if not pays:
            raise Refused("the card is refused")


def _event(flight: Flight, passenger: int, seats: int) -> dict[str, Any]:
    return {
        "carrier": flight.carrier,
        "flight": flight.flight,
        "origin": flight.origin,
        "dest": flight.dest,
        "passenger": passenger,
        "seats_left": seats,
    }


def _known(url: str) -> tuple[list[Flight], int]:
    with psycopg.connect(url) as connection:
        flights = connection.execute("select id, carrier, flight, origin, dest from flight order by id").fetchall()
        row = connection.execute("select count(*) from booking").fetchone()
    assert row is not None, "a count is one row"
    return [Flight(*fields) for fields in flights], int(row[0])


def _say(line: str) -> None:
    """Write a line at once and whole: the next thing may be a crash."""
    os.write(sys.stdout.fileno(), line.replace("\n", " ").encode() + b"\n")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m relay.demo.bookings", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--target", type=int, required=True, help="bookings that the table shall hold")
    parser.add_argument("--run", type=int, default=0, help="number of this run of the service, part of its ids")
    parser.add_argument("--threads", type=int, default=12, help="clerks who book at once; fewer are not done when Spark is")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
