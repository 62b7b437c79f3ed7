"""What anybody may see of a queue kept in files, the journal's end, and moving to another store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import merge

from relay.queue.message import MessageView
from relay.queue.port import Child, Filter, Waiting
from relay.queue.receipt import size_of
from relay.queue.states import TAKEN, PublisherState, SubscriberState
from relay.queue.stores.files_base import FilesBase
from relay.queue.stores.files_journal import Row
from relay.queue.stores.files_message import NEVER, At, Content, Delivery, Kept, never_if_none
from relay.queue.stores.files_record import HERE, decode_content, encode_content

Load = Callable[[], tuple[Kept, Content]]


class Viewing(FilesBase):
    """The part of the port that looks, and the one that ends."""

    def view(self, handle: int, *, value: bool = True) -> MessageView | None:
        """Return a message and all its states, altering nothing."""
        self._guard()
        message = self._index.messages.get(handle)
        if message is not None:
            return message.view(self._content(message), value=value)
        found = self._journal.find(handle)
        return None if found is None else self._view_ended(*found, value=value)

    def views(self, handles: Sequence[int], *, value: bool = True) -> list[MessageView]:
        """Return what `view` does of those of these messages that are there, by handle."""
        found = (self.view(handle, value=value) for handle in sorted(set(handles)))
        return [view for view in found if view is not None]

    def _view_ended(self, number: int, row: Row, *, value: bool) -> MessageView:
        message, content = self._load_ended(number, row)
        return message.view(content, value=value)

    def _load_ended(self, number: int, row: Row) -> tuple[Kept, Content]:
        message, raw = self._journal.read(number, row)
        return message, decode_content(raw, f"message {message.handle}")

    def find(self, chosen: Filter, *, after: int = 0, limit: int = 100) -> list[MessageView]:
        """Return messages without their values, by handle, those above ``after``."""
        self._guard()
        found: list[MessageView] = []
        for _, load in merge(self._living(after), *self._journalled_after(after), key=lambda one: one[0]):
            message, content = load()
            if _fits(message, chosen):
                found.append(message.view(content, value=False))
            if len(found) == limit:
                break
        return found

    def _living(self, after: int) -> Iterator[tuple[int, Load]]:
        def load(message: Kept) -> Load:
            return lambda: (message, self._content(message))

        for handle in sorted(handle for handle in self._index.messages if handle > after):
            yield handle, load(self._index.messages[handle])

    def _journalled_after(self, after: int) -> list[Iterator[tuple[int, Load]]]:
        def rows(number: int) -> Iterator[tuple[int, Load]]:
            for row in self._journal.rows(number, after):
                yield row.handle, lambda row=row: self._load_ended(number, row)  # type: ignore[misc]

        return [rows(number) for number, file in self._journal.files.items() if file.last > after]

    def children(self, limit: int, *, after: int = 0) -> list[Child]:
        """Return PUT messages that wait for an attempt's outcome, by handle."""
        self._guard()
        waiting = sorted(handle for handle in self._index.children if handle > after)
        return [Child(handle, self._index.children[handle]) for handle in waiting[:limit]]

    def counts(self) -> tuple[dict[PublisherState, int], list[Waiting]]:
        """Return how many messages are in each state; subscribers' JOURNALLED are taken to be all that ended."""
        self._guard()
        states: Counter[PublisherState] = Counter()
        members = [member for group in self.settings.audience.groups for member in group.members]
        rows: dict[str, Counter[SubscriberState]] = {member: Counter() for member in members}
        for message in self._index.messages.values():
            states[message.state] += 1
            for delivery in message.deliveries:
                rows.setdefault(delivery.subscriber, Counter())[delivery.state] += 1
        # Whom the configuration has no more is told of while something of it waits, or is with a worker.
        gone = [name for name in sorted(rows) if name not in members and any(rows[name][state] for state in (SubscriberState.AVAILABLE, *TAKEN))]
        for file in self._journal.files.values():
            states.update(file.states)
            for member in members:
                rows[member][SubscriberState.JOURNALLED] += file.states.total()
        return {state: states[state] for state in PublisherState}, [
            Waiting(subscriber, {state: counted[state] for state in SubscriberState})
            for subscriber, counted in ((name, rows[name]) for name in (*members, *gone))
        ]

    def unusable(self) -> dict[str, int] | None:
        """Return None: what has ended lies in files without a count of this."""
        return None

    # The journal --------------------------------------------------------------------------------------------------

    def journalled(self, now: int, limit: int) -> list[MessageView]:
        """Return what is past the queue's retention, oldest first: files in their order, then what is in memory."""
        self._guard()
        retain = self.settings.retain
        count = len(self._index.ended) + sum(file.states.total() for file in self._journal.files.values())
        size = sum(self._index.messages[handle].size for handle in self._index.ended)
        size += sum(file.bytes for file in self._journal.files.values())

        def is_past(ended_at: int) -> bool:
            too_old = retain.age_ms is not None and ended_at + retain.age_ms <= now
            too_many = retain.count is not None and count > retain.count
            return too_old or too_many or (retain.bytes is not None and size > retain.bytes)

        found: list[MessageView] = []
        for number, file in self._journal.files.items():
            if not is_past(file.earliest):
                count, size = count - file.states.total(), size - file.bytes
                continue
            for row in sorted(self._journal.rows(number), key=lambda row: (row.ended_at, row.handle)):
                if len(found) == limit:
                    return found
                if is_past(row.ended_at):
                    found.append(self._view_ended(number, row, value=True))
                count, size = count - 1, size - row.size
        ended = [self._index.messages[handle] for handle in self._index.ended]
        for message in sorted(ended, key=lambda message: (message.ended_at(), message.handle)):
            if len(found) < limit and is_past(message.ended_at()):
                found.append(message.view(self._content(message), value=True))
            count, size = count - 1, size - message.size
        return found

    def trim(self, handles: Sequence[int]) -> int:
        """Remove messages that have ended and that no worker has; return how many."""
        count = 0
        with self._writing():
            for handle in handles:
                if handle in self._index.ended:
                    self._remove(self._index.messages[handle])
                    count += 1
                elif handle not in self._index.messages and (found := self._journal.find(handle)) is not None:
                    self._bury(*found)
                    count += 1
        return count

    # Moving to another store ----------------------------------------------------------------------------------------

    def retire(self) -> None:
        """Refuse every later write; see the port."""
        self._set_retired(True)

    def reinstate(self) -> None:
        """Take writes again; see the port."""
        self._set_retired(False)

    def _set_retired(self, retired: bool) -> None:
        with self.transaction():
            self._guard()
            assert self._pending is not None
            if self._retired is not retired:
                before, self._retired, self._pending.other = self._retired, retired, True

                def undo() -> None:
                    self._retired = before

                self._pending.undo.append(undo)

    def outcomes(self, *, after: str = "", limit: int = 1000) -> list[tuple[str, bool]]:
        """Return attempts with their outcomes by name, those above ``after``."""
        self._guard()
        names = sorted(name for name in self._outcomes if name > after)[:limit]
        return [(name, self._outcomes[name]) for name in names]

    def adopt(
        self, messages: Sequence[MessageView], *, uuid: str, outcomes: Sequence[tuple[str, bool]] = ()
    ) -> None:
        """Write messages of another store of this queue as they are; see the port."""
        with self.transaction():
            self._guard()
            pending = self._pending
            assert pending is not None
            before = self.uuid, self._last, self._outcomes.copy()

            def undo() -> None:
                self.uuid, self._last, self._outcomes = before

            pending.undo.append(undo)
            pending.other = True
            self.uuid = uuid
            self._outcomes.update(outcomes)
            pending.outcomes += outcomes
            for view in messages:
                self._adopt(view)
                self._last = max(self._last, view.handle)

    def _adopt(self, view: MessageView) -> None:
        here = self._index.messages.get(view.handle)
        ended = None if here is not None else self._journal.find(view.handle)
        if here is not None:
            self._remove(here)
        elif ended is not None:
            self._bury(*ended)
        content = Content(view.key, view.value, view.headers, view.subject, view.parents)
        self._add(_kept(view), encode_content(content))


