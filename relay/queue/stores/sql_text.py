"""The statements of a queue, one text for SQLite and PostgreSQL.

``:name`` is a parameter, ``in {name}`` asks for one of a list, ``$WORD`` is the number of a state or phase, and
``<lock>`` locks the rows found where several may write at once. Rows that several writers meet are locked in the order
of their handles, first in ``relay_queue_open``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

from relay.message.queue_headers import PRIORITY_MAX
from relay.queue.states import Event, PublisherState, SubscriberState, sources
from relay.queue.stores.sql_schema import Phase
from relay.queue.stores.sql_session import Row

_NUMBERS: Final = {
    **{f"P_{state.name}": int(state) for state in PublisherState},
    **{f"S_{state.name}": int(state) for state in SubscriberState},
    **{phase.name: int(phase) for phase in Phase},
}
_MAY: Final = {
    f"MAY_{event.name}": ", ".join(map(str, sorted(set(sources(event, SubscriberState)) - {int(SubscriberState.GET)})))
    for event in (Event.START, Event.FINISH, Event.REFUSE, Event.FREE)
}
"""The states in which an event may happen. GET is never stored: a take passes it in one write."""
_LIST: Final = re.compile(r"in \{(\w+)\}")
_NO_LIST: Final = re.compile(r"not in \{(\w+)\}")
_PARAMETER: Final = re.compile(r"(?<!:):([a-z_]+)")
TEXT_LISTS: Final = frozenset({"ids", "held", "attempts"})
"""Lists of text; the others are of integers."""


@cache
def _numbered(text: str) -> str:
    return re.sub(r"\$(\w+)", lambda found: _MAY.get(found[1]) or str(_NUMBERS[found[1]]), text)


def sqlite_text(text: str, *, together: bool = False) -> str:
    """Return a statement as SQLite reads it: lists arrive as JSON, and nothing is locked apart from the file.

    With ``together`` the handles follow each other: they are read and written along the key, not one by one. What else
    is asked must not lead SQLite to another index: ``<among>`` says of a condition that only rows found are held to it.
    """
    text = _numbered(text).replace("<lock>", "").replace("<share>", "").replace("<among>", "+" if together else "")
    if together:
        text = text.replace("in {handles}", "between :first and :last")
    return _LIST.sub(r"in (select value from json_each(:\1))", text)


def postgresql_text(text: str) -> bytes:
    """Return a statement as psycopg reads it: lists arrive as array literals."""

    def of(found: re.Match[str]) -> str:
        return f"(%({found[1]})s::{'text' if found[1] in TEXT_LISTS else 'bigint'}[])"

    def any_of(found: re.Match[str]) -> str:
        return f"= any{of(found)}"

    def none_of(found: re.Match[str]) -> str:
        return f"<> all{of(found)}"

    listed = _LIST.sub(any_of, _NO_LIST.sub(none_of, _numbered(text))).replace("<lock>", "for update")
    listed = listed.replace("<share>", "for share").replace("<among>", "")
    return _PARAMETER.sub(r"%(\1)s", listed).encode()


class Columns(NamedTuple):
    """What a new row has: always, and only sometimes. To bind a null costs as much as to store a number."""

    table: str
    always: str
    sometimes: str
    absent: tuple[int | None, ...]

    @property
    def all(self) -> str:
        """Every column, as a statement names them."""
        return f"{self.always}, {self.sometimes}"

    def fitted(self, rows: Sequence[Row]) -> tuple[str, Sequence[Row]]:
        """Return the columns that these rows need, and the rows as wide as that."""
        width = len(self.always.split(","))
        if any(row[width:] != self.absent for row in rows):
            return self.all, rows
        return self.always, [row[:width] for row in rows]


MESSAGE: Final = Columns(
    "relay_queue_message",
    "handle, queue, put_at, revealed_at, priority, publisher, id, key, value, lane",
    "reveal_at, expires_at, attempt, headers, subject, parents",
    (None,) * 6,
)
OPEN: Final = Columns(
    "relay_queue_open", "handle, queue, state, publisher, id", "reveal_at, attempt", (None, None)
)
DELIVERY: Final = Columns(
    "relay_queue_delivery",
    "handle, sub, queue, grp, rank, phase, revealed, lane",
    "shape, turn, pos, expires_at",
    (0, 0, 0, None),
)


@cache
def insert(table: str, columns: str, rows: int = 1) -> str:
    """Return the statement that inserts so many rows with positional parameters."""
    marks = ", ".join("?" for _ in columns.split(","))
    values = ", ".join([f"({marks})"] * rows)
    return f"insert into {table} ({columns}) values {values}"  # noqa: S608 - both are constants of this module


@cache
def copy(table: str, columns: str) -> bytes:
    """Return PostgreSQL's statement that inserts many rows."""
    return f"copy {table} ({columns}) from stdin".encode()


