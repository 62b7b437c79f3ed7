"""What a worker does now and then: how often it does it, whom it takes for dead, and whom a dead worker's message is held against."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from relay.message.errors import ConfigError, RelayError, Unreachable
from relay.queue.attempts import AttemptName, Outcomes, PreparedTransactions
from relay.queue.message import Audience, Group, NewMessage, Taken, Ticket
from relay.queue.port import Holder, StoreAway
from relay.queue.settings import QueueSettings
from relay.queue.states import PublisherState, SubscriberState
from relay.work import upkeep
from relay.work.backoff import Backoff
from relay.work.mark import Mark, dead_mark
from relay.work.upkeep import KILLED, PREPARED_S, UNNAMED_S, HolderForgotten, Upkeep
from relay.world import clock
from tests.contracts.queue_book import QueueBook

NOW = 1_000_000
LEASE_S = 60.0
OWN = Holder(b"this worker-----", "ann", 0, None)
OTHER = Holder(b"another worker--", "ann", 0, None)
ELSEWHERE = OTHER._replace(deciding="resource:shop")


AWAY = Unreachable("resources.shop: the database does not answer")
UNRECORDED = ConfigError("resources.shop: the relay's tables are missing or old; run `relay migrate`")


class Shop:
    """Decides, unless it refuses."""

    def __init__(self) -> None:
        self.stands: dict[str, bool] = {}
        self.refuses: RelayError | None = None

    def settle(self, attempt: str, *, committed: bool, now: int) -> bool:
        if self.refuses is not None:
            raise self.refuses
        return self.stands.setdefault(attempt, committed)


class Bank:
    """A further database with what attempts have left prepared."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.opened = 0
        self.finished: list[tuple[str, bool]] = []

    def open(self, _: ExitStack) -> PreparedTransactions:
        self.opened += 1
        return self

    def pending(self) -> list[str]:
        return list(self.names)

    def finish(self, attempt: str, *, committed: bool) -> bool:
        self.finished.append((attempt, committed))
        self.names.remove(attempt)
        return True


class Site:
    """A queue, this worker's upkeep of it, and another worker."""

    def __init__(
        self, folder: Path, other: Holder = OTHER, tries: int = 5, names: tuple[str, ...] = ("ann",), **over: Any
    ) -> None:
        self.marks = folder / "marks"
        audience = Audience(tuple(Group(name, (name,)) for name in names))
        self.store = QueueBook(QueueSettings("sales", audience, tries=tries))
        self.other = other
        self.store.enter(OWN)
        self.store.enter(other)
        self.shop, self.is_configured = Shop(), True
        self.upkeep = Upkeep(
            "sales", {"sales": self.store}, self.deciding, OWN, self.marks, LEASE_S, Backoff(10.0, 10.0), **over
        )

    def deciding(self, _: ExitStack) -> Mapping[str, Outcomes]:
        return {"resource:shop": self.shop} if self.is_configured else {}

    def taken(self, count: int) -> list[Taken]:
        """Messages of one lane that the other worker has."""
        self.store.put([NewMessage("p", str(number), b"v", lane=b"a") for number in range(count)], NOW)
        return self.store.take("ann", self.other.id, count, NOW)

    def dies(self, blamed: Ticket | None = None) -> None:
        """Leave the mark of the other worker as its end leaves it."""
        mark = Mark(self.marks, self.other.id)
        mark.blame(blamed)
        kept = self.marks / "kept"
        kept.hardlink_to(self.marks / self.other.id.hex())
        mark.close()
        kept.rename(self.marks / self.other.id.hex())

    def attempt(self, ticket: Ticket, queue: str = "sales") -> str:
        return AttemptName("resource:shop", queue, self.store.uuid, "ann", ticket).encode()

    def beats(self) -> int:
        return next(holder.beats for holder in self.store.holders() if holder.id == OWN.id)

    def subscriber(self, ticket: Ticket) -> tuple[SubscriberState, int, str | None, int | None]:
        view = self.store.view(ticket.handle)
        assert view is not None
        (one,) = view.subscribers
        return one.state, one.failures, one.cause, one.again_at


