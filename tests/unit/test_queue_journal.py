"""What leaves a queue is in a file before it is trimmed, whole, in its period, and the queue goes on meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any

import fastavro
import pytest

from relay.message.errors import CheckFailed
from relay.queue import journal
from relay.queue.message import Audience, Group, MessageView, NewMessage, Parent
from relay.queue.port import Filter, Holder
from relay.queue.settings import QueueSettings, Retention
from tests.archived_journal import archived
from tests.contracts.queue_book import QueueBook

HOUR = 3_600_000
START = int(datetime(2026, 11, 21, 10, 30, tzinfo=UTC).timestamp() * 1000)
AUDIENCE = Audience((Group("clerk", ("clerk",)),))


def queue(retain: Retention) -> QueueBook:
    store = QueueBook(QueueSettings("credit", AUDIENCE, retain=retain))
    store.enter(Holder(b"h", "clerk", 0, None))
    return store


def through(store: QueueBook, count: int, at: int) -> list[int]:
    """Put messages and let the clerk be done with them."""
    put = store.put([NewMessage("/till", f"m-{at}-{n}", b"v%d" % n) for n in range(count)], at)
    taken = store.take("clerk", b"h", count, at)
    store.finish("clerk", [one.ticket for one in taken], at)
    return [answer.handle for answer in put]


def test_by_age_what_is_past_it_is_archived_and_trimmed(tmp_path: Path) -> None:
    store = queue(Retention(age_ms=HOUR))
    old = through(store, 3, START)
    young = through(store, 2, START + HOUR)

    done = journal.let_go(store, tmp_path, "hour", START + HOUR + 1, most=100)

    assert done.messages == 3
    assert [store.view(handle) is None for handle in old + young] == [True] * 3 + [False] * 2
    records = list(archived(tmp_path, "credit"))
    assert [(record["handle"], record["value"]) for record in records] == [(h, b"v%d" % n) for n, h in enumerate(old)]
    assert records[0]["subscribers"][0]["done"] == START


def test_by_count_and_bytes_the_oldest_go_first(tmp_path: Path) -> None:
    for retain in (Retention(count=2), Retention(bytes=4)):
        store = queue(retain)
        handles = through(store, 5, START)

        journal.let_go(store, tmp_path, "day", START, most=100)

        assert [handle for handle in handles if store.view(handle)] == handles[3:]


def test_the_newest_message_stays_so_that_its_handle_is_never_given_again(tmp_path: Path) -> None:
    store = queue(Retention(count=0))
    handles = through(store, 3, START)

    journal.let_go(store, tmp_path, "day", START, most=100)

    assert [handle for handle in handles if store.view(handle)] == handles[2:]


def test_the_newest_is_looked_for_once_in_a_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Once for each message, a queue in PostgreSQL lets go of fewer than its subscribers are done with."""
    store = queue(Retention(count=0))
    through(store, 100, START)
    asked: list[int] = []
    find = store.find

    def counted(chosen: Filter, *, after: int = 0, limit: int = 100) -> list[MessageView]:
        asked.append(after)
        return find(chosen, after=after, limit=limit)

    monkeypatch.setattr(store, "find", counted)

    assert journal.let_go(store, tmp_path, "day", START, most=200).messages == 99
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("period", "names"),
    [
        ("hour", ["2026-11-21T10", "2026-11-21T11"]),
        ("day", ["2026-11-21"]),
        ("week", ["2026-W47"]),
        ("biweek", ["2026-W47-W48"]),
    ],
)
def test_a_period_has_files_of_its_own(period: journal.Period, names: list[str], tmp_path: Path) -> None:
    store = queue(Retention(age_ms=0))
    for at in (START, START + HOUR):
        through(store, 1, at)
    through(store, 1, START + 2 * HOUR)

    done = journal.let_go(store, tmp_path, period, START + HOUR + 1, most=100)

    assert sorted(path.name.split(".")[1] for path in done.files) == names


@pytest.mark.parametrize("step", ["journal.written", "journal.trimmed"])
def test_a_crash_after_file_or_trim_leaves_each_message_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store = queue(Retention(age_ms=HOUR))
    handles = through(store, 3, START)
    through(store, 1, START + HOUR)

    def killed(name: str) -> None:
        if name == step:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(journal, "crash_point", killed)
        with pytest.raises(KeyboardInterrupt):
            journal.let_go(store, tmp_path, "day", START + HOUR + 1, most=100)
    assert all((store.view(handle) is not None) == (step == "journal.written") for handle in handles)

    journal.let_go(store, tmp_path, "day", START + HOUR + 1, most=100)

    assert [record["handle"] for record in archived(tmp_path, "credit")] == handles
    assert len(list(tmp_path.iterdir())) == 1