# The queue, its subscribers and groups ------------------------------------------------------------------------------

ADD_QUEUE: Final = "insert into relay_queue (name, uuid) values (:name, :uuid) on conflict do nothing"
FIND_QUEUE: Final = "select id, uuid from relay_queue where name = :name"
ADD_SUBSCRIBER: Final = (
    "insert into relay_queue_subscriber (queue, name) values (:queue, :name) on conflict do nothing"
)
ADD_GROUP: Final = "insert into relay_queue_group (queue, name) values (:queue, :name) on conflict do nothing"
ADD_MEMBER: Final = "insert into relay_queue_member (sub, grp) values (:sub, :grp) on conflict do nothing"
FIND_SUBSCRIBERS: Final = "select name, id from relay_queue_subscriber where queue = :queue"
COUNT_SUBSCRIBERS: Final = "select count(*) from relay_queue_subscriber"
FIND_GROUPS: Final = "select name, id from relay_queue_group where queue = :queue"
# The row is shared by all who write, and locked by who retires the queue.
GUARD: Final = "select retired from relay_queue where id = :queue <share>"
RETIRE: Final = "update relay_queue set retired = 1 where id = :queue"
REINSTATE: Final = "update relay_queue set retired = 0 where id = :queue"

# What publishers do -------------------------------------------------------------------------------------------------

