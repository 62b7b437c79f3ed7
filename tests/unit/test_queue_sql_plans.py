"""No statement of a queue reads a whole table: what lies in the journal costs nothing."""

from __future__ import annotations

import re
import sqlite3

import pytest

from relay.queue.message import Audience, Group, NewMessage
from relay.queue.port import Holder
from relay.queue.settings import QueueSettings, Retention
from relay.queue.stores import sql_taking, sql_text
from relay.queue.stores.sql_schema import create
from relay.queue.stores.sqlite import bind_sqlite

JOURNAL = {"ENDED", "SIZE_OVER", "HEADERS_OVER"}
"""They read the journal: their business, and the archive's only."""
WHOLE = {"FIND_AMONG_ALL", "COUNT_LIVE"}
"""A person asks for it: pages by handle, and what is open."""
STATEMENTS = {
    name: text
    for name, text in vars(sql_text).items()
    if isinstance(text, str)
    and re.match(r"(select|insert|update|delete)\s", text)
    and not name.startswith("_")
    and name not in {"DRAW", "RAISE", "TALLIED", "LOCK_GROUPS"}
}


def plan(text: str, *, together: bool = False) -> list[str]:
    connection = sqlite3.connect(":memory:")
    create(connection)
    connection.create_function("relay_lane_number", 1, int, deterministic=True)
    prepared = sql_text.sqlite_text(text, together=together)
    named = dict.fromkeys(re.findall(r":(\w+)", prepared))
    given = named or [None] * prepared.count("?")
    return [row[3] for row in connection.execute(f"explain query plan {prepared}", given)]


@pytest.mark.parametrize("name", sorted(STATEMENTS.keys() - JOURNAL - WHOLE))
def test_a_statement_finds_its_rows_by_an_index(name: str) -> None:
    # A scan names the table or its alias, which here is one letter.
    scans = [step for step in plan(STATEMENTS[name]) if re.match(r"SCAN (\w|relay_queue_\w+)( |$)", step)]
    large = [step for step in scans if not re.match(r"SCAN relay_queue_(holder|group|subscriber|member)", step)]

    assert large == []


@pytest.mark.parametrize("name", ["WAKE", "PLACES", "HELD_LANES", "HELD", "COUNT_HIDDEN", "COUNT_TAKEN"])
def test_what_workers_have_is_read_by_the_index_that_has_nothing_else(name: str) -> None:
    assert any("relay_queue_delivery_busy" in step for step in plan(STATEMENTS[name]))


def test_what_subscribers_found_unusable_is_counted_by_the_index_that_has_nothing_else() -> None:
    assert any("relay_queue_delivery_unusable" in step for step in plan(STATEMENTS["COUNT_UNUSABLE"]))


@pytest.mark.parametrize("name", ["RANKS", "READY_PAGE", "READY_ALONE", "READY_LEVEL", "COUNT_WAITING"])
def test_what_waits_is_read_by_the_index_that_has_nothing_else(name: str) -> None:
    assert any("relay_queue_delivery_ready" in step for step in plan(STATEMENTS[name]))


@pytest.mark.parametrize("name", ["READY_PAGE", "READY_ALONE", "READY_LEVEL", "READY_LANES"])
def test_what_a_take_reads_comes_in_its_order_and_is_not_sorted(name: str) -> None:
    assert not any("TEMP B-TREE" in step for step in plan(STATEMENTS[name]))


@pytest.mark.parametrize("urgent", [1, 50])
def test_a_take_of_mixed_priorities_costs_no_more_where_ten_times_as_many_wait(
    urgent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_taking, "LEVEL_MAX", 1000)

    def steps_of_a_take(count: int) -> int:
        connection = sqlite3.connect(":memory:", isolation_level=None)
        create(connection)
        store = bind_sqlite(QueueSettings("q", Audience((Group("s", ("s",)),))), connection)
        store.enter(Holder(b"A", "s", 0, None))
        put = [
            NewMessage("/p", str(n), None, lane=b"%d" % (n % 97), priority=9 if n % 100 < urgent else 0) for n in range(count)
        ]
        store.put(put, 1)
        steps = 0

        def step() -> None:
            nonlocal steps
            steps += 1

        connection.set_progress_handler(step, 100)
        assert len(store.take("s", b"A", 10, 1)) == 10
        return steps

    assert steps_of_a_take(20_000) < 3 * steps_of_a_take(2_000)


def test_the_journal_is_looked_through_no_further_than_it_goes() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    create(connection)
    settings = QueueSettings("q", Audience((Group("s", ("s",)),)), retain=Retention(age_ms=1))
    store = bind_sqlite(settings, connection)
    store.enter(Holder(b"A", "s", 0, None))
    store.put([NewMessage("/p", str(n), None) for n in range(20_000)], 1)
    store.finish("s", [one.ticket for one in store.take("s", b"A", 10, 1)], 1)
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    connection.set_progress_handler(step, 100)

    assert len(store.journalled(5, 100)) == 10
    assert steps < 100


TOGETHER = {name: text for name, text in STATEMENTS.items() if "in {handles}" in text} | {
    **{f"counted {name}": sql_text.counted(STATEMENTS[name]) for name in ("START", "FINISH", "REFUSE", "FREE")},
    "deliveries_arrived": sql_text.deliveries_arrived(2),
}


@pytest.mark.parametrize("name", sorted(TOGETHER))
def test_handles_that_follow_each_other_are_read_along_the_key(name: str) -> None:
    found = plan(TOGETHER[name], together=True)

    assert any("USING PRIMARY KEY (handle>? AND handle<?)" in step for step in found), found