def test_of_two_keepers_at_once_none_writes_over_what_the_other_has_trimmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = queue(Retention(age_ms=HOUR))
    handles = through(store, 2, START) + through(store, 3, START + 1)
    through(store, 1, START + HOUR)
    write = fastavro.writer
    other = Thread(target=lambda: journal.let_go(store, tmp_path, "day", START + HOUR + 1, most=100))

    def write_after_the_other(*what: Any, **how: Any) -> None:
        if other.ident is None:
            # A moment later one more process looks, and finds more that is past the retention: its file would have this one's name.
            other.start()
            other.join(0.3)
        write(*what, **how)

    monkeypatch.setattr(fastavro, "writer", write_after_the_other)
    journal.let_go(store, tmp_path, "day", START + HOUR, most=100)
    other.join(10)

    assert [store.view(handle) for handle in handles] == [None] * 5
    assert sorted(record["handle"] for record in archived(tmp_path, "credit")) == handles


def test_nothing_is_trimmed_whose_file_could_not_be_written(tmp_path: Path) -> None:
    store = queue(Retention(age_ms=HOUR))
    handles = through(store, 2, START)
    through(store, 1, START + HOUR)
    (tmp_path / "file").write_text("not a folder")

    with pytest.raises(OSError, match="file"):
        journal.let_go(store, tmp_path / "file", "day", START + HOUR + 1, most=100)

    assert all(store.view(handle) for handle in handles)


@pytest.mark.parametrize(
    ("day", "week", "two_weeks"),
    [(15, "2026-W46", "2026-W45-W46"), (16, "2026-W47", "2026-W47-W48"), (23, "2026-W48", "2026-W47-W48"), (30, "2026-W49", "2026-W49-W50")],
)
def test_two_weeks_begin_with_an_odd_one(day: int, week: str, two_weeks: str) -> None:
    at = int(datetime(2026, 11, day, 12, tzinfo=UTC).timestamp() * 1000)
    store = queue(Retention(age_ms=0))
    (handle,) = through(store, 1, at)
    view = store.view(handle)
    assert view is not None
    assert (journal.period_of(view, "week"), journal.period_of(view, "biweek")) == (week, two_weeks)


def test_the_last_week_of_a_long_year_stands_alone() -> None:
    at = int(datetime(2027, 1, 2, 12, tzinfo=UTC).timestamp() * 1000)
    store = queue(Retention(age_ms=0))
    (handle,) = through(store, 1, at)
    view = store.view(handle)
    assert view is not None
    assert (journal.period_of(view, "week"), journal.period_of(view, "biweek")) == ("2026-W53", "2026-W53"), "there is no W54"


def test_a_message_lies_in_the_period_in_which_it_ended() -> None:
    store = queue(Retention(age_ms=0))
    one, other = (answer.handle for answer in store.put([NewMessage("/till", name, b"v") for name in "ab"], START))
    store.withdraw([one], START + HOUR)
    taken = store.take("clerk", b"h", 1, START)
    store.finish("clerk", [taken[0].ticket], START + 2 * HOUR)
    child = store.put([NewMessage("/till", "c", b"v", attempt="a/1", parents=(Parent("in", 1, "x"),))], START)[0].handle
    store.discard([child], START + 3 * HOUR)
    put = store.put([NewMessage("/till", "d", b"v")], START + 4 * HOUR)[0].handle

    found = [journal.period_of(view, "hour") for view in store.views([one, other, child, put])]

    assert found == [f"2026-11-21T{hour}" for hour in (11, 12, 13, 14)]
    documents = [journal.document("credit", view) for view in store.views([one, other, child, put])]
    assert [journal._ended_at(one) - START for one in documents] == [HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR]


