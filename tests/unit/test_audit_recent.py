"""What `relay verify` may take for remembered: parts of the monitor have lost more than others, and an output's marks tell its age."""

from __future__ import annotations

from relay.audit import ledger
from relay.audit.evidence import Evidence
from relay.audit.memory import Memory, is_whole, recent
from relay.message.envelope import OUT_N
from relay.message.identity import digest
from relay.message.record import LogPartition
from relay.monitor.entries import Page, Proof
from tests.unit.audited import LOG, MORE, marks

INSTANCE = b"i" * 16
DIGEST = digest(b"/a", b"1")


def test_a_log_or_a_monitor_is_whole_only_if_each_of_its_partitions_is() -> None:
    one, two, monitor = LogPartition(LOG, 0), LogPartition(MORE, 0), LogPartition("monitor", 0)

    assert not is_whole({one: 0, two: 1}, {}, {monitor: (1, 2)})
    assert not is_whole({one: 1}, {}, {monitor: (0, 2), monitor._replace(partition=1): (1, 2)})
    assert is_whole({one: 0, two: 1}, {two: 1}, {monitor: (1, 2)})
    assert is_whole({one: 0, two: 1}, {}, {monitor: (0, 2)})


def test_what_is_remembered_is_younger_than_all_that_any_part_of_the_monitor_has_lost() -> None:
    evidence, parts = Evidence(), [LogPartition("monitor", number) for number in range(3)]
    for partition, (n, at) in enumerate(((1, 100), (2, 200), (3, 300))):
        evidence.take(partition, Page("w", INSTANCE, n, Proof.PROVEN, None, LOG, 0, DIGEST, bytes(8), [0], bytes(1)), at=at)

    assert recent(evidence, {parts[0]: (1, 2), parts[1]: (1, 2), parts[2]: (0, 2)}, 1) == {INSTANCE: 3}
    assert recent(evidence, {parts[0]: (1, 2), parts[1]: (0, 2)}, 1) == {INSTANCE: 2}


def test_an_output_whose_number_is_none_tells_no_age() -> None:
    memory, place = Memory({INSTANCE: 2}), LogPartition("out", 0)
    for number in (b"1", b"", b"two", b"9" * 5000):
        memory.take(place, dict(marks(INSTANCE, 1)) | {OUT_N: number})
        assert memory.lacks(DIGEST, ledger.Place(*place, 0))
    memory.take(place, dict(marks(INSTANCE, 2)))
    assert not memory.lacks(DIGEST, ledger.Place(*place, 0))
