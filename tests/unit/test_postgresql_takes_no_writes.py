"""A PostgreSQL that takes no writes before somebody mends it: its state is the one of a value that is too long."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.pq import DiagnosticField

from relay.delivery.table.postgresql.failures import judge
from relay.delivery.table.row_search import RowFault
from relay.message.errors import Retriable
from relay.queue.port import Refused, StoreAway
from relay.queue.stores.postgresql import _judged
from relay.resources.postgresql_states import is_away, refuses_writes
from tests.contracts.table_databases import plan

SENTENCE = "the server's own sentence"


def limit(raised_in: str) -> psycopg.Error:
    said = {
        DiagnosticField.SQLSTATE: b"54000",
        DiagnosticField.MESSAGE_PRIMARY: SENTENCE.encode(),
        DiagnosticField.SOURCE_FUNCTION: raised_in.encode(),
    }
    return psycopg.errors.ProgramLimitExceeded(SENTENCE, info=said)  # type: ignore[arg-type]


@pytest.mark.parametrize("raised_in", ["GetNewTransactionId", "GetNewMultiXactId", "PreCommit_Notify"])
def test_it_is_tried_again_and_no_row_or_message_is_at_fault(raised_in: str) -> None:
    error = limit(raised_in)
    failure = judge(error, plan(), doubts=True)
    assert isinstance(failure, Retriable)
    assert SENTENCE in str(failure)
    with pytest.raises(StoreAway, match=SENTENCE), _judged(committing=False):
        raise error
    assert is_away(error, closed=False)


@pytest.mark.parametrize("raised_in", ["GetNewTransactionId", "PreCommit_Notify"])
def test_at_a_commit_it_is_no_refusal_of_what_was_written(raised_in: str) -> None:
    assert not refuses_writes(limit(raised_in), closed=False)


def test_what_is_too_long_is_at_fault_as_before() -> None:
    error = limit("index_form_tuple")
    assert isinstance(judge(error, plan(), doubts=True), RowFault)
    with pytest.raises(Refused), _judged(committing=False):
        raise error
    assert not is_away(error, closed=False)
    assert refuses_writes(error, closed=False)