FIND_LIVE: Final = "select publisher, id, handle from relay_queue_open where queue = :queue and id in {ids}"
LOCK_OPEN: Final = """select handle, state, attempt, reveal_at from relay_queue_open
where queue = :queue and handle in {handles} order by handle <lock>"""
SHOW_TURN: Final = """update relay_queue_delivery as d set revealed = 1
where queue = :queue and handle in {handles} and state = 0 and revealed = 0 and ((shape & 2) = 0 or turn = (
    select min(e.turn) from relay_queue_delivery e
    where e.handle = d.handle and e.queue = d.queue and e.state <> $S_JOURNALLED
)) returning handle"""
SHOW_SOME: Final = """update relay_queue_delivery set revealed = 1
where queue = :queue and handle in {handles} and state = 0 and revealed = 0 and sub in {subs} returning handle"""
REVEAL_OPEN: Final = "update relay_queue_open set state = $P_REVEALED where queue = :queue and handle in {handles}"
REVEAL_MESSAGE: Final = (
    "update relay_queue_message set revealed_at = :now where queue = :queue and handle in {handles}"
)
# A member of a pool sees what its mates have; every other delivery is decided by its own columns.
# One that was woken stays so: a take that has woken it, and finds it neither ready nor waiting in its place, gives what is behind it.
REPHASE: Final = """update relay_queue_delivery as d set
    blocked = case when state = 0 and exists (
        select 1 from relay_queue_delivery t
        where t.handle = d.handle and t.grp = d.grp and t.sub <> d.sub and t.state in (1, 2, 3)
    ) then 1 else 0 end,
    phase = case
        when state in (1, 2, 3) then $TAKEN
        when coalesce((
            select o.state from relay_queue_open o where o.handle = d.handle and o.queue = d.queue
        ), 0) <> $P_REVEALED then case when state = $S_JOURNALLED then $OVER when exists (
            select 1 from relay_queue_open o
            where o.handle = d.handle and o.queue = d.queue and o.state = $P_PUT and o.attempt is not null
        ) then $PLACE else $HIDDEN end
        when state = 0 and exists (
            select 1 from relay_queue_delivery t
            where t.handle = d.handle and t.grp = d.grp and t.sub <> d.sub and t.state in (1, 2, 3)
        ) then $HIDDEN
        when (state = $S_JOURNALLED or revealed = 0) and exists (
            select 1 from relay_queue_delivery m
            where m.handle = d.handle and m.grp = d.grp and m.sub <> d.sub and m.state = 0 and m.revealed = 1
        ) then case when state = $S_JOURNALLED then $PASSED else $PLACE end
        when state = $S_JOURNALLED then $OVER
        when revealed = 0 then $HIDDEN
        when again_at is not null and phase <> $READY then $RETRY
        else $READY
    end
where queue = :queue and handle in {handles}"""
# What waits for a word only was put before it: whoever asks may not have heard of that word, or of the one that ended it.
FIND_DUE: Final = """select handle from relay_queue_open as o
where queue = :queue and state = $P_PUT and attempt is null and reveal_at is not null and reveal_at <= :now
    and publisher not in {held} and not exists (
        select 1 from relay_queue_open k where k.queue = o.queue and k.publisher = o.publisher and k.handle < o.handle
            and k.state = $P_PUT and k.attempt is null and k.reveal_at is null
    )
order by handle limit :limit"""
FORGET_OPEN: Final = "update relay_queue_open set attempt = null where queue = :queue and handle in {handles}"
FORGET_MESSAGE: Final = "update relay_queue_message set attempt = null where queue = :queue and handle in {handles}"
CLOSE: Final = "delete from relay_queue_open where queue = :queue and handle in {handles}"
WITHDRAW: Final = """update relay_queue_message set state = $P_UNAVAILABLE, unavailable_at = :now
where queue = :queue and handle in {handles}"""
DISCARD: Final = """update relay_queue_message set state = $P_DELETED, deleted_at = :now
where queue = :queue and handle in {handles}"""
EXPIRE_ALL: Final = """update relay_queue_delivery
set state = $S_JOURNALLED, phase = $OVER, blocked = 0, expired_at = :now, journalled_at = :now
where queue = :queue and handle in {handles} and state = 0 returning handle, shape"""
EXPIRE_ONE: Final = """update relay_queue_delivery
set state = $S_JOURNALLED, phase = $OVER, blocked = 0, expired_at = :now, journalled_at = :now
where sub = :sub and handle in {handles} and state = 0 returning handle, shape"""
EXPIRE_MATES: Final = """update relay_queue_delivery as d
set state = $S_JOURNALLED, phase = $OVER, blocked = 0, expired_at = :now, journalled_at = :now
where queue = :queue and handle in {handles} and state = 0 and grp = (
    select own.grp from relay_queue_delivery own where own.handle = d.handle and own.sub = :sub
)"""
FIND_EXPIRED: Final = """select d.handle, d.sub from relay_queue_delivery d
join relay_queue_open o on o.handle = d.handle and o.queue = d.queue and o.state = $P_REVEALED
where d.queue = :queue and d.phase < 4 and d.expires_at is not null and d.expires_at <= :now and d.state = 0
order by d.handle, d.pos limit :limit"""
# Who is DONE with it in its pool is so for all of the pool.
FIND_DELIVERY: Final = """select d.sub, d.state, (
    select max(t.done_at) from relay_queue_delivery t where t.handle = d.handle and t.queue = d.queue and t.grp = d.grp
), m.state, m.publisher, case when m.parents is null then m.id end from relay_queue_message m
join relay_queue_delivery d on d.handle = m.handle and d.queue = m.queue and d.sub = :sub
where m.queue = :queue and m.handle = :handle"""
REOPEN: Final = """insert into relay_queue_open (handle, queue, state, publisher, id)
values (:handle, :queue, $P_REVEALED, :publisher, :id) on conflict do nothing returning handle"""
NOT_OVER: Final = "update relay_queue_message set journalled_at = null where queue = :queue and handle = :handle"
REPUBLISH: Final = """update relay_queue_delivery
set state = 0, revealed = 1, failures = 0, again_at = null, cause = null, holder = null, get_at = null,
    fetched_at = null, in_process_at = null, done_at = null, unusable_at = null, expired_at = null, journalled_at = null
where handle = :handle and sub = :sub"""
PRIORITISE_MESSAGE: Final = """update relay_queue_message set priority = :priority
where queue = :queue and handle in {handles}"""
PRIORITISE_DELIVERY: Final = """update relay_queue_delivery set rank = :rank
where queue = :queue and handle in {handles}"""
EVER_TAKEN: Final = "select 1 from relay_queue_delivery where queue = :queue and handle = :handle and attempt > 0"
READ_CONTENT: Final = "select key, value, headers from relay_queue_message where queue = :queue and handle = :handle"
EDIT: Final = """update relay_queue_message set value = :value, headers = :headers
where queue = :queue and handle = :handle"""
JOURNAL: Final = """delete from relay_queue_open as o
where queue = :queue and handle in {handles} and state = $P_REVEALED and not exists (
    select 1 from relay_queue_delivery d
    where d.handle = o.handle and d.queue = o.queue and d.state <> $S_JOURNALLED
) returning handle"""
JOURNAL_ALONE: Final = """delete from relay_queue_open
where queue = :queue and handle in {handles} and state = $P_REVEALED"""
# The time when a message was journalled is its last delivery's, unless a clock went back between two of them.
JOURNALLED_AT: Final = """update relay_queue_message as m set journalled_at = :now
where queue = :queue and handle in {handles} and exists (
    select 1 from relay_queue_delivery d where d.handle = m.handle and d.queue = m.queue and d.journalled_at > :now
)"""
NEXT_TURN: Final = """update relay_queue_delivery as d set revealed = 1
where queue = :queue and handle in {handles} and state = 0 and revealed = 0 and turn = (
    select min(e.turn) from relay_queue_delivery e
    where e.handle = d.handle and e.queue = d.queue and e.state <> $S_JOURNALLED
) and turn > 0 returning handle"""

