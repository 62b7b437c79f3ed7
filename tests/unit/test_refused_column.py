"""The column that refuses a value of a COPY, as servers name it in the language of their messages."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.pq import DiagnosticField

from relay.delivery.table.postgresql.failures import judge
from relay.delivery.table.row_search import RowFault
from tests.contracts.table_databases import plan

CONTEXTS = [
    'COPY ledger, line 3, column total: "canary"',
    "COPY ledger, Zeile 3, Spalte total: »canary«",
    "COPY ledger, ligne 3, colonne total : « canary »",
    "COPY ledger, línea 3, columna total: «canary»",
    'COPY ledger, строка 3, столбец total: "canary"',
    'COPY ledger, 行 3, 列 total: "canary"',
]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("state", [b"22P02", b"42704"])
def test_it_condemns_the_row_and_is_named(context: str, state: bytes) -> None:
    said = {DiagnosticField.SQLSTATE: state, DiagnosticField.CONTEXT: context.encode()}
    error = psycopg.errors.lookup(state.decode())("canary", info=said)  # type: ignore[arg-type]
    fault = judge(error, plan())
    assert isinstance(fault, RowFault)
    assert str(fault.rejection).endswith(", column total")


def test_what_follows_a_whole_line_is_no_column() -> None:
    said = {DiagnosticField.SQLSTATE: b"22P04", DiagnosticField.CONTEXT: b'COPY ledger, line 3: "1, 2 total"'}
    fault = judge(psycopg.errors.lookup("22P04")("canary", info=said), plan())  # type: ignore[arg-type]
    assert isinstance(fault, RowFault)
    assert "column" not in str(fault.rejection)