@pytest.fixture(autouse=True)
def wall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "wall_ms", lambda: NOW)


# How often --------------------------------------------------------------------------------------------------------


def test_it_beats_six_times_in_a_lease(tmp_path: Path) -> None:
    site = Site(tmp_path)
    found = []
    for now in (100.0, 109.9, 110.0, 119.0, 120.0):
        site.upkeep.once(now)
        found.append(site.beats())
    assert found == [1, 1, 2, 2, 3]


def test_who_was_given_up_ends_before_it_does_anything(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.store.put([NewMessage("p", "1", b"v", delay_ms=1)], NOW - 10)
    site.store.leave(OWN.id)
    with pytest.raises(HolderForgotten):
        site.upkeep.once(100.0)
    assert site.store.counts()[0][PublisherState.PUT] == 1


def test_it_looks_once_a_second(tmp_path: Path) -> None:
    site = Site(tmp_path)
    shown = []
    for number, now in enumerate((100.0, 100.9, 101.0, 101.5, 102.0)):
        site.store.put([NewMessage("p", str(number), b"v", delay_ms=1)], NOW - 10)
        site.upkeep.once(now)
        shown.append(site.store.counts()[0].get(PublisherState.REVEALED, 0))
    assert shown == [1, 1, 3, 3, 5]


def test_further_databases_are_asked_every_few_seconds(tmp_path: Path) -> None:
    bank = Bank()
    site = Site(tmp_path, prepared={"bank": bank.open})
    found = []
    for now in (100.0, 100.0 + PREPARED_S - 0.1, 100.0 + PREPARED_S, 101.0 + PREPARED_S):
        site.upkeep.once(now)
        found.append(bank.opened)
    assert found == [1, 1, 2, 2]


def test_databases_that_the_handler_does_not_name_are_asked_one_at_a_look_and_seldom_again(tmp_path: Path) -> None:
    first, second = Bank(), Bank()
    site = Site(tmp_path, unnamed={"first": first.open, "second": second.open})
    found = []
    for now in (100.0, 101.0, 102.0, 100.0 + UNNAMED_S - 0.1, 100.0 + UNNAMED_S, 101.0 + UNNAMED_S):
        site.upkeep.once(now)
        found.append((first.opened, second.opened))
    assert found == [(1, 0), (1, 1), (1, 1), (1, 1), (2, 1), (2, 2)]


def test_where_a_database_not_named_holds_something_of_this_queue_it_is_finished_and_asked_again_soon(tmp_path: Path) -> None:
    bank = Bank()
    site = Site(tmp_path, other=ELSEWHERE, unnamed={"bank": bank.open})
    (running,) = site.taken(1)
    runs, over, others, strange = (
        site.attempt(running.ticket), site.attempt(Ticket(9, 1)), site.attempt(Ticket(9, 1), "orders"), "somebody's",
    )  # fmt: skip
    bank.names = [runs, over, others, strange]

    with capture_logs() as said:
        site.upkeep.once(100.0)
    assert (bank.names, bank.finished) == ([runs, others, strange], [(over, False)])
    (one,) = said
    assert (one["resource"], one["committed"], one["rolled_back"]) == ("bank", 0, 1)
    site.upkeep.once(100.0 + PREPARED_S - 0.1)
    assert bank.opened == 1
    site.shop.stands[runs] = True
    site.store.finish("ann", [running.ticket], NOW)
    with capture_logs() as said:
        site.upkeep.once(100.0 + PREPARED_S)
    (one,) = said
    assert (one["resource"], one["committed"], one["rolled_back"]) == ("bank", 1, 0)
    assert (bank.names, bank.finished) == ([others, strange], [(over, False), (runs, True)])

    site.upkeep.once(100.0 + 2 * PREPARED_S)
    site.upkeep.once(100.0 + 4 * PREPARED_S)
    assert bank.opened == 3, "nothing of this queue is left there"


def test_a_database_that_is_not_named_and_away_disturbs_nothing(tmp_path: Path) -> None:
    def away(_: ExitStack) -> PreparedTransactions:
        raise Unreachable("the database does not answer")

    Site(tmp_path, unnamed={"bank": away}).upkeep.once(100.0)


def test_with_what_is_due_it_goes_on_for_a_while_and_then_lets_its_own_messages_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "DUE_MAX", 2)
    looks = iter([0.0, upkeep.DUE_S - 0.1, upkeep.DUE_S, *[9.0] * 50])
    monkeypatch.setattr(upkeep, "clock", SimpleNamespace(monotonic=lambda: next(looks), wall_ms=clock.wall_ms))
    site = Site(tmp_path)
    site.store.put([NewMessage("p", str(number), b"v", delay_ms=1) for number in range(9)], NOW - 10)

    site.upkeep.once(100.0)

    assert site.store.counts()[0][PublisherState.REVEALED] == 4