# What subscribers do ------------------------------------------------------------------------------------------------

LOCK_GROUPS: Final = """select id from relay_queue_group
where id in (select grp from relay_queue_member where sub = :sub) order by id for no key update"""
# Shared until the take is over: taken for dead in the middle of it, its worker would be forgotten with what it takes.
KNOWN_HOLDER: Final = "select 1 from relay_queue_holder where queue = :queue and id = :holder <share>"
LOCK_HOLDER: Final = "select 1 from relay_queue_holder where queue = :queue and id = :holder <lock>"
WAKE: Final = """update relay_queue_delivery set phase = $READY
where queue = :queue and phase > 0 and phase < 6 and phase = 1 and sub = :sub and (again_at <= :now or again_at > :latest)"""
HELD_LANES: Final = """select grp, lane, handle, holder from relay_queue_delivery
where queue = :queue and phase > 0 and phase < 6 and phase = 4 and lane is not null
    and grp in (select grp from relay_queue_member where sub = :sub)"""
COUNT_GROUPS: Final = "select count(*) from relay_queue_member where sub = :sub"
PLACES: Final = """select grp, lane, handle, rank, phase from relay_queue_delivery
where queue = :queue and phase > 0 and phase < 6 and phase in (1, 2, 5) and sub = :sub and lane is not null and (expires_at is null or expires_at > :now)"""
READY_PAGE: Final = """select handle, grp, lane, rank, again_at, expires_at, attempt, failures, shape
from relay_queue_delivery
where sub = :sub and phase = 0 and (rank, handle) > (:rank, :handle) and (lane is null or lane not in {shut})
    and (expires_at is null or expires_at > :now)
order by rank, handle limit :limit"""
RANKS: Final = """select
    (select rank from relay_queue_delivery where sub = :sub and phase = 0 order by rank, handle limit 1),
    (select rank from relay_queue_delivery where sub = :sub and phase = 0 order by rank desc, handle desc limit 1)"""
RANKS_WAITING: Final = f"""select level.rank from (
    {" union all ".join(f"select {rank} as rank" for rank in range(PRIORITY_MAX + 1))}
) level
where exists (select 1 from relay_queue_delivery where sub = :sub and phase = 0 and rank = level.rank)
order by level.rank"""  # noqa: S608 - constants of this module
READY_LEVEL: Final = """select grp, lane, handle from relay_queue_delivery
where sub = :sub and phase = 0 and rank = :rank and handle > :handle and lane is not null and lane not in {shut}
    and (expires_at is null or expires_at > :now)
order by handle limit :limit"""
READY_LANES: Final = """select handle, grp, lane, rank, again_at, expires_at, attempt, failures, shape
from relay_queue_delivery
where sub = :sub and phase = 0 and rank = :rank and handle > :handle and handle <= :last and lane in {lanes}
order by handle limit :limit"""
READY_ALONE: Final = """select handle, grp, lane, rank, again_at, expires_at, attempt, failures, shape
from relay_queue_delivery
where sub = :sub and phase = 0 and rank = :rank and handle > :handle and handle <= :last and lane is null
order by handle limit :limit"""
TAKE: Final = """update relay_queue_delivery
set state = $S_FETCHED, phase = $TAKEN, attempt = attempt + 1, holder = :holder, again_at = null,
    get_at = :now, fetched_at = :now
where sub = :sub and handle in {handles} and <among>phase = 0"""
TAKE_AND_START: Final = TAKE.replace("state = $S_FETCHED", "state = $S_IN_PROCESS, in_process_at = :now")
STILL_MINE: Final = """select handle from relay_queue_delivery
where sub = :sub and handle in {handles} and phase = 4 and holder = :holder"""
READ_TAKEN: Final = """select handle, publisher, id, key, value, headers, subject, lane, priority, put_at, parents
from relay_queue_message where queue = :queue and handle in {handles}"""
RETURNING: Final = " returning handle, shape"
_COUNTED: Final = " and shape = 0"


