"""PostgreSQL's errors sorted by what a delivery must do: blame a row, try again, or stop for a person."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

import psycopg

from relay.delivery.table.row_search import RowFault
from relay.delivery.table.verdicts import TablePlan
from relay.message.errors import MessageRejected, RelayError, Retriable, Stopped
from relay.resources.postgresql_states import is_servers, takes_no_writes

# Classes of SQLSTATE (PostgreSQL documentation, appendix A) whose cause is the row: its data, a constraint that it
# breaks, a trigger that raises, a check option, two rows of one key, an index entry or value that is too large, a
# function or trigger that ends without a result for it or, in whatever language, raises.
_ROW_CLASSES: Final = frozenset({"20", "21", "22", "23", "27", "2F", "38", "39", "44", "54", "P0"})
_TABLE_STATES: Final = frozenset({
    "2200H",  # sequence_generator_limit_exceeded: all rows are refused until somebody gives it more numbers
    "39P01", "39P02", "39P03",  # a trigger or a function is no such thing, whatever the row
})
"""Of such a class, and yet the table's."""
_DATA_CLASS: Final = "22"
_TYPE_STATES: Final = frozenset({"42804", "42846", "42883"})
"""An own statement meets a value whose type it does not take (datatype mismatch, no cast, no such operator)."""
_SYNTAX_STATES: Final = frozenset({"42601", "42602"})
"""Of a value: tsvector, tsquery, jsonpath, hstore and ltree speak of syntax, regclass of an invalid name."""
_NAME_STATES: Final = frozenset({"42704", "42725", "42883", "42P01"})
"""Of a value: what regtype, regproc, regclass and the like do not find."""
_DOUBTFUL_STATES: Final = _SYNTAX_STATES | _NAME_STATES | {
    "0A000", "3F000", "42622", "42804", "42809", "42846",
}
"""What functions and casts say of a value that they do not take, and the server of a statement: without a place, either."""
_ROW_CHECK: Final = "ExecWithCheckOptions"
"""Where the server raises that a policy refuses a new row, under the state of every missing right."""
_NO_PARTITION: Final = "ExecFindPartition"
"""Where the server finds no partition for a row, under the state of a check that fails."""
_RAISED: Final = "exec_stmt_raise"
"""Where the server raises what a trigger in PL/pgSQL says of a row, under whatever state its author chose."""
_COPY_COLUMN: Final = re.compile(r"^COPY [^,]+, \w+ \d+, \w+ ([A-Za-z_][A-Za-z0-9_]{0,62})\b", re.MULTILINE)
"""With the server's words for line and column: the language of its messages is not for us to choose."""


def judge(error: psycopg.Error, plan: TablePlan, *, doubts: bool = False) -> RelayError | RowFault:
    """Return what to raise for an error after which the transaction is known to have had no effect.

    ``doubts``: it may be a row's doing, so what would mean the statement or a value of a row is a fault with a doubt.

    No sentence holds a value of a message or an address: PostgreSQL's own text does where a value is at fault, so it is
    used for faults of the statement only.
    """
    state = error.sqlstate
    if state is None and isinstance(error, psycopg.DataError):
        # The client's own refusal before anything is sent: PostgreSQL's text has no zero character.
        sentence = f"{plan.where} cannot take one of the row's values (DataError), such as a text with a zero character"
        return RowFault(MessageRejected("apply", "value_refused", sentence))
    if state is None or is_servers(state):
        return Retriable(f"{plan.where}: {_word(error)}; nothing was written, and it is tried again")
    if takes_no_writes(error):
        return Retriable(f"{plan.where}: {error.diag.message_primary}; nothing was written, and it is tried again")
    if _refuses_row(error, state, plan):
        where = _place(error, plan)
        sentence = f"{plan.where} refuses the row: {state} ({_word(error)}){where}"
        return RowFault(MessageRejected("apply", state, sentence, error.diag.constraint_name))
    # In these states the text quotes either the statement, and points there, or a value.
    says_value = state in _DOUBTFUL_STATES and not error.diag.statement_position
    says_statement = (state[:2] == "42" and not says_value) or _refuses_constant(error, state, plan)
    reason = error.diag.message_primary if says_statement else None
    stopped = Stopped(
        f"route {plan.route!r}: {plan.where} cannot be written: {state} ({_word(error)})"
        f"{': ' + reason if reason else ''}; correct the table, its rights or the route, and start again"
    )
    if doubts and says_value and not error.diag.internal_position:
        sentence = f"{plan.where} refuses the row: {state} ({_word(error)}), in a function or a cast on one of its values"
        return RowFault(MessageRejected("apply", state, sentence), doubt=stopped, is_plain=_is_plain(error))
    return stopped


def _is_plain(error: psycopg.Error) -> bool:
    """Was the error raised by the row's own casts, generated columns and checks, and by no trigger's or other function?"""
    context = error.diag.context or ""
    return not context or (context.startswith("COPY ") and "\n" not in context)


def _refuses_row(error: psycopg.Error, state: str, plan: TablePlan) -> bool:
    if error.diag.source_function == _RAISED:
        return True
    if state in _TABLE_STATES or _refuses_constant(error, state, plan):
        return False
    return state[:2] in _ROW_CLASSES or (plan.mode == "sql" and state in _TYPE_STATES) or _refuses_value(error, plan)


def _refuses_constant(error: psycopg.Error, state: str, plan: TablePlan) -> bool:
    """Is it a constant in an own statement that its type refuses? A value of a row has no place in the statement."""
    return plan.mode == "sql" and state[:2] == _DATA_CLASS and error.diag.statement_position is not None


def _refuses_value(error: psycopg.Error, plan: TablePlan) -> bool:
    """Does a type or a policy refuse a value in words that else mean the statement? A fault of that has a place in it.

    Not so in COPY, which names the column of a value instead; its own syntax is ours, and right.
    """
    diag = error.diag
    if _COPY_COLUMN.search(diag.context or "") or diag.source_function == _ROW_CHECK:
        return True
    if diag.statement_position or diag.internal_query or diag.context or plan.mode == "sql":
        # An own statement of two commands is refused without a place, too: there each is in doubt.
        return False
    return error.sqlstate in (_SYNTAX_STATES if plan.mode == "insert" else _SYNTAX_STATES | _NAME_STATES)


def _word(error: psycopg.Error) -> str:
    """Return the condition's name, as in the documentation but in one word."""
    return type(error).__name__ if error.sqlstate else "the connection was lost"


def _place(error: psycopg.Error, plan: TablePlan) -> str:
    diag = error.diag
    if diag.constraint_name:
        return f", constraint {diag.constraint_name}"
    if diag.source_function == _NO_PARTITION:
        return ", no partition is for it; make that one, and redrive the message"
    found = _COPY_COLUMN.search(diag.context or "")
    column = diag.column_name or (found[1] if found else None)
    # A column's name is said only if the route names it: the context is text that a value might imitate.
    return f", column {column}" if column in plan.columns else ""


def stop_if_statement_is_wrong(plan: TablePlan, found: Collection[MessageRejected], tried: int) -> None:
    """Raise Stopped if no row goes through: a type that an own statement does not take is else the row's fault."""
    states = _TYPE_STATES if plan.mode == "sql" else frozenset()
    wrong = next((one for one in found if one.code in states), None)
    if wrong is not None and len(found) == tried:
        raise Stopped(
            f"route {plan.route!r}: {wrong}, and so are all {tried} of its batch; correct the statement (a cast such as "
            "%(total)s::text::int), the table or the publisher, and start again"
        )