def test_what_waits_for_a_further_database_is_said(tmp_path: Path) -> None:
    named, unnamed = Bank(), Bank()
    site = Site(tmp_path, prepared={"bank": named.open}, unnamed={"old": unnamed.open})
    named.names, unnamed.names = [site.attempt(Ticket(8, 1))], [site.attempt(Ticket(9, 1))]
    site.shop.refuses = AWAY
    with capture_logs() as said:
        site.upkeep.once(100.0)
    assert [one["event"] for one in said] == [
        "prepared writes wait", "prepared writes wait in a database that the handler does not name",
    ]  # fmt: skip
    assert all("resource:shop, which does not answer" in one["reason"] for one in said)


# Who is dead ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [OTHER, OTHER._replace(deciding="queue:sales"), ELSEWHERE])
def test_what_a_living_worker_has_stays_its_own_and_goes_back_after_a_whole_lease_of_silence(other: Holder, tmp_path: Path) -> None:
    site = Site(tmp_path, other)
    tickets = [one.ticket for one in site.taken(2)]
    for now in range(100, 160):
        site.upkeep.once(float(now))
    assert site.store.held(other.id) == tickets
    assert site.upkeep.recovered == 0

    site.upkeep.once(160.0)

    assert site.store.held(other.id) == []
    assert [holder.id for holder in site.store.holders()] == [OWN.id]
    assert site.upkeep.recovered == 2
    assert {site.subscriber(ticket) for ticket in tickets} == {(SubscriberState.AVAILABLE, 0, None, None)}
    assert list(site.shop.stands.values()) == ([False, False] if other is ELSEWHERE else []), "(aborted) stands before"