def test_what_leaves_is_on_the_disk_and_so_is_its_name_before_it_is_trimmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = queue(Retention(age_ms=HOUR))
    through(store, 2, START)
    through(store, 1, START + HOUR)
    folder = tmp_path / "deep" / "archive"
    steps: list[str] = []
    sync = os.fsync

    def noted(step: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            steps.append(step)
            return real(*given)

        return call

    def synced(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        steps.append("folder" if path.is_dir() else f"file of {path.stat().st_size > 0}")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", noted("named", Path.replace))
    monkeypatch.setattr(store, "trim", noted("trimmed", store.trim))

    before = len(list(Path("/proc/self/fd").iterdir()))
    assert journal.let_go(store, folder, "day", START + HOUR, most=100).messages == 2

    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert steps == ["file of True", "named", "folder", "trimmed"]


def test_what_cannot_be_trimmed_is_not_asked_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = queue(Retention(age_ms=HOUR))
    through(store, 3, START)
    tried: list[int] = []

    def none_goes(handles: list[int]) -> int:
        tried.append(len(handles))
        assert len(tried) < 5
        return 0

    monkeypatch.setattr(store, "trim", none_goes)

    assert journal.let_go(store, tmp_path, "day", START + HOUR, most=100).messages == 0
    assert tried == [2]


def test_the_last_of_several_steps_takes_no_more_than_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MESSAGES_AT_ONCE", 2)
    store = queue(Retention(age_ms=HOUR))
    through(store, 9, START)

    assert journal.let_go(store, None, "day", START + HOUR, most=3).messages == 3
    assert len(store.find(Filter(), limit=20)) == 6


def test_a_page_is_by_handle_also_where_a_later_period_has_the_lower_ones(tmp_path: Path) -> None:
    store = queue(Retention(age_ms=HOUR))
    handles = [answer.handle for answer in store.put([NewMessage("/till", str(n), b"v") for n in range(8)], START)]
    for hour, some in ((1, handles[4:7]), (2, handles[:4])):
        store.withdraw(some, START + hour * HOUR)
    journal.let_go(store, tmp_path, "hour", START + 9 * HOUR, most=100)

    def page(after: int, limit: int) -> list[int]:
        return [one["handle"] for one in journal.page(tmp_path, "credit", lambda record: record, after=after, limit=limit)]

    assert page(0, 10) == handles[:7]
    assert (page(0, 2), page(handles[1], 3), page(handles[4], 9)) == (handles[:2], handles[2:5], handles[5:7])
    assert [record["handle"] for record in archived(tmp_path, "credit")] == [*handles[4:7], *handles[:4]]


def test_a_step_lets_no_more_go_than_it_was_told(tmp_path: Path) -> None:
    store = queue(Retention(age_ms=HOUR))
    through(store, 6, START)
    through(store, 1, START + HOUR)

    assert journal.let_go(store, tmp_path, "day", START + HOUR + 1, most=4).messages == 4
    assert journal.let_go(store, tmp_path, "day", START + HOUR + 1, most=4).messages == 2
    assert len(list(archived(tmp_path, "credit"))) == 6


def given_again_before_it_was_trimmed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, before: journal.Period, after: journal.Period
) -> list[int]:
    """Return the handles of an archive in which the first message stands twice: it was given again between its file and the trim."""
    store = queue(Retention(age_ms=HOUR))
    handles = through(store, 3, START)
    through(store, 1, START + 10 * HOUR)

    def redriven(point: str) -> None:
        if point == "journal.written":
            store.republish(handles[0], "clerk", START + HOUR, even_done=True)

    with monkeypatch.context() as patch:
        patch.setattr(journal, "crash_point", redriven)
        assert journal.let_go(store, folder, before, START + HOUR, most=100).messages == 2
    taken = store.take("clerk", b"h", 1, START + 2 * HOUR)
    store.finish("clerk", [one.ticket for one in taken], START + 2 * HOUR)
    assert journal.let_go(store, folder, after, START + 3 * HOUR, most=100).messages == 1
    return handles


def test_a_message_given_again_before_it_was_trimmed_takes_none_of_its_file_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = given_again_before_it_was_trimmed(tmp_path, monkeypatch, "day", "day")

    records = {record["handle"]: record for record in archived(tmp_path, "credit")}
    assert sorted(records) == handles
    assert records[handles[0]]["journalled_at"] == START + 2 * HOUR


@pytest.mark.parametrize("periods", [("day", "week"), ("week", "day")])
def test_a_page_shows_a_message_as_it_ended_last_also_where_the_period_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, periods: tuple[journal.Period, journal.Period]
) -> None:
    handles = given_again_before_it_was_trimmed(tmp_path, monkeypatch, *periods)

    found = journal.page(tmp_path, "credit", lambda record: record, after=0, limit=10)

    assert [one["handle"] for one in found] == handles
    assert [one["journalled_at"] for one in found] == [START + 2 * HOUR, START, START]
    assert sorted(record["handle"] for record in archived(tmp_path, "credit")) == handles


@pytest.mark.parametrize("kept", [0, 3, 50, 2000, -20])
def test_a_damaged_file_of_the_archive_is_named(kept: int, tmp_path: Path) -> None:
    store = queue(Retention(age_ms=HOUR))
    through(store, 100, START)
    (path,) = journal.let_go(store, tmp_path, "day", START + HOUR, most=100).files
    path.write_bytes(path.read_bytes()[:kept])

    with pytest.raises(CheckFailed, match=f"{path.name} is damaged: restore it"):
        journal.page(tmp_path, "credit", dict, after=0, limit=5)
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckFailed, match=f"{path.name} cannot be read"):
        journal.page(tmp_path, "credit", dict, after=0, limit=5)


def test_a_page_of_the_archive_keeps_no_more_than_it_returns(tmp_path: Path) -> None:
    store = queue(Retention(age_ms=0))
    handles = [handle for hour in range(5) for handle in through(store, 40, START + hour * HOUR)]
    through(store, 1, START + 9 * HOUR)
    journal.let_go(store, tmp_path, "hour", START + 8 * HOUR, most=1000)
    asked = []

    def shown(record: dict[str, Any]) -> dict[str, Any]:
        asked.append(record["handle"])
        return {"handle": record["handle"]}

    found = journal.page(tmp_path, "credit", shown, after=handles[4], limit=10)

    assert [one["handle"] for one in found] == handles[5:15]
    assert len(asked) == 20