@cache
def counted(text: str) -> str:
    """Return a statement that writes states of those only who have a message for themselves, and returns none of them."""
    return text.removesuffix(RETURNING) + _COUNTED


START: Final = """update relay_queue_delivery set state = $S_IN_PROCESS, in_process_at = :now
where sub = :sub and handle in {handles} and attempt = :attempt and state in ($MAY_START) returning handle, shape"""
FINISH: Final = """update relay_queue_delivery
set state = $S_JOURNALLED, phase = $OVER, done_at = :now, journalled_at = :now, holder = null
where sub = :sub and handle in {handles} and attempt = :attempt and state in ($MAY_FINISH) returning handle, shape"""
REFUSE: Final = """update relay_queue_delivery
set state = $S_JOURNALLED, phase = $OVER, unusable_at = :now, journalled_at = :now, holder = null
where sub = :sub and handle in {handles} and attempt = :attempt and state in ($MAY_REFUSE) returning handle, shape"""
CAUSE: Final = "update relay_queue_delivery set cause = :cause where sub = :sub and handle in {handles}"
FREE: Final = """update relay_queue_delivery
set state = 0, holder = null, again_at = :again_at, failures = failures + :failed
where sub = :sub and handle in {handles} and attempt = :attempt and state in ($MAY_FREE) returning handle, shape"""

# Holders and outcomes -----------------------------------------------------------------------------------------------

ENTER: Final = """insert into relay_queue_holder (queue, id, subscriber, beats, deciding)
values (:queue, :id, :subscriber, :beats, :deciding)
on conflict (queue, id) do update
set subscriber = excluded.subscriber, beats = excluded.beats, deciding = excluded.deciding"""
BEAT: Final = "update relay_queue_holder set beats = beats + 1 where queue = :queue and id = :holder"
LEAVE: Final = "delete from relay_queue_holder where queue = :queue and id = :holder"
HOLDERS: Final = "select id, subscriber, beats, deciding from relay_queue_holder where queue = :queue order by id"
HELD: Final = """select handle, attempt from relay_queue_delivery
where queue = :queue and phase > 0 and phase < 6 and phase = 4 and holder = :holder order by handle"""
HOLDS: Final = """select handle, attempt, state, done_at, unusable_at from relay_queue_delivery
where sub = :sub and handle in {handles}"""
SETTLE: Final = """insert into relay_queue_attempt (queue, attempt, committed, at)
values (:queue, :attempt, :committed, :now) on conflict do nothing"""
OUTCOME: Final = "select committed from relay_queue_attempt where attempt = :attempt and queue = :queue"
FORGET: Final = """delete from relay_queue_attempt
where queue = :queue and committed = 1 and attempt in {attempts}"""
OUTCOMES: Final = """select attempt, committed from relay_queue_attempt
where attempt > :after and queue = :queue order by attempt limit :limit"""
CHILDREN: Final = """select handle, attempt from relay_queue_open
where queue = :queue and state = $P_PUT and attempt is not null and handle > :after order by handle limit :limit"""

# What anybody may see -----------------------------------------------------------------------------------------------

_STATE: Final = "case when m.state <> 0 then m.state when o.handle is null then $P_JOURNALLED else o.state end"
_JOURNALLED: Final = """coalesce(m.journalled_at, (
    select max(d.journalled_at) from relay_queue_delivery d where d.handle = m.handle and d.queue = m.queue
))"""
_VIEW: Final = f"""m.handle, m.publisher, m.id, {_STATE} as now_state, m.put_at, m.revealed_at, m.unavailable_at,
    {_JOURNALLED} as over_at, m.deleted_at, m.reveal_at, m.expires_at, m.priority, m.key,
    case when :value = 1 then m.value end, m.headers, m.subject, m.lane, m.parents, m.attempt"""
