"""The audit job over as many messages as one asks for: every planted fault is found, within the time that was promised."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from relay.audit.verify import COUNTS, MORE_COUNTS
from relay.local import spark
from tests.audit_load import PER_CAPTURE, Load, digest_of
from tests.integration.audit_site import PARTITIONS, Site

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1800)]
MESSAGES = int(os.environ.get("RELAY_TEST_AUDIT_MESSAGES", "100000"))
"""Ten million, by the environment, for the whole proof: it takes about ten minutes and 5 GB of disk."""
PROMISED_S = 300
COMPARED = 1_000_000
"""Up to so many messages `relay verify` is asked too; it keeps them in memory."""
FAULTS = {
    "lost": 2, "duplicates": 1, "reordered": 1, "phantoms": 1, "altered": 1, "dead_letters": 1, "skipped": 1,
    "conflicts": 0, "unseen": 0, "in_doubt": 0, "repeats": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Audited:
    """One run of the job: its report of the route, and what it took."""

    code: int
    route: dict[str, Any]
    elapsed_s: float
    processor_s: float


def run(site: Site) -> Audited:
    job = spark.submission("audit", [str(site.config.path), "--json"])
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(job.command, env=dict(job.environment), capture_output=True, text=True, timeout=1500)
    elapsed, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    print(done.stderr[-3000:])
    route = json.loads(done.stdout)["routes"]["main"]
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Audited(done.returncode, route, elapsed, spent)


def test_every_fault_among_many_messages_is_found_in_time(make_site: Callable[..., Site]) -> None:
    site = make_site()
    each = max(MESSAGES // PARTITIONS // PER_CAPTURE, 10) * PER_CAPTURE
    load = Load(site.kafka, site.log, site.output, site.monitor, PARTITIONS, each)
    load.write()
    site.dead(digest_of(0, load.faults.dead))
    site.stand_at(*[load.log_end] * PARTITIONS)

    audited = run(site)

    route = audited.route
    print(f"{route['captured']:,} messages in {audited.elapsed_s:.0f} s, {audited.processor_s:.0f} s of processor time")
    assert audited.code == 1
    assert route["captured"] == each * PARTITIONS
    assert route["delivered"] == each * PARTITIONS - len(load.faults.without_effect)
    assert {name: route[name] for name in FAULTS} == FAULTS
    found = {(one["kind"], one["id"]) for one in route["offenders"]}
    faults = load.faults
    named = {("lost", faults.forgotten), ("lost", faults.entered), ("duplicates", faults.twice),
             ("reordered", faults.late), ("altered", faults.altered)}  # fmt: skip
    assert {(kind, f"m{number}") for kind, number in named} <= found
    # Of few messages the start of Spark is most, and that takes what other tests leave it.
    assert (audited.elapsed_s if each * PARTITIONS > COMPARED else audited.processor_s) < PROMISED_S
    if each * PARTITIONS <= COMPARED:
        verified = site.audit()
        assert {name: route[name] for name in (*COUNTS, *MORE_COUNTS)} == {
            name: getattr(verified.findings, name) for name in (*COUNTS, *MORE_COUNTS)
        }
        assert found == {(one.kind, one.id) for one in verified.offences}
