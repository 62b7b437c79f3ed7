"""What was UNUSABLE is given again to that subscriber only: one, or all that a filter chooses, dry or at a rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from relay.cli import message as command
from relay.cli.main import app
from relay.control import queue_views
from relay.queue import redriving
from relay.queue.message import Audience, Group, MessageView, NewMessage
from relay.queue.port import Filter, Holder, StoreAway
from relay.queue.redriving import AT_ONCE, chosen, redrivable, redrive, unusable_for
from relay.queue.settings import QueueSettings
from relay.queue.stores.sql_session import Collided
from tests.contracts.queue_book import QueueBook
from tests.unit.test_queue_desk_names import CONFIG

NOW = 1_700_000_000_000


def refused(count: int) -> QueueBook:
    """Two subscribers: the clerk is done with all, the auditor finds all unreadable."""
    store = QueueBook(QueueSettings("credit", Audience((Group("clerk", ("clerk",)), Group("auditor", ("auditor",))))))
    store.enter(Holder(b"h", "clerk", 0, None))
    store.enter(Holder(b"g", "auditor", 0, None))
    store.put([NewMessage(f"/till/{n % 2}", f"m-{n}", b"v") for n in range(count)], NOW)
    store.finish("clerk", [one.ticket for one in store.take("clerk", b"h", count, NOW)], NOW)
    store.refuse("auditor", [(one.ticket, "unreadable") for one in store.take("auditor", b"g", count, NOW)], NOW)
    return store


def run(store: QueueBook, wanted: Filter, **over: object) -> tuple[list[int], int]:
    paced: list[None] = []
    given = {"dry_run": False, "pace": lambda: paced.append(None), "now": lambda: NOW + 1, **over}
    found = list(redrive(store, chosen(store, wanted), None, **given))  # type: ignore[arg-type]
    return [one.handle for one in found if one.done], len(paced)


def test_all_that_was_unusable_comes_again_to_its_subscriber_alone() -> None:
    store = refused(3)

    assert run(store, Filter(unusable=True)) == ([1, 2, 3], 3)
    assert [one.ticket.handle for one in store.take("auditor", b"g", 9, NOW + 2)] == [1, 2, 3]
    assert store.take("clerk", b"h", 9, NOW + 2) == []


def test_a_filter_chooses() -> None:
    store = refused(4)

    assert run(store, Filter(unusable=True, publisher="/till/1"))[0] == [2, 4]


def test_a_dry_run_says_what_it_would_do_and_does_nothing() -> None:
    store = refused(2)
    (first, _) = redrive(
        store, chosen(store, Filter(unusable=True)), None, dry_run=True, pace=lambda: None, now=lambda: NOW
    )

    assert (first.subscriber, first.cause, first.done) == ("auditor", "unreadable", False)
    assert store.take("auditor", b"g", 9, NOW + 2) == []


def test_what_is_under_way_again_is_not_given_twice() -> None:
    store = refused(1)
    run(store, Filter(unusable=True))

    assert run(store, Filter(unusable=True)) == ([], 0)


def test_a_done_subscriber_is_never_redriven() -> None:
    view = refused(1).view(1)
    assert view is not None

    assert unusable_for(view, None) == [("auditor", "unreadable")]
    assert unusable_for(view, "clerk") == []


def test_what_another_member_of_its_pool_is_done_with_is_not_redriven() -> None:
    store = QueueBook(QueueSettings("credit", Audience((Group("clerks", ("ann", "bob")),))))
    for name in ("ann", "bob"):
        store.enter(Holder(name.encode(), name, 0, None))
    store.put([NewMessage("/till", "m", b"v")], NOW)
    store.refuse("ann", [(one.ticket, "unreadable") for one in store.take("ann", b"ann", 1, NOW)], NOW)
    assert run(store, Filter(unusable=True), dry_run=True) == ([], 0)
    (view,) = chosen(store, Filter(unusable=True))
    assert unusable_for(view, None) == [("ann", "unreadable")]

    store.finish("bob", [one.ticket for one in store.take("bob", b"bob", 1, NOW)], NOW)
    (view,) = chosen(store, Filter(unusable=True))
    assert unusable_for(view, None) == []
    assert run(store, Filter(unusable=True)) == ([], 0)


def test_a_limit_bounds_what_is_chosen() -> None:
    assert [view.handle for view in redrivable(refused(5), Filter(unusable=True), 3)] == [1, 2, 3]


class Interrupted(Exception):
    """The store fails in the middle of a step."""


def test_many_are_given_again_in_one_unit_and_a_step_that_fails_is_not_said_to_be_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = refused(7)
    units: list[None] = []
    begin, again = store.transaction, store.republish
    monkeypatch.setattr(store, "transaction", lambda: (units.append(None), begin())[1])

    def republish(handle: int, *given: int, **named: bool) -> bool:
        if handle == 6:
            raise Interrupted
        return again(handle, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "republish", republish)
    steps = redrive(
        store, chosen(store, Filter(unusable=True)), None,
        dry_run=False, pace=lambda: None, now=lambda: NOW + 1, at_once=3,
    )  # fmt: skip
    done: list[int] = []
    with pytest.raises(Interrupted):
        done.extend(one.handle for one in steps if one.done)

    assert (done, len(units)) == ([1, 2, 3], 2)
    assert [one.ticket.handle for one in store.take("auditor", b"g", 9, NOW + 2)] == [1, 2, 3]


def test_where_another_writer_was_in_the_way_of_many_they_are_given_again_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = refused(6)
    begin, inside = store.transaction, False

    @contextmanager
    def transaction() -> Iterator[None]:
        nonlocal inside
        with begin():
            inside = True
            try:
                yield
            finally:
                inside = False

    monkeypatch.setattr(store, "transaction", transaction)
    again = store.republish

    def republish(handle: int, *given: int, **named: bool) -> bool:
        if handle == 2 and inside:
            raise Collided("another writer was in the way")
        if handle == 5:
            raise StoreAway("the database does not answer")
        return again(handle, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "republish", republish)
    steps = redrive(
        store, chosen(store, Filter(unusable=True)), None,
        dry_run=False, pace=lambda: None, now=lambda: NOW + 1, at_once=3,
    )  # fmt: skip
    done: list[int] = []
    with pytest.raises(StoreAway):
        done.extend(one.handle for one in steps if one.done)

    assert done == [1, 2, 3, 4], "all that was done is said to be"
    assert [one.ticket.handle for one in store.take("auditor", b"g", 9, NOW + 2)] == done


@pytest.mark.parametrize(("words", "units"), [((), 1), (("--rate", "100000"), 0)], ids=["all", "at a rate"])
def test_the_command_gives_many_again_at_once_also_where_others_write(
    words: tuple[str, ...], units: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = refused(AT_ONCE + 1)
    begun: list[None] = []
    begin = store.transaction
    monkeypatch.setattr(store, "shared", True, raising=False)
    monkeypatch.setattr(store, "transaction", lambda: (begun.append(None), begin())[1])

    said = commanded(store, words, monkeypatch, tmp_path)

    assert f"{AT_ONCE + 1} of {AT_ONCE + 1} redriven" in said
    assert len(begun) == units, "the last one is a unit by itself"


def commanded(store: QueueBook, words: Sequence[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    """Run the command on a store, and return what it prints."""

    @contextmanager
    def desk(config: object, who: str) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(
            store=lambda queue: store, audit=lambda *_: None, check_subscriber=lambda *_: None, who=who, config=config
        )

    (folder / "relay.toml").write_text(CONFIG)
    monkeypatch.setattr(command, "QueueDesk", desk)
    return CliRunner().invoke(app, ["message", "redrive", str(folder / "relay.toml"), "credit", *words]).stdout


def test_what_cannot_be_given_again_takes_nothing_off_a_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else a command repeated until it finds nothing leaves all that lies behind it."""
    store = QueueBook(QueueSettings("credit", Audience((Group("clerks", ("ann", "bob")),))))
    for name in ("ann", "bob"):
        store.enter(Holder(name.encode(), name, 0, None))
    store.put([NewMessage("/till", f"m-{number}", b"v") for number in range(4)], NOW)
    for one in store.take("ann", b"ann", 4, NOW):
        store.refuse("ann", [(one.ticket, "unreadable")], NOW)
    first, *others = store.take("bob", b"bob", 4, NOW)
    store.finish("bob", [first.ticket], NOW)
    store.withdraw([others[0].ticket.handle], NOW)
    store.refuse("bob", [(one.ticket, "unreadable") for one in others], NOW)

    assert "1 of 1 redriven" in commanded(store, ["--subscriber", "ann", "--limit", "1"], monkeypatch, tmp_path)
    assert "1 of 1 redriven" in commanded(store, ["--subscriber", "ann", "--limit", "1"], monkeypatch, tmp_path)
    assert "0 of 0 redriven" in commanded(store, ["--subscriber", "ann", "--limit", "1"], monkeypatch, tmp_path)