VIEW: Final = f"""select {_VIEW} from relay_queue_message m
left join relay_queue_open o on o.handle = m.handle and o.queue = m.queue
where m.queue = :queue and m.handle in {{handles}} order by m.handle"""  # noqa: S608 - constants of this module
VIEW_DELIVERIES: Final = """select d.handle, d.shape, s.name, g.name, d.state, d.get_at, d.fetched_at, d.in_process_at, d.done_at,
    d.unusable_at, d.expired_at, d.journalled_at, d.revealed, d.blocked, d.attempt, d.failures, d.holder, d.again_at,
    d.cause
from relay_queue_delivery d
join relay_queue_subscriber s on s.id = d.sub
join relay_queue_group g on g.id = d.grp
where d.queue = :queue and d.handle in {handles} order by d.handle, d.pos"""
_MATCH: Final = """(cast(:publisher as text) is null or m.publisher = :publisher) and (cast(:since as bigint) is null or m.put_at >= :since)
    and (cast(:until as bigint) is null or m.put_at < :until) and exists (
        select 1 from relay_queue_delivery d
        where d.handle = m.handle and d.queue = m.queue and (cast(:sub as bigint) is null or d.sub = :sub)
    ) and (cast(:substate as bigint) is null or exists (
        select 1 from relay_queue_delivery d
        where d.handle = m.handle and d.queue = m.queue and (cast(:sub as bigint) is null or d.sub = :sub) and d.state = :substate
    )) and (:unusable = 0 or exists (
        select 1 from relay_queue_delivery d
        where d.handle = m.handle and d.queue = m.queue and (cast(:sub as bigint) is null or d.sub = :sub) and d.unusable_at is not null
    ))"""
FIND_AMONG_LIVE: Final = f"""select m.handle from relay_queue_open o
join relay_queue_message m on m.handle = o.handle and m.queue = o.queue
where o.queue = :queue and o.handle > :after and o.state = :state and {_MATCH}
order by o.handle limit :limit"""  # noqa: S608 - constants of this module
FIND_AMONG_ALL: Final = f"""select m.handle from relay_queue_message m
left join relay_queue_open o on o.handle = m.handle and o.queue = m.queue
where m.queue = :queue and m.handle > :after and (cast(:state as bigint) is null or {_STATE} = :state) and {_MATCH}
order by m.handle limit :limit"""  # noqa: S608 - constants of this module
COUNT_LIVE: Final = "select state, count(*) from relay_queue_open where queue = :queue group by state"
COUNT_ENDED: Final = """select state, count(*) from relay_queue_message
where queue = :queue and state <> 0 group by state"""
COUNT_WAITING: Final = """select sub, count(*) from relay_queue_delivery
where sub in {subs} and phase = 0 group by sub"""
COUNT_HIDDEN: Final = """select sub, count(*) from relay_queue_delivery
where queue = :queue and phase > 0 and phase < 6 and phase in (1, 2, 3) and sub in {subs} group by sub"""
COUNT_TAKEN: Final = """select sub, state, count(*) from relay_queue_delivery
where queue = :queue and phase > 0 and phase < 6 and phase = 4 group by sub, state"""
COUNT_UNUSABLE: Final = """select sub, count(*) from relay_queue_delivery
where queue = :queue and unusable_at is not null group by sub"""

# The journal --------------------------------------------------------------------------------------------------------

# Counted by key for each message: as a join it may read all deliveries for each step of trimming, since hardly any is
# taken and the planner believes that none is.
_ENDED: Final = """from relay_queue_message m
where m.queue = :queue and 0 = (
    select count(*) from relay_queue_open o where o.handle = m.handle and o.queue = m.queue
) and 0 = (
    select count(*) from relay_queue_delivery t where t.handle = m.handle and t.queue = m.queue and t.state in (1, 2, 3)
)"""
_SIZE: Final = "coalesce(length(m.key), 0) + coalesce(length(m.value), 0)"
ENDED: Final = f"""select m.handle,
    case m.state when $P_UNAVAILABLE then m.unavailable_at when $P_DELETED then m.deleted_at else {_JOURNALLED} end,
    {_SIZE}, m.headers {_ENDED} order by m.handle limit :limit"""