def _kept(view: MessageView) -> Kept:
    times = (view.revealed_at, view.unavailable_at, view.journalled_at, view.deleted_at)
    return Kept(
        handle=view.handle,
        publisher=view.publisher,
        id=view.id,
        lane=view.lane,
        in_order=view.in_order,
        child=bool(view.parents),
        put_at=view.put_at,
        reveal_at=never_if_none(view.reveal_at),
        expires_at=never_if_none(view.expires_at),
        priority=view.priority,
        attempt=view.attempt,
        size=size_of(view.key, view.value, view.headers),
        at=At(HERE, 0, 0),
        deliveries=[
            Delivery(
                row.subscriber,
                row.group,
                row.state,
                [never_if_none(time) for time in row.times],
                row.revealed,
                row.attempt,
                row.failures,
                row.holder,
                never_if_none(row.again_at),
                row.cause,
            )
            for row in view.subscribers
        ],
        state=view.state,
        times=[never_if_none(time) for time in times],
    )


def _fits(message: Kept, chosen: Filter) -> bool:
    meant = [one for one in message.deliveries if chosen.subscriber in (None, one.subscriber)]
    return (
        bool(meant)
        and chosen.state in (None, message.state)
        and chosen.publisher in (None, message.publisher)
        and (chosen.subscriber_state is None or any(one.state is chosen.subscriber_state for one in meant))
        and (not chosen.unusable or any(one.times[SubscriberState.UNUSABLE - 1] != NEVER for one in meant))
        and (chosen.since is None or message.put_at >= chosen.since)
        and (chosen.until is None or message.put_at < chosen.until)
    )
