"""Messages that are PUT and wait for nothing but somebody's word, and how they are revealed in their order ([41] to [43])."""

from __future__ import annotations

from typing import Final

from relay.queue.message import MessageView
from relay.queue.port import Filter, QueueStore
from relay.queue.states import PublisherState

AT_ONCE: Final = 1000


def waits_for_word(view: MessageView) -> bool:
    """Whether a message that is PUT waits for neither a time nor an attempt."""
    return view.state is PublisherState.PUT and view.attempt is None and view.reveal_at is None


def waits_for_attempt(view: MessageView) -> bool:
    """Whether a message is a child whose attempt has no outcome yet."""
    return view.state is PublisherState.PUT and view.attempt is not None


def reveal_kept(store: QueueStore, publisher: str, now: int) -> int:
    """Reveal, in their order, the messages of a publisher that wait for a word only; return how many."""
    count = after = 0
    while found := store.find(Filter(state=PublisherState.PUT, publisher=publisher), after=after, limit=AT_ONCE):
        kept = [view.handle for view in found if waits_for_word(view)]
        count += sum(store.reveal(kept, now)) if kept else 0
        after = found[-1].handle
    return count