HELD_OVER: Final = """select count(distinct t.handle) from relay_queue_delivery t
where t.queue = :queue and t.phase > 0 and t.phase < 6 and t.phase = 4 and not exists (
    select 1 from relay_queue_open o where o.handle = t.handle and o.queue = t.queue
)"""
SIZE_OVER: Final = f"select coalesce(sum({_SIZE}), 0) {_ENDED}"
HEADERS_OVER: Final = f"""select m.handle, m.headers {_ENDED} and m.headers is not null and m.handle > :after
order by m.handle limit :limit"""
# Locked by who trims and by who republishes, each before a statement of its own looks: one statement's snapshot does not
# see what a writer did to other tables while it waited for the writer's row.
LOCK_MESSAGES: Final = """select handle from relay_queue_message
where queue = :queue and handle in {handles} order by handle <lock>"""
TRIMMABLE: Final = f"select m.handle {_ENDED} and m.handle in {{handles}}"
TRIM_MESSAGES: Final = "delete from relay_queue_message where queue = :queue and handle in {handles}"
TRIM_DELIVERIES: Final = "delete from relay_queue_delivery where queue = :queue and handle in {handles}"

# SQLite only --------------------------------------------------------------------------------------------------------

OPEN_ARRIVED: Final = """insert into relay_queue_open (handle, queue, state, publisher, id, reveal_at, attempt)
select handle, queue, case when revealed_at is null then $P_PUT else $P_REVEALED end, publisher,
    case when parents is null then id end, reveal_at, attempt
from relay_queue_message where queue = :queue and handle in {handles}"""
_SEAT: Final = ("sub", "grp", "shape", "turn", "pos", "sees")


def seat_names(number: int) -> tuple[str, ...]:
    """Return the parameters of a seat in `deliveries_arrived`."""
    return tuple(f"{column}{number}" for column in _SEAT)


@cache
def deliveries_arrived(seats: int) -> str:
    """Return the statement that lets so many subscribers have messages that are there already."""
    values = ", ".join(f"({', '.join(f':{name}' for name in seat_names(number))})" for number in range(seats))
    return f"""with seat ({", ".join(_SEAT)}) as (values {values})
insert into relay_queue_delivery (handle, sub, queue, grp, lane, rank, phase, shape, turn, pos, revealed, expires_at)
select m.handle, s.sub, m.queue, s.grp, case when m.lane is not null then relay_lane_number(m.lane) end,
    {PRIORITY_MAX} - m.priority,
    case when m.revealed_at is not null and s.sees = 1 then $READY when m.attempt is null then $HIDDEN else $PLACE end,
    s.shape, s.turn, s.pos, m.revealed_at is not null and s.sees = 1, m.expires_at
from relay_queue_message m cross join seat s where m.queue = :queue and m.handle in {{handles}}"""  # noqa: S608 - constants


# PostgreSQL only ----------------------------------------------------------------------------------------------------

DRAW: Final = "select nextval('relay_queue_handle') from generate_series(1, cast(:limit as integer))"
RAISE: Final = "select setval('relay_queue_handle', greatest(nextval('relay_queue_handle'), :handle))"
TALLIED: Final = """select cast(coalesce(sum(waiting), 0) as bigint), cast(coalesce(sum(over), 0) as bigint), count(*),
    current_setting('transaction_read_only')
from relay_queue_tally where queue = :queue"""

# Moving to another store --------------------------------------------------------------------------------------------

RENAME: Final = "update relay_queue set uuid = :uuid where id = :queue"
ADOPT_OUTCOME: Final = """insert into relay_queue_attempt (queue, attempt, committed, at)
values (?, ?, ?, 0) on conflict do nothing"""
ADOPT_OPEN: Final = insert(OPEN.table, OPEN.all)
ADOPT_MESSAGE: Final = insert(
    MESSAGE.table, f"{MESSAGE.all}, state, unavailable_at, deleted_at, journalled_at"
)
ADOPT_DELIVERY: Final = insert(
    DELIVERY.table,
    "handle, sub, queue, grp, lane, rank, phase, shape, turn, pos, state, revealed, attempt, failures, get_at,"
    " fetched_at, in_process_at, done_at, unusable_at, expired_at, journalled_at, holder, again_at, cause, expires_at",
)