def test_what_a_dead_worker_of_this_host_had_goes_back_at_once_and_its_mark_goes(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.taken(2)
    site.dies()

    site.upkeep.once(100.0)

    assert site.upkeep.recovered == 2
    assert not list(site.marks.iterdir())


@pytest.mark.parametrize(("is_configured", "refuses"), [(True, AWAY), (True, UNRECORDED), (False, AWAY)])
def test_a_mark_stays_while_something_is_left_to_recover(tmp_path: Path, *, is_configured: bool, refuses: RelayError) -> None:
    """What decides does not answer, a person must mend it, or the configuration names it no more."""
    site = Site(tmp_path, ELSEWHERE)
    site.is_configured = is_configured
    (taken,) = site.taken(1)
    site.dies(taken.ticket)
    site.shop.refuses = refuses

    site.upkeep.once(100.0)

    found = dead_mark(site.marks, ELSEWHERE.id)
    assert found is not None
    assert found.blamed == taken.ticket
    found.close(remove=False)
    assert site.store.held(ELSEWHERE.id) == [taken.ticket]


def test_what_a_dead_worker_has_committed_is_done_also_if_it_is_to_blame(tmp_path: Path) -> None:
    site = Site(tmp_path, ELSEWHERE)
    first, second = site.taken(2)
    site.shop.stands[site.attempt(first.ticket)] = True
    site.dies(first.ticket)

    site.upkeep.once(100.0)

    assert site.store.holds("ann", [first.ticket]) == [SubscriberState.DONE]
    assert site.subscriber(first.ticket)[1] == 0, "it was decided before"
    assert site.subscriber(second.ticket)[0] is SubscriberState.AVAILABLE
    assert site.upkeep.recovered == 2


# Who is to blame --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [OTHER, OTHER._replace(deciding="queue:sales"), ELSEWHERE])
def test_the_message_that_killed_its_worker_has_failed_and_is_tried_again_later_and_the_rest_waits_behind_it(
    other: Holder, tmp_path: Path
) -> None:
    site = Site(tmp_path, other)
    first, second = site.taken(2)
    site.dies(first.ticket)

    site.upkeep.once(100.0)

    state, failures, cause, again_at = site.subscriber(first.ticket)
    assert (state, failures, cause) == (SubscriberState.AVAILABLE, 1, None)
    assert again_at is not None
    assert NOW + 10_000 <= again_at <= NOW + 12_500
    assert site.subscriber(second.ticket) == (SubscriberState.AVAILABLE, 0, None, None)
    assert site.store.take("ann", OWN.id, 2, NOW) == [], "nothing of its lane before it"
    assert [one.ticket.handle for one in site.store.take("ann", OWN.id, 2, again_at)] == [1, 2]


def test_what_its_worker_had_committed_of_the_rest_is_done_and_does_not_go_back_with_it(tmp_path: Path) -> None:
    site = Site(tmp_path, ELSEWHERE)
    first, second = site.taken(2)
    site.shop.stands[site.attempt(second.ticket)] = True
    site.dies(first.ticket)

    site.upkeep.once(100.0)

    assert site.subscriber(first.ticket)[:2] == (SubscriberState.AVAILABLE, 1)
    assert site.store.holds("ann", [second.ticket]) == [SubscriberState.DONE]


@pytest.mark.parametrize(("tries", "ends"), [(1, True), (2, False)])
def test_the_last_try_that_killed_its_worker_ends_unusable_with_the_cause(tries: int, ends: bool, tmp_path: Path) -> None:
    site = Site(tmp_path, tries=tries)
    (taken,) = site.taken(1)
    site.dies(taken.ticket)

    site.upkeep.once(100.0)

    _, _, cause, again_at = site.subscriber(taken.ticket)
    assert (cause, again_at is None) == ((KILLED, True) if ends else (None, False))
    assert [holder.id for holder in site.store.holders()] == [OWN.id]


def test_tries_that_another_subscriber_has_used_up_are_its_own(tmp_path: Path) -> None:
    site = Site(tmp_path, tries=3, names=("abe", "ann"))
    (taken,) = site.taken(1)
    site.store.enter(OTHER._replace(id=b"abe's worker----", subscriber="abe"))
    for _ in range(2):
        (abes,) = site.store.take("abe", b"abe's worker----", 1, NOW)
        site.store.free("abe", [abes.ticket], NOW, again_at=NOW, failed=True)
    site.dies(taken.ticket)

    site.upkeep.once(100.0)

    view = site.store.view(taken.ticket.handle)
    assert view is not None
    assert [(one.subscriber, one.failures, one.cause) for one in view.subscribers] == [("abe", 2, None), ("ann", 1, None)]


def test_a_mark_of_what_its_worker_has_no_more_blames_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    (taken,) = site.taken(1)
    site.store.finish("ann", [taken.ticket], NOW)
    site.dies(taken.ticket)
    site.upkeep.once(100.0)
    assert site.subscriber(taken.ticket)[1] == 0

    again = Site(tmp_path)
    (taken,) = again.taken(1)
    again.dies(Ticket(99, 1))
    again.upkeep.once(100.0)
    assert again.subscriber(taken.ticket)[1] == 0


def test_a_store_that_is_away_while_it_recovers_keeps_the_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    (taken,) = site.taken(1)
    site.dies()

    def away(*_: object) -> bool:
        raise StoreAway("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(site.store, "leave", away)
        with pytest.raises(StoreAway):
            site.upkeep.once(100.0)
    assert site.store.held(OTHER.id) == [taken.ticket]

    site.upkeep.once(102.0)
    assert site.store.held(OTHER.id) == []
    assert not list(site.marks.iterdir())
