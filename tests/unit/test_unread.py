"""What the log has beyond what the reader was given: it is shown as lag, its worker as stalled, and with the reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest
from structlog.testing import capture_logs

from relay.control.status import State, judge_worker
from relay.message.errors import Unreachable
from relay.message.record import LogPartition
from relay.run.progress import PERIOD_S
from relay.run.unread import ASK_PERIOD_S, LOOK_PERIOD_S, Unread, nothing_unread
from tests.unit.test_progress import HOUR_S, PLACE, Said

OTHER = LogPartition("orders", 1)
STALLED_WITHIN = round((2 * LOOK_PERIOD_S + 30) / PERIOD_S) + 2


class Brokers:
    """A log's ends, and what was asked of them."""

    def __init__(self, high: int, stable: int) -> None:
        self.high, self.stable, self.are_away = high, stable, False
        self.asked: list[list[LogPartition]] = []
        self.unread = Unread(self._highs, lambda places, _: dict.fromkeys(places, self.stable))

    def _highs(self, places: Collection[LogPartition], _: float) -> Mapping[LogPartition, int]:
        self.asked.append(list(places))
        if self.are_away:
            raise Unreachable("the brokers are away")
        return dict.fromkeys(places, self.high)


def begun(monkeypatch: pytest.MonkeyPatch, brokers: Brokers) -> Said:
    said = Said(monkeypatch, brokers.unread)
    said.intake.start({PLACE: 7}, {"orders": b"i" * 16})
    said.progress.took_over(said.now)
    said.progress.caught_up(PLACE, 7)
    return said


def beats(said: Said, times: int) -> None:
    for _ in range(times):
        said.now += PERIOD_S
        said.beat(at=7)


def test_a_worker_behind_an_open_transaction_is_stalled_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(high=108, stable=7)
    said = begun(monkeypatch, brokers)

    beats(said, STALLED_WITHIN)

    (place,) = said.records[-1].partitions
    assert (place.end, place.lag) == (108, 101)
    state, why = judge_worker(said.records[-1], round(said.now * 1000))
    assert state is State.STALLED
    assert why is not None
    assert "orders[0] did not move" in why
    assert "a Kafka transaction is open in the log at 7" in why


def test_a_worker_whose_client_does_not_fetch_is_stalled_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said = begun(monkeypatch, Brokers(high=108, stable=50))

    beats(said, STALLED_WITHIN)

    state, why = judge_worker(said.records[-1], round(said.now * 1000))
    assert state is State.STALLED
    assert why is not None
    assert "given nothing of what the log has up to 108: restart this worker" in why


def test_once_it_is_read_all_is_well_again(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(high=108, stable=7)
    said = begun(monkeypatch, brokers)
    beats(said, STALLED_WITHIN)

    said.intake.passed(PLACE, 108)
    said.progress.caught_up(PLACE, 108)
    said.now += PERIOD_S
    (place,) = said.beat(at=108).partitions

    assert (place.lag, place.unread) == (0, None)
    assert judge_worker(said.records[-1], round(said.now * 1000))[0] is State.IDLE


def test_an_hour_in_which_the_log_has_nothing_more_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(high=7, stable=7)
    said = begun(monkeypatch, brokers)

    beats(said, round(HOUR_S / PERIOD_S))
    brokers.high = 8  # the first message, which the reader has not seen yet
    beats(said, round(2 * LOOK_PERIOD_S / PERIOD_S))

    assert said.records[-1].partitions[0].lag == 1
    assert said.judged() is State.RUNNING


def test_brokers_that_are_away_take_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(high=108, stable=7)
    said = begun(monkeypatch, brokers)
    beats(said, STALLED_WITHIN)
    brokers.are_away = True

    beats(said, STALLED_WITHIN)

    assert said.records[-1].partitions[0].lag == 101
    assert said.judged() is State.STALLED


def test_brokers_that_are_away_from_the_start_are_no_news_here(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(high=108, stable=7)
    brokers.are_away = True
    said = begun(monkeypatch, brokers)

    beats(said, STALLED_WITHIN)

    assert said.judged() is State.IDLE


def test_only_silent_partitions_are_asked_about_and_seldom() -> None:
    brokers = Brokers(high=9, stable=9)
    unread = brokers.unread

    unread.look({PLACE: 5, OTHER: 5}, 0.0)  # whether they are silent nobody knows yet
    unread.look({PLACE: 5, OTHER: 5}, LOOK_PERIOD_S - 0.1)
    assert brokers.asked == []
    unread.look({PLACE: 5, OTHER: 6}, LOOK_PERIOD_S)
    assert brokers.asked == [[PLACE]]
    unread.look({}, 2 * LOOK_PERIOD_S)
    assert brokers.asked == [[PLACE]]
    assert unread.end(PLACE) == 0


def test_a_worker_that_is_to_end_asks_whether_that_is_all(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(high=108, stable=7)
    said = begun(monkeypatch, brokers)

    def is_all(after_s: float = ASK_PERIOD_S) -> bool:
        said.now += after_s
        return said.progress.has_read_all(said.now, said.intake)

    with capture_logs() as logs:
        assert not is_all()
        assert not is_all(ASK_PERIOD_S / 2)
        assert len(brokers.asked) == 1, "a worker that waits turns a hundred times a second"
        assert not logs, "what has just come is read at the next turn"
        assert not is_all()
        (told,) = logs
        assert "a Kafka transaction is open in the log at 7" in told["reason"]
        assert not is_all()
        assert len(logs) == 1, "it is said once"

    brokers.are_away = True
    assert not is_all(), "what they have is not known"
    brokers.are_away = False
    said.progress.caught_up(PLACE, 108)
    assert is_all()


def test_what_comes_while_a_worker_asks_is_no_reason_to_restart_it(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(high=8, stable=8)
    said = begun(monkeypatch, brokers)

    with capture_logs() as logs:
        for end in range(8, 20):
            brokers.high = brokers.stable = end
            said.now += ASK_PERIOD_S
            assert not said.progress.has_read_all(said.now, said.intake)
            said.progress.caught_up(PLACE, end)

    assert not logs


def test_what_has_been_read_since_the_look_is_not_unread() -> None:
    brokers = Brokers(high=9, stable=5)
    brokers.unread.look({PLACE: 5}, 0.0)
    brokers.unread.look({PLACE: 5}, LOOK_PERIOD_S)

    assert brokers.unread.why(PLACE, 5) is not None
    assert brokers.unread.why(PLACE, 9) is None
    assert brokers.unread.why(OTHER, 5) is None
    assert nothing_unread().why(PLACE, 5) is None
