"""The commands for queues, publishers, subscribers, messages and the journal, on a real broker and a real store."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from relay.cli.main import app
from relay.config.loading import load
from relay.control import queue_purging
from relay.control.pacing import Pace
from relay.queue.message import NewMessage, Parent
from relay.queue.port import Holder, QueueStore, StoreAway
from relay.run.following import follow
from relay.run.queues import open_queue
from relay.setup.migrate import migrate
from relay.world import clock

CONFIG = """
[relay]
name = "{name}"
instance = "test"
state = "{folder}/state"

[kafka]
"bootstrap.servers" = "{kafka}"

[queues.inbound]
store = "sqlite:///inbound.db"
subscribers = {{ clerk = {{}}, pool = {{ pool = ["ann", "bob"] }} }}
retain = {{ count = 2 }}
archive = "day"

[queues.outbound]
store = "sqlite:///outbound.db"
subscribers = {{ approval = {{}} }}
"""


class Desk:
    """A relay with two queues and no route, its commands, and its stores beside them."""

    def __init__(self, folder: Path, kafka: str, name: str) -> None:
        self.path = folder / "relay.toml"
        self.path.write_text(CONFIG.format(name=name, folder=folder, kafka=kafka))
        self.config = load(self.path)
        migrate(self.config)
        self._stores: dict[str, QueueStore] = {}

    def store(self, queue: str = "inbound") -> QueueStore:
        if queue not in self._stores:
            follower = follow(self.config)
            self._stores[queue] = open_queue(self.config, queue, follower.now())
            follower.close()
            for group in self._stores[queue].settings.audience.groups:
                for member in group.members:
                    self._stores[queue].enter(Holder(member.encode(), member, 0, None))
        return self._stores[queue]

    def put(self, *ids: str, publisher: str = "/till", queue: str = "inbound", **over: Any) -> list[int]:
        given = [NewMessage(publisher, name, name.encode(), **over) for name in ids]
        return [answer.handle for answer in self.store(queue).put(given, clock.wall_ms())]

    def refuse(self, subscriber: str, cause: str) -> list[int]:
        taken = self.store().take(subscriber, subscriber.encode(), 100, clock.wall_ms())
        assert all(self.store().refuse(subscriber, [(one.ticket, cause) for one in taken], clock.wall_ms()))
        return [one.ticket.handle for one in taken]

    def finish(self, subscriber: str) -> list[int]:
        taken = self.store().take(subscriber, subscriber.encode(), 100, clock.wall_ms())
        assert all(self.store().finish(subscriber, [one.ticket for one in taken], clock.wall_ms()))
        return [one.ticket.handle for one in taken]

    def run(self, noun: str, verb: str, *words: object, code: int = 0) -> Any:
        """Run a command with --json and return its document."""
        found = CliRunner().invoke(app, [noun, verb, str(self.path), *map(str, words), "--json"])
        assert found.exit_code == code, found.output
        return json.loads(found.output) if code in (0, 1) and found.output.startswith(("{", "[")) else found.output

    def table(self, noun: str, verb: str, *words: object) -> str:
        """Run a command for people and return what it prints."""
        found = CliRunner().invoke(app, [noun, verb, str(self.path), *map(str, words)])
        assert found.exit_code in (0, 1), found.output
        return found.output

    def close(self) -> None:
        for store in self._stores.values():
            store.close()


@pytest.fixture
def desk(tmp_path: Path, kafka: str, make_topic: Callable[..., str]) -> Iterator[Desk]:
    made = Desk(tmp_path, kafka, make_topic(1, name="desk"))
    yield made
    made.close()


def test_wishes_are_recorded_with_who_and_why_and_stand_in_every_later_command(desk: Desk) -> None:
    desk.run("queue", "pause", "inbound", "--reason", "stocktaking", "--who", "eve")
    desk.run("subscriber", "pause", "ann")
    desk.run("publisher", "pause", "/till", "--queue", "inbound")

    shown = desk.run("queue", "show", "inbound")
    assert {(wish["kind"], wish["name"], wish["wanted"]) for wish in shown["wishes"]} == {
        ("queue", "", "PAUSE"), ("subscriber", "ann", "PAUSE"), ("publisher", "/till", "PAUSE"),
    }  # fmt: skip
    assert ("eve", "stocktaking") in {(wish["who"], wish["reason"]) for wish in shown["wishes"]}
    rows = {row["queue"]: row["wanted"] for row in desk.run("queue", "list")["queues"]}
    assert rows == {"inbound": "PAUSE", "outbound": "RUN"}
    wanted = {row["subscriber"]: row["wanted"] for row in desk.run("subscriber", "list", "--queue", "inbound")["subscribers"]}
    assert wanted == {"clerk": "RUN", "ann": "PAUSE", "bob": "RUN"}

    desk.run("queue", "drain", "inbound")
    desk.run("queue", "resume", "inbound")
    desk.run("subscriber", "resume", "ann")
    assert desk.run("queue", "show", "inbound")["wanted"] == "RUN"


def test_what_is_not_there_is_refused_by_name(desk: Desk) -> None:
    assert "no such queue" in desk.run("queue", "pause", "inbuond", code=2)
    assert "no queue has it" in desk.run("subscriber", "pause", "carl", code=2)
    assert "no message 99" in desk.run("message", "show", "inbound", 99, code=1)
    assert "no such state" in desk.run("message", "list", "inbound", "--state", "GONE", code=2)
    assert "not a time" in desk.run("message", "list", "inbound", "--since", "yesterday", code=2)


def test_a_message_is_seen_with_all_its_states_and_times_and_its_payload_only_if_asked(desk: Desk) -> None:
    (handle,) = desk.put("secret-payload", subject="order 42")
    desk.finish("clerk")
    desk.refuse("ann", "unreadable")

    row = desk.run("message", "show", "inbound", handle)
    states = {one["subscriber"]: (one["state"], one["cause"]) for one in row["subscribers"]}
    assert states == {"clerk": ("JOURNALLED", None), "ann": ("JOURNALLED", "unreadable"), "bob": ("AVAILABLE", None)}
    assert [(step["who"], step["state"]) for step in row["timeline"]][:4] == [
        ("publisher", "PUT"), ("publisher", "REVEALED"), ("clerk", "GET"), ("clerk", "FETCHED"),
    ]  # fmt: skip
    assert row["subject"] == "order 42"
    assert "value" not in row
    assert desk.run("message", "show", "inbound", handle, "--value")["value"] == "c2VjcmV0LXBheWxvYWQ="
    assert "clerk: DONE" in desk.table("message", "show", "inbound", handle)
    assert "clerk JOURNALLED, ann JOURNALLED (UNUSABLE), bob AVAILABLE" in desk.table("message", "list", "inbound")


def test_messages_are_listed_by_a_filter_page_by_page(desk: Desk) -> None:
    handles = desk.put(*(f"m-{n}" for n in range(5)))
    desk.put("other", publisher="/web")

    page = desk.run("message", "list", "inbound", "--publisher", "/till", "--limit", 3)
    assert [row["handle"] for row in page["messages"]] == handles[:3]
    rest = desk.run("message", "list", "inbound", "--publisher", "/till", "--after", page["next"])
    assert [row["handle"] for row in rest["messages"]] == handles[3:]
    found = desk.run("message", "list", "inbound", "--subscriber", "clerk", "--is", "AVAILABLE", "--since", "1h")
    assert len(found["messages"]) == 6
    assert {row["publisher"] for row in desk.run("publisher", "list", "--queue", "inbound")["publishers"]} == {"/till", "/web"}


def test_bulk_redrive_is_dry_first_then_paced_and_for_that_subscriber_only(desk: Desk) -> None:
    handles = desk.put(*(f"m-{n}" for n in range(4)))
    desk.refuse("clerk", "unreadable")

    dry = desk.run("message", "redrive", "inbound", "--dry-run")
    assert ([one["handle"] for one in dry["messages"]], dry["redriven"]) == (handles, 0)
    before = clock.monotonic()
    assert desk.run("message", "redrive", "inbound", "--rate", 10, "--reason", "mended")["redriven"] == 4
    assert clock.monotonic() - before >= 0.3

    assert desk.finish("clerk") == handles
    assert desk.run("message", "redrive", "inbound")["redriven"] == 0
    audit = desk.run("queue", "show", "inbound")["audit"]
    assert [(one["action"], one["changed"], one["reason"]) for one in audit] == [("redrive", 4, "mended")]


def test_what_was_done_is_repeated_only_by_name(desk: Desk) -> None:
    (handle,) = desk.put("m-1")
    desk.finish("clerk")

    assert "--even-done" in desk.run("message", "redrive", "inbound", "--even-done", code=2)
    refused = desk.run("message", "redrive", "inbound", handle, "--subscriber", "clerk", code=1)
    assert (refused["redriven"], refused["refused"]) == (0, [handle])
    assert desk.run("message", "redrive", "inbound", handle, "--subscriber", "clerk", "--even-done")["redriven"] == 1
    assert desk.finish("clerk") == [handle]


def test_priority_reveal_withdraw_expire_and_edit_change_what_may_be_changed(desk: Desk, tmp_path: Path) -> None:
    first, second, third = desk.put("m-1", "m-2", "m-3")
    (delayed,) = desk.put("later", delay_ms=3_600_000)
    new = tmp_path / "new.json"
    new.write_bytes(b"mended")

    assert desk.run("message", "priority", "inbound", first, second, "--to", 9)["changed"] == 2
    assert desk.run("message", "reveal", "inbound", delayed)["changed"] == 1
    assert desk.run("message", "reveal", "inbound", delayed, code=1)["refused"] == [delayed]
    assert desk.run("message", "withdraw", "inbound", third)["changed"] == 1
    assert desk.run("message", "expire", "inbound", second, "--subscriber", "clerk")["changed"] == 1
    assert desk.run("message", "edit", "inbound", first, "--value", new, "--reason", "typing error")["changed"] == 1

    view = desk.store().view(first)
    assert view is not None
    assert view.value == b"mended"
    assert any(b"typing error" in (value or b"") for _, value in view.headers)
    shown = desk.table("message", "show", "inbound", first, "--value")
    assert re.search(r"^edited: 20\S+ by \S+: typing error$", shown, re.MULTILINE)
    assert re.search("^header relay_edited: ey", shown, re.MULTILINE)
    assert "clerk JOURNALLED (EXPIRED), ann AVAILABLE" in desk.table("message", "list", "inbound")
    assert desk.finish("clerk") == [first, delayed]
    actions = [one["action"] for one in desk.run("queue", "show", "inbound")["audit"]]
    assert actions == ["priority 9", "reveal", "withdraw", "expire", "edit"]


def test_a_purge_asks_first_and_leaves_everything_readable(desk: Desk) -> None:
    handles = desk.put("m-1", "m-2")

    assert "give --yes" in desk.run("queue", "purge", "inbound", code=2)
    assert desk.run("queue", "purge", "inbound", "--dry-run")["messages"] == 2
    assert desk.run("queue", "purge", "inbound", "--yes", "--reason", "test data")["messages"] == 2
    assert desk.run("message", "show", "inbound", handles[0])["state"] == "UNAVAILABLE"


def test_a_store_that_is_not_on_this_host_is_not_made_by_looking_for_it(desk: Desk) -> None:
    desk.put("m-1")
    desk.close()
    store = next(desk.path.parent.rglob("inbound*.db"))
    store.rename(store.with_suffix(".away"))

    said = desk.run("message", "list", "inbound", code=1)
    assert f"{store}, which is not there" in said
    assert not store.exists()


@pytest.mark.parametrize(("noun", "rows"), [("queue", "queues"), ("subscriber", "subscribers"), ("publisher", "publishers")])
def test_a_queue_that_cannot_be_opened_is_named_and_keeps_the_others_from_nothing(desk: Desk, noun: str, rows: str) -> None:
    desk.put("m-1", queue="outbound")
    desk.close()
    store = next(desk.path.parent.rglob("inbound*.db"))
    store.rename(store.with_suffix(".away"))

    told = desk.run(noun, "list", code=1)
    assert {row["queue"] for row in told[rows]} == {"outbound"}
    assert [note.split(": ")[0] for note in told["notes"]] == ["queue inbound"]
    assert "note: queue inbound: " in desk.table(noun, "list")


def test_a_trace_leads_over_queues_from_parents_to_children(desk: Desk) -> None:
    (parent,) = desk.put("sale")
    (child,) = desk.put("check", queue="outbound", parents=(Parent("inbound", parent, "clerk"),))

    for queue, handle in (("inbound", parent), ("outbound", child)):
        found = desk.run("message", "trace", queue, handle)
        assert [(one["queue"], one["handle"]) for one in found] == [("inbound", parent), ("outbound", child)]
    assert "(child 1)" in desk.table("message", "trace", "inbound", parent)
    assert f"parent: inbound/{parent} for clerk\n" in desk.table("message", "show", "outbound", child)


def test_a_resumed_publisher_is_revealed_at_once(desk: Desk) -> None:
    store = desk.store()
    desk.run("publisher", "pause", "/till")
    store.put([NewMessage("/till", "kept", b"x")], clock.wall_ms(), reveal=False)

    assert desk.run("publisher", "resume", "/till")["revealed"] == 1
    assert len(desk.finish("clerk")) == 1


def test_whose_messages_no_queue_has_is_told_when_it_is_paused(desk: Desk) -> None:
    desk.put("one")
    note = "nothing of it is in these queues so far"

    assert note not in desk.table("publisher", "pause", "/till")
    assert note in desk.table("publisher", "pause", "/til")
    assert note not in desk.table("publisher", "resume", "/til")
    assert desk.run("publisher", "pause", "/til")["known"] is False


def test_the_journal_is_listed_archived_and_listed_again(desk: Desk) -> None:
    handles = desk.put(*(f"m-{n}" for n in range(5)))
    for subscriber in ("clerk", "ann"):
        desk.finish(subscriber)
    assert len(desk.run("journal", "list", "inbound")["messages"]) == 5

    (row,) = desk.run("journal", "archive", "--queue", "inbound")["queues"]

    assert (row["messages"], len(row["files"])) == (3, 1)
    assert [one["handle"] for one in desk.run("journal", "list", "inbound")["messages"]] == handles[3:]
    archived = desk.run("journal", "list", "inbound", "--archived")["messages"]
    assert [one["handle"] for one in archived] == handles[:3]
    assert "value" not in archived[0]
    assert desk.run("journal", "show", "--queue", "inbound")["queues"][0]["journalled"] == 2


def test_a_check_finds_a_store_that_is_not_there_or_another_one(desk: Desk, tmp_path: Path) -> None:
    def check(code: int) -> Any:
        found = CliRunner().invoke(app, ["check", str(desk.path), "--connect", "--json"])
        assert found.exit_code == code, found.output
        return json.loads(found.output)

    assert {"queue inbound", "queue outbound"} <= set(check(0)["checked"])

    for path in tmp_path.glob("outbound.db*"):
        path.unlink()
    (fault,) = check(1)["faults"]
    assert (fault["key"], fault["problem"]) == ("queues.outbound.store", "does not exist on this host")
    assert not (tmp_path / "outbound.db").exists(), "a check creates nothing"

    (tmp_path / "inbound.db").rename(tmp_path / "outbound.db")
    found = check(1)
    assert {fault["key"] for fault in found["faults"]} == {"queues.inbound.store", "queues.outbound.store"}


def test_a_queue_that_cannot_be_shown_ends_a_list_as_it_ends_its_own_command(desk: Desk, tmp_path: Path) -> None:
    for path in tmp_path.glob("outbound.db*"):
        path.unlink()

    shown, listed = (CliRunner().invoke(app, ["queue", *words]) for words in (["show", str(desk.path), "outbound"], ["list", str(desk.path)]))

    assert shown.exit_code == 1
    assert listed.exit_code == 1, listed.output
    assert "inbound" in listed.output


def test_what_was_done_before_an_interruption_is_on_record(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.put("a", "b", "c", "d")
    desk.refuse("clerk", "no")
    waits: list[int] = []

    def interrupted(_: Pace) -> None:
        waits.append(1)
        if len(waits) == 3:
            raise StoreAway("the store is away")

    monkeypatch.setattr(Pace, "wait", interrupted)
    desk.run("message", "redrive", "inbound", "--subscriber", "clerk", "--rate", "100", code=3)
    monkeypatch.setattr(queue_purging, "AT_ONCE", 3)
    withdraw, steps = queue_purging._withdraw, []

    def away(store: QueueStore, handles: list[int], now: int, *, dry_run: bool) -> int:
        steps.append(handles)
        if len(steps) == 2:
            raise StoreAway("the store is away")
        return withdraw(store, handles, now, dry_run=dry_run)

    monkeypatch.setattr(queue_purging, "_withdraw", away)
    desk.run("queue", "purge", "inbound", "--yes", code=3)

    audit = desk.run("queue", "show", "inbound")["audit"]
    assert [(one["action"], one["changed"]) for one in audit] == [("redrive", 2), ("purge", 3)]


def test_pages_of_the_archive_miss_no_message_whatever_period_it_ended_in(desk: Desk) -> None:
    first, second, third, *_ = handles = desk.put("a", "b", "c", "d", "e")
    now, day = clock.wall_ms(), 86_400_000
    ended_at = {second: now - 3 * day, first: now - 2 * day, third: now - 2 * day}
    for subscriber in ("clerk", "ann"):
        for one in desk.store().take(subscriber, subscriber.encode(), 100, now):
            desk.store().finish(subscriber, [one.ticket], ended_at.get(one.ticket.handle, now))
    desk.run("journal", "archive", "--queue", "inbound")

    pages = [desk.run("journal", "list", "inbound", "--archived", "--limit", 2, "--after", after) for after in (0, second)]

    assert [[one["handle"] for one in page["messages"]] for page in pages] == [[first, second], [third]]
    assert [page["next"] for page in pages] == [second, None]
    assert handles[:3] == [first, second, third]


def test_a_handle_that_no_message_can_have_is_a_slip_and_no_traceback(desk: Desk) -> None:
    for words in (["message", "show", "inbound", 10**20], ["message", "withdraw", "inbound", 2**63], ["message", "list", "inbound", "--after", 10**20]):
        assert "Invalid value" in desk.run(*words, code=2)
