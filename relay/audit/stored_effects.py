"""The effects of a route in a database, held against the ledger: rows of a table or messages of a queue."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from relay.audit import queues, readers, tables
from relay.audit.checker import Checker, CommitOrder
from relay.audit.evidence import Evidence
from relay.audit.ledger import Ledger
from relay.audit.neighbours import former, in_their_logs, neighbours, remember_all, theirs
from relay.audit.seen import Seen, Watch
from relay.config.model import QueueDestination, RelayConfig, RouteConfig, TableDestination
from relay.kafka.scan import Scan
from relay.kafka.topics import Topics
from relay.monitor.entries import DELIVERED


class StoredEffects:
    """One route's effects in ``store``; what the counts do not tell goes to ``notes``."""

    def __init__(
        self,
        config: RelayConfig,
        route: RouteConfig,
        store: tables.Store,
        topics: Topics,
        scan: Scan,
        watch: Watch,
        notes: list[str],
    ) -> None:
        self._config = config
        self._route = route
        self._store = store
        self._topics = topics
        self._scan = scan
        self._watch = watch
        self._notes = notes

    def table(self, checker: Checker, ledger: Ledger, seen: Seen, to: TableDestination) -> None:
        """Take the table's rows as effects, and the inbox with the monitor as the order in which they committed."""
        if readers.id_column(to) is None:
            self._notes.append(
                "the table's rows are not checkable (own SQL, no column from ce:id, or rows that replace each other): "
                "inbox and monitor are counted instead"
            )
            checker.recorded(self._delivered(seen), f"inbox of {self._route.name}")
        else:
            nameless = self._rows(checker, ledger, to)
            if nameless or ledger.nameless:
                self._nameless(checker, ledger, seen, to, nameless)
            self._leave_to_others(checker, ledger, seen, to)
            self._leave_further(checker, seen, to)
            if not readers.is_sourced(to) and checker.has_strangers:
                # The monitor has other names for them, but as many as it has of messages that have left the log.
                checker.expire(self._older(checker, ledger, seen) - checker.findings.expired)
        self._order(checker, ledger, seen.evidence)

    def _nameless(
        self, checker: Checker, ledger: Ledger, seen: Seen, to: TableDestination, rows: int
    ) -> None:
        """Hold the rows without an id against what is known of messages without one, in the log and older than it."""
        others = neighbours(self._config, self._route)
        delivered, older = self._delivered(seen), self._older(checker, ledger, seen)
        excused = bool(others) or not seen.memory.is_whole
        beyond = checker.nameless(rows, delivered, to.table, older=older, others=excused)
        if beyond and others:
            names = ", ".join(route.name for route in others)
            self._notes.append(f"{beyond} rows of {to.table} without an id may be those of {names}")
        elif excused:
            checker.findings.forgotten += beyond

    @staticmethod
    def _older(checker: Checker, ledger: Ledger, seen: Seen) -> int:
        """Return how many messages that have left the log the monitor says were delivered, and no row is known to be of.

        They may have lain in a topic that the route does not read any more.
        """
        return sum(
            entry.outcome == DELIVERED and entry.digest not in ledger.index and entry.digest not in checker.unknown
            and 0 <= entry.offset < seen.lows.get(entry.partition, entry.offset + 1)
            for entry in seen.later.proven()
        )  # fmt: skip

    def named(self, later: Evidence, to: TableDestination) -> set[bytes]:
        """Return what the route's monitor, or another route into the same table, still tells of; rows without a source have other names."""
        return later.digests() | self._theirs(neighbours(self._config, self._route), None) if readers.is_sourced(to) else set()

    def _leave_to_others(self, checker: Checker, ledger: Ledger, seen: Seen, to: TableDestination) -> None:
        """Take no row for a phantom that another route has put into the same table, as far as rows can be told apart."""
        others = neighbours(self._config, self._route)
        strangers = checker.unknown.keys() - ledger.refused.keys()
        if not others or not strangers:
            return
        names = ", ".join(route.name for route in others)
        if readers.is_sourced(to):
            strangers = self._theirs(others, strangers)
            self._notes.append(f"{len(strangers)} rows of {to.table} are those of {names}")
        elif (found := self._by_id(others, strangers, seen, to)) is not None:
            strangers = found
            self._notes.append(f"{len(strangers)} ids in {to.table} are of messages in the logs of {names}")
        else:
            self._notes.append(
                f"{len(strangers)} ids in {to.table} are of no message of this route; they may be those of {names}: map a "
                "column from ce:source so that they can be told"
            )
        for digest in strangers:
            del checker.unknown[digest]

    def _leave_further(self, checker: Checker, seen: Seen, to: TableDestination) -> None:
        """Take no further row of an id for a duplicate that may be of another route's message of that id."""
        if not checker.further:
            return
        others = neighbours(self._config, self._route)
        found = self._by_id(others, checker.further.keys(), seen, to)
        if found is not None:
            checker.not_others(checker.further.keys() - found, to.table)
        if checker.further:
            names = ", ".join(route.name for route in others)
            self._notes.append(
                f"{len(checker.further)} ids in {to.table} have more rows than messages of this route; they may be those of {names}: map a "
                "column from ce:source so that they can be told"
            )

    def _theirs(self, others: Iterable[RouteConfig], wanted: Collection[bytes] | None) -> set[bytes]:
        """Return which of the digests (None: of all) other routes say that they have delivered."""
        return {
            digest
            for route in others
            for digest in theirs(self._config, route, self._store, self._topics, self._scan, wanted)
        }

    def _by_id(
        self, others: list[RouteConfig], wanted: Collection[bytes], seen: Seen, to: TableDestination
    ) -> set[bytes] | None:
        """Return which rows without a source are of messages of other routes; None where their logs do not tell.

        That is where a log has lost messages, also this route's own, where ids are in another column, or where a position tells
        of a route or a log that are configured no more.
        """
        column = readers.id_column(to)
        if column is None or any(seen.lows.values()) or self._had_other_logs([self._route, *others]):
            return None
        if any(not isinstance(one.to, TableDestination) or readers.id_column(one.to) != column for one in others):
            return None
        match = readers.table_match(to, self._store.as_stored(to.table, column))
        found, whole = in_their_logs(others, match, self._topics, self._scan, wanted)
        return found if whole else None

    def _had_other_logs(self, routes: list[RouteConfig]) -> bool:
        read = {one.name: one.from_ for one in routes}
        return any(
            route not in self._config.routes or (route in read and topic not in read[route])
            for relay, route, topic in self._store.routes()
            if relay == self._config.relay.name
        )

    def queue(self, checker: Checker, ledger: Ledger, seen: Seen, to: QueueDestination) -> None:
        """Take the queue's messages as effects; what has left it counts by inbox and monitor."""
        strangers: list[list[bytes]] = []
        checker.rows(queues.digests(self._store, ledger, to.queue, strangers), to.queue)
        if strangers:
            self._of_no_log(checker, seen, to, strangers)
        if queues.lets_go(self._config.queues[to.queue]):
            self._notes.append(f"what has left queue {to.queue} is counted by inbox and monitor instead")
            checker.recorded(self._delivered(seen), f"inbox of {self._route.name}")
        self._order(checker, ledger, seen.evidence)

    def _of_no_log(self, checker: Checker, seen: Seen, to: QueueDestination, strangers: list[list[bytes]]) -> None:
        """Judge what was put by a route, and is in no log: it is a phantom if all that was ever delivered is known.

        What another relay puts into the same store is not known, nor what a monitor has forgotten, or one that is gone. The
        store's positions name those who put there before, under a name or into a queue that they have no more.
        """
        wanted = {name for names in strangers for name in names}
        relay, putting = self._config.relay.name, self._store.routes()
        here = {route for name, route, _topic in putting if name == relay} | {one.name for one in neighbours(self._config, self._route)}
        of_others = self._theirs([self._config.routes[name] for name in here & self._config.routes.keys() - {self._route.name}], wanted)
        entered = {entry.digest for entry in seen.later.proven(wanted) if entry.outcome == DELIVERED}
        formerly = former(self._config, self._topics, self._scan, wanted - entered - of_others)
        inbox = self._store.inbox(relay, self._route.name)
        entering = {row.digest for row in inbox if row.outcome == DELIVERED} & wanted - entered
        knows_all = {name for name, _route, _topic in putting} <= {relay} and remember_all(
            self._config, here | {self._route.name}, self._topics
        )
        untold = 0
        for names in strangers:
            own = next((name for name in names if name in entered or name in formerly), None)
            if of_others.intersection(names):
                continue
            if entering.intersection(names):
                checker.findings.expired += 1  # its entry follows, and it has left the log meanwhile
            elif own is not None or knows_all:
                checker.stranger(own or names[0], f"a message of {to.queue}")
            else:
                untold += 1
        if untold:
            self._notes.append(
                f"{untold} messages in queue {to.queue} are of nothing that log and monitor still know; they may be older"
            )

    def _order(self, checker: Checker, ledger: Ledger, evidence: Evidence) -> None:
        """Judge the order in which delivery transactions committed."""
        # A page of a living worker tells its delivery transaction; otherwise the inbox row's own transaction does.
        order = CommitOrder(ledger)
        for entry in evidence.proven_of(ledger.index):
            if entry.outcome == DELIVERED and entry.group >= 0:
                order.note(entry.digest, entry.destination, 2 * entry.group)
        for row in self._store.inbox(self._config.relay.name, self._route.name):
            if row.outcome == DELIVERED:
                order.note(row.digest, row.applied, 2 * row.transaction + 1)
        checker.commits(order)

    def _delivered(self, seen: Seen) -> Iterator[bytes]:
        """Yield what is delivered by inbox or monitor.

        At or above the store's position the inbox alone tells: there the monitor may be ahead of a database that was
        restored from a backup, and the route delivers again.
        """
        for row in self._store.inbox(self._config.relay.name, self._route.name):
            if row.outcome == DELIVERED:
                yield row.digest
        for entry in seen.later.proven():
            if entry.outcome == DELIVERED and entry.offset < seen.positions.get(entry.partition, 0):
                yield entry.digest

    def _rows(self, checker: Checker, ledger: Ledger, to: TableDestination) -> int:
        """Take the table's rows as effects; return how many have no id."""
        by_source = {source: column for column, source in to.columns.items()}
        sourced = "ce:source" in by_source
        columns = [by_source["ce:id"], *([by_source["ce:source"]] if sourced else [])]
        nameless = 0

        def matches() -> Iterator[bytes]:
            nonlocal nameless
            for count, row in enumerate(self._store.rows(to.table, columns)):
                if count % tables.ROWS == 0:
                    self._watch(f"{self._route.name}: table {to.table}", count, max(count, len(ledger)))
                if row[0]:
                    source = row[1] if sourced else None
                    yield readers.row_match(
                        ledger, self._route.from_, row[0], source, sourced=sourced, met=checker.is_met
                    )
                else:
                    nameless += 1

        checker.rows(matches(), to.table, may_be_others=not sourced and bool(neighbours(self._config, self._route)))
        self._watch(f"{self._route.name}: table {to.table}", len(ledger), len(ledger))
        return nameless
