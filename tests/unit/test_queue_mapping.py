"""A message of the log becomes a queue's message; what its headers ask for is believed within the queue's bounds only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relay.config.queues import QueueConfig
from relay.delivery.queue.effects import HeldPublishers, QueueEffect
from relay.delivery.queue.mapping import Putting, QueueMapping
from relay.message.errors import MessageRejected
from relay.message.identity import content_digest, digest
from relay.message.record import LogMessage
from relay.queue.message import Audience, Group, NewMessage, Place
from relay.queue.modes import Balance, in_mode, pooled
from relay.queue.settings import Balancing, QueueSettings
from tests.contracts.queue_book import QueueBook

AUDIENCE = Audience((Group("approval", ("approval",)), Group("clerks", ("ann", "bob"))))
QUEUE = QueueSettings("credit", AUDIENCE)


def message(*headers: tuple[str, bytes], offset: int = 7, key: bytes | None = b"k") -> LogMessage:
    given = dict([("ce_id", b"m-1"), ("ce_source", b"/till"), *headers])
    identity = digest(b"c", given["ce_source"], given["ce_id"])
    return LogMessage(
        "orders", 2, offset, key, b"v", list(given.items()), identity, content_digest(key, b"v"), b"/till", None, 0
    )


def mapped(*headers: tuple[str, bytes], queue: QueueSettings = QUEUE, **over: object) -> NewMessage:
    found = QueueMapping(queue, lambda: {"orders": b"\x01\x02"}).map([message(*headers, **over)], tuple)  # type: ignore[arg-type]
    assert found.faults == {}
    (row,) = found.rows
    return row.message


def configured(mode: str) -> QueueSettings:
    subscribers = {"approval": {}, "clerks": {"pool": ["ann", "bob"]}}
    return QueueConfig.model_validate(
        {"name": "credit", "store": "sqlite:///q.db", "subscribers": subscribers, "mode": mode}
    ).settings()


def fault(*headers: tuple[str, bytes]) -> MessageRejected:
    found = QueueMapping(QUEUE, dict).map([message(*headers)], tuple)  # type: ignore[arg-type]
    assert found.rows == []
    return found.faults[0]


def test_a_message_keeps_who_sent_it_and_where_the_log_has_it() -> None:
    found = mapped(("ce_subject", b"order 42"))

    assert (found.publisher, found.id, found.key, found.value) == ("/till", "m-1", b"k", b"v")
    assert (found.subject, found.lane, found.priority, found.delay_ms) == ("order 42", b"/till", 4, 0)
    assert found.place == Place("orders", "0102", 2, 7)
    assert found.audience is None
    assert ("ce_id", b"m-1") in found.headers


def test_what_names_its_capture_stays_in_the_log() -> None:
    # Whoever appends the message to a log again would have a second relay wait for a decision that is not there.
    captured = message(("ce_relaycapture", b"ab" * 16), ("ce_relayresource", b"shop/u-1"))._replace(capture=b"\xab" * 16)

    (row,) = QueueMapping(QUEUE, dict).map([captured], tuple).rows  # type: ignore[arg-type]

    assert row.message.headers == (("ce_id", b"m-1"), ("ce_source", b"/till"))


def test_who_sent_a_message_without_a_source_is_its_topic() -> None:
    nobodys = message()._replace(headers=[("ce_id", b"m-1")])

    (row,) = QueueMapping(QUEUE, dict).map([nobodys], tuple).rows  # type: ignore[arg-type]

    assert (row.message.publisher, row.message.lane) == ("orders", b"orders")


def test_the_lane_is_the_queues_order() -> None:
    by_key = QueueSettings("credit", AUDIENCE, order="key")

    assert mapped(queue=by_key).lane == b"kk"
    assert mapped(queue=by_key, key=None).lane == b" /till"
    assert mapped(queue=QueueSettings("credit", AUDIENCE, order="none")).lane is None


def test_an_id_that_is_not_the_routes_identity_is_not_the_queues() -> None:
    strange = message()._replace(digest=b"\x07" * 16)

    (row,) = QueueMapping(QUEUE, dict).map([strange], tuple).rows  # type: ignore[arg-type]

    assert row.message.id == "07" * 16


def test_headers_ask_for_priority_delay_expiry_and_mode() -> None:
    found = QueueMapping(QUEUE, dict).map(  # type: ignore[arg-type]
        [
            message(
                ("ce_relaypriority", b"9"),
                ("ce_relaydelay", b"1500"),
                ("ce_expirytime", b"1970-01-01T00:01:00Z"),
                ("ce_relaymode", b"balance"),
            )
        ],
        tuple,  # type: ignore[arg-type]
    )
    (row,) = found.rows

    assert (row.message.priority, row.message.delay_ms, row.expires_at) == (9, 1500, 60_000)
    assert row.message.audience == Audience((Group("all", ("approval", "ann", "bob")),))


def test_letters_of_a_time_may_be_small() -> None:
    (row,) = QueueMapping(QUEUE, dict).map([message(("ce_expirytime", b"1970-01-01t00:01:00.5z"))], tuple).rows  # type: ignore[arg-type]

    assert row.expires_at == 60_500, "as RFC 3339 has it"


def test_a_message_has_a_mode_of_its_own_whatever_the_queues_is() -> None:
    ann, bob, approval = (Group(name, (name,)) for name in ("ann", "bob", "approval"))
    for mode in ("publish-subscribe", "balance"):
        queue = configured(mode)

        assert mapped(("ce_relaymode", b"combined"), queue=queue).audience == AUDIENCE
        assert mapped(("ce_relaymode", b"publish-subscribe"), queue=queue).audience == Audience((approval, ann, bob))
        assert mapped(("ce_relaymode", b"balance"), queue=queue).audience == pooled(AUDIENCE)
    assert mapped(("ce_relaymode", b"in-order"), queue=configured("balance")).audience == Audience(AUDIENCE.groups, in_order=True)
    assert mapped(("ce_relaymode", b"in-order"), queue=configured("publish-subscribe")).audience == Audience((approval, ann, bob), in_order=True)


def test_a_message_names_the_pools_of_a_queue_whatever_its_mode_is() -> None:
    clerks = ("ce_relayaudience", b"clerks")

    assert mapped(clerks, queue=configured("combined")).audience == Audience((Group("clerks", ("ann", "bob")),))
    assert mapped(clerks, queue=configured("balance")).audience == pooled(Audience((Group("clerks", ("ann", "bob")),)))
    assert mapped(clerks, queue=configured("publish-subscribe")).audience == Audience((Group("ann", ("ann",)), Group("bob", ("bob",))))
    assert mapped(clerks, ("ce_relaymode", b"combined"), queue=configured("balance")).audience == Audience(
        (Group("clerks", ("ann", "bob")),)
    )


def test_a_message_names_its_subscribers_and_their_order() -> None:
    found = mapped(("ce_relayaudience", b"bob, approval"), ("ce_relaymode", b"in-order"))

    assert found.audience == Audience((Group("bob", ("bob",)), Group("approval", ("approval",))), in_order=True)


def test_whoever_is_named_twice_gets_it_once_and_a_queue_in_order_stays_so() -> None:
    ordered = replace(QUEUE, audience=replace(AUDIENCE, in_order=True), written=None)

    found = mapped(("ce_relayaudience", b"clerks,approval,clerks"), queue=ordered)

    assert found.audience == Audience((Group("clerks", ("ann", "bob")), Group("approval", ("approval",))), in_order=True)


def test_what_a_header_asks_for_beyond_the_bounds_is_a_dead_letter_and_never_guessed() -> None:
    assert fault(("ce_relaypriority", b"10")).code == "bad_header"
    assert fault(("ce_relaypriority", b"-1")).code == "bad_header"
    assert fault(("ce_relaypriority", b"9" * 5000)).code == "bad_header", "Python makes no number of so many digits"
    assert fault(("ce_relaydelay", b"99999999999")).code == "bad_header"
    assert fault(("ce_expirytime", b"2026-11-21T10:00:00")).code == "bad_header"
    assert fault(("ce_expirytime", b"tomorrow")).code == "bad_header"
    assert fault(("ce_relaymode", b"everywhere")).code == "bad_mode"
    assert fault(("ce_relayaudience", b"approval,eve")).code == "bad_audience"
    assert fault(("ce_source", b"\xff")).code == "not_text"
    assert fault(("ce_source", b"a\0b")).code == "not_text", "PostgreSQL takes none"


def test_one_bad_message_spoils_only_itself() -> None:
    found = QueueMapping(QUEUE, dict).map([message(), message(("ce_relaypriority", b"x")), message()], tuple)  # type: ignore[arg-type]

    assert (found.good, len(found.rows), list(found.faults)) == ([0, 2], 2, [1])


def test_what_has_a_fault_already_is_not_put() -> None:
    broken = message()._replace(fault=MessageRejected("read", "no_schema", "of another part"))

    found = QueueMapping(QUEUE, dict).map([broken, message()], tuple)  # type: ignore[arg-type]

    assert (found.good, found.faults) == ([1], {0: broken.fault})


def test_modes_make_one_pool_or_everybody_for_himself() -> None:
    everybody = Audience(tuple(Group(name, (name,)) for name in ("approval", "ann", "bob")))

    assert in_mode(AUDIENCE, "publish-subscribe") == everybody
    assert in_mode(AUDIENCE, "combined") == AUDIENCE
    assert in_mode(AUDIENCE, "balance") == pooled(AUDIENCE)
    assert in_mode(Audience(AUDIENCE.groups, in_order=True), "publish-subscribe") == Audience(everybody.groups, in_order=True)
    alone = Audience((Group("approval", ("approval",)),), in_order=True)
    assert pooled(alone) == alone


def test_balancing_goes_on_above_its_threshold_and_off_below_the_lower_one() -> None:
    balance = Balance(Balancing(on_above=100, off_below=10))

    assert [balance.seen(n) for n in (100, 101, 50, 10, 9, 50, 101)] == [False, True, True, True, False, False, True]
    assert not Balance(None).seen(10**9)


def test_a_messages_own_time_to_live_is_at_most_the_queues_and_its_own_audience_outlasts_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    now, queue = 1_000_000, replace(QUEUE, ttl_ms=5_000, balancing=Balancing(on_above=1, off_below=1))
    monkeypatch.setattr("relay.world.clock.wall_ms", lambda: now)
    store, new = QueueBook(queue), NewMessage("/till", "", b"v")
    effect = QueueEffect(None, lambda _: store, queue, Balance(queue.balancing), HeldPublishers())

    effect.apply(None, [Putting(new._replace(id=f"m-{n}"), at) for n, at in enumerate((None, now - 1, now + 4_999, now + 5_001))])
    effect.apply(None, [Putting(new._replace(id="own", audience=AUDIENCE), None), Putting(new._replace(id="balanced"), None)])

    views = store.views(range(1, 7))
    assert [view.expires_at for view in views] == [now + 5_000, now - 1, now + 4_999, now + 5_000, now + 5_000, now + 5_000]
    assert [len({one.group for one in view.subscribers}) for view in views] == [2, 2, 2, 2, 2, 1]


def test_a_resumed_publisher_is_revealed_until_that_is_durable() -> None:
    publishers = HeldPublishers()
    publishers.now(frozenset({"a", "b"}), frozenset())
    publishers.now(frozenset({"b"}), frozenset({"a"}))
    before = dict(publishers.resumed)
    publishers.now(frozenset({"a", "b"}), frozenset())
    publishers.now(frozenset(), frozenset({"a", "b"}))
    publishers.revealed(before)

    assert set(publishers.resumed) == {"a", "b"}, "it was held once more since that transaction"

    publishers.revealed(dict(publishers.resumed))

    assert publishers.resumed == {}
    publishers.now(frozenset(), frozenset({"a", "b"}))
    assert publishers.resumed == {}


def test_a_process_that_starts_reveals_of_whom_it_hears_that_they_were_resumed_once() -> None:
    """The one before it may have put some of theirs, without having heard of it, behind the command that revealed what was kept."""
    publishers = HeldPublishers()
    publishers.now(frozenset({"held"}), frozenset({"a"}))

    assert set(publishers.resumed) == {"a"}
