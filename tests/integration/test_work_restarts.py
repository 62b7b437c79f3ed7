"""Handlers whose process ends again and again: anyone sees it who reaches the brokers, not only who reads its supervisor's log."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from relay.cli.main import app
from relay.serve.metrics import metrics
from relay.serve.watching import RelayEyes
from tests.integration.work_site import lent_site, report

DYING = """
import os, signal
from relay import subscriber

@subscriber("orders", resource="shop")
def book(message, db):
    if message.taken.ticket.attempt <= 3:
        os.kill(os.getpid(), signal.SIGKILL)
    db.execute("insert into effect (lane, number, attempt) values ({p}, {p}, {p})", ("0", int(message.value), 0))
"""


@pytest.mark.slow
def test_handlers_that_were_started_again_and_again_are_seen_from_elsewhere(
    tmp_path: Path, kafka: str, kafka_admin: AdminClient
) -> None:
    with lent_site(tmp_path, kafka, kafka_admin, f"sqlite:///{tmp_path}/shop.db", extra="tries = 10") as site:
        site.put([1])
        report(site.supervised(site.app(DYING), "--until-idle", "3"))  # one that leaves at once may not have got to say it

        shown = CliRunner().invoke(app, ["status", str(site.path), "--json"])
        with RelayEyes(site.config) as eyes:
            seen = eyes.look()

    (note,) = json.loads(shown.stdout)["notes"]
    worker = f"{site.name}.orders/ledger.test.0"
    assert note.startswith(f"queue orders: {worker} of `relay work` for ledger, on ")
    assert "failed and was started again 3 times within an hour" in note
    assert "ago after: killed by SIGKILL" in note
    assert len(seen.notes) == 1
    assert _ageless(seen.notes[0]) == _ageless(note)
    (restarts,) = [one for one in metrics(seen, version="1", age_s=0.0, ready=True) if one.name == "relay_restarts"]
    assert [(one.labels, one.value) for one in restarts.samples] == [({"route": "orders/ledger", "worker": worker}, 3)]


def _ageless(note: str) -> str:
    """Return what two looks say alike: the second hand may have moved between them."""
    return re.sub(r"last \d+ s ago", "", note)