@pytest.mark.parametrize(("there", "asked"), [(0, [3]), (2, [3]), (3, [3, 3]), (7, [3, 3, 3])])
def test_behind_a_short_page_nothing_is_asked_for(there: int, asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a filter seldom chooses costs a look through all that is there."""
    monkeypatch.setattr(redriving, "PAGE", 3)
    monkeypatch.setattr(queue_views, "SCAN_PAGE", 3)
    store = refused(there)
    find, limits = store.find, list[int]()

    def counted(wanted: Filter, *, after: int = 0, limit: int = 100) -> list[MessageView]:
        limits.append(limit)
        return find(wanted, after=after, limit=limit)

    monkeypatch.setattr(store, "find", counted)
    for pages in (chosen(store, Filter()), queue_views.scan(store, Filter(), 100)):
        limits.clear()
        assert [view.handle for view in pages] == list(range(1, there + 1))
        assert limits == asked


def test_a_redrives_table_shows_what_strangers_wrote_in_bounds_and_on_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "relay.toml").write_text(CONFIG)
    store = QueueBook(QueueSettings("credit", Audience((Group("auditor", ("auditor",)),))))
    store.enter(Holder(b"g", "auditor", 0, None))
    store.put([NewMessage("/till\x1b[2J", "i" * 100_000, b"v")], NOW)
    cause = "ValueError: \x1b]0;all is well\x07\nhttps://me:canary@host"
    store.refuse("auditor", [(one.ticket, cause) for one in store.take("auditor", b"g", 1, NOW)], NOW)

    @contextmanager
    def desk(config: object, who: str) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(store=lambda queue: store, audit=lambda *_: None, who=who, config=config)

    monkeypatch.setattr(command, "QueueDesk", desk)
    shown = CliRunner().invoke(app, ["message", "redrive", str(tmp_path / "relay.toml"), "credit", "--dry-run"])

    assert shown.exit_code == 0, shown.output
    assert not {"\x1b", "\x07"} & set(shown.stdout)
    assert "canary" not in shown.stdout
    assert len(shown.stdout) < 20_000
