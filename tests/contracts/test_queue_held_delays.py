"""What is delayed of a publisher that is held is not revealed by the time alone, nor past what waits for a word."""

from __future__ import annotations

from tests.contracts.queue_media import LATER, NOW, Medium, ids, message, opened, put, take


def test_what_is_due_of_others_is_revealed_and_what_held_publishers_delayed_is_not(medium: Medium) -> None:
    store = opened(medium)
    for publisher in ("shop", "o'hare", "till"):
        store.put([message(f"{publisher} {number}", publisher=publisher, delay_ms=100) for number in range(3)], NOW)
    put(store, "at once")

    assert store.reveal_due(NOW + 100, 2, held=frozenset({"shop", "o'hare"})) == 2
    assert store.reveal_due(NOW + 100, 9, held=frozenset({"shop", "o'hare"})) == 1
    assert store.reveal_due(NOW + 100, 9, held=frozenset({"shop", "o'hare"})) == 0
    assert ids(take(store, now=NOW + 100)) == ["till 0", "till 1", "till 2", "at once"]
    assert store.reveal_due(LATER, 9, held=frozenset({"shop"})) == 3
    assert store.reveal_due(LATER, 9) == 3
    assert [name.split()[0] for name in ids(take(store, now=LATER))] == ["shop"] * 3 + ["o'hare"] * 3


def test_what_is_due_is_not_shown_past_what_its_publisher_was_kept_from_showing(medium: Medium) -> None:
    """Whoever shows it may not have heard yet that the publisher was paused, or that it goes on."""
    store = opened(medium)
    store.put([message("before", delay_ms=100)], NOW)
    (kept,) = [answer.handle for answer in store.put([message("kept")], NOW, reveal=False)]
    store.put([message("behind", delay_ms=100), message("another's", publisher="till", delay_ms=100)], NOW)

    assert store.reveal_due(NOW + 100, 9) == 2
    assert sorted(ids(take(store, now=NOW + 100))) == ["another's", "before"]
    assert store.reveal_due(LATER, 9) == 0
    assert store.reveal([kept], LATER) == [True]
    assert store.reveal_due(LATER, 9) == 1
    assert ids(take(store, now=LATER)) == ["kept", "behind"]
