"""Seeds at which the search first found something in production, with what it taught.

What a seed means shifts with whatever is drawn from it, so each stands here with the removal that takes the mended
guard away again: with it the seed must fail, without it the seed must be clean. The commits name the first finds.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Lesson(NamedTuple):
    """A seed of the kind "topic" and the removal under which it fails."""

    seed: int
    removal: str
    taught: str


LESSONS: Final = (
    Lesson(
        8415,
        "vanished_left",
        "a commit whose marker neither output nor monitor got was lost, its worker dead before it saw its seal, once a late "
        "request had timed out there (at ea1aef7)",
    ),
)
"""Found as well: another worker's open transaction hid the outputs of a torn one from its settlement, and they were delivered
twice (seeds 130, 300, 546, 640 and 1436 at d7f7e34, the removal ``outputs_to_stable_end``): recoveries wait for what is open
first, and none of some 900 seeds meets it (``tests/unit/test_recovery_beside_others.py``). A dead process's announcement that arrives after its successor's made that one stop as a twin (seeds
1949 and 3449 at 2a2c61c, ``tests/unit/test_twins.py``); a late TxnOffsetCommit put a position back for good (seed 3854
at 652c1b3, ``tests/unit/test_worker_events.py``); a backup restored under running workers went unnoticed where others had
brought the row numbers up again (seed 2005648 at 8934a1e, the removal ``older_copy_trusted``).

Two workers that fence each other in step did so for ever (seeds 28, 47 and 50 at 5f5c56a, ``test_worker_events.py``), and
one that stood still within recovery took another owner's news for a lost position and stopped for a person (seeds 1385
and 4164 at 2a2c61c, ``tests/unit/test_recovery_beside_others.py``). A recovery reads the monitor once by now, and hears of
another assignment at once: none of 2,000 seeds meets either.
What hung in the monitor was ended twice and never again, although the markers of both rounds had been left out, and the
worker waited for a restart (54915 at 98489dc, ``tests/unit/test_recovery_beside_others.py``).
What a former route's worker had left hanging in the output hid all that the route of a new name wrote (78868 at 98489dc): that is
for a person to end, whom a warning tells, and who does so in the simulator by now.
What ends hanging offsets was left out itself, and the next commit under that id moved a position past what was not delivered, until the
partition's next recovery settled it (970318, ``tests/unit/test_recovery_beside_others.py``).
With commits whose marker is left out among the faults: what hung in the output of a route that had nothing more to deliver stayed
hidden (1146 before ``own_hang_awaited`` was a guard), and what a torn transaction had entered below a position that a person had moved
became dead letters (502 of ``log``).
Two workers recorded a first start at once, and compaction kept the second's word, past what
retention had taken meanwhile (4464 at ecbed77, ``tests/unit/test_starts.py``).

Found in queues (``test_queue_simulation.py``, ``tests/unit/test_work_dispatch.py``): after a lost answer a message that had
ended and was not written yet ran again behind the next of its lane (15); a child accepted late was overtaken (16); hands
were woken without end while a suspect waited to run alone (35); a living worker kept for ever what a dead peer had
aborted and not given away (4017031); what a dead worker had done was finished past a message whose deciding store did not
answer, and the next group in order had the later one first (9009693 at ca01190, ``tests/unit/test_queue_recovery.py``).

Found in routes into queues (``putting``): a member of a pool that refused a message went on with what it had of its lane,
while another member could get that one still (114 of ``putting`` at 7c7e541, ``tests/unit/test_work_dispatch.py``).

Found in the simulator itself: after a pause of a broker a new request overtook those of its own connection that waited,
and the broker called a number out of sequence a repeat, which the client takes for success; a committed capture was not
in the log (seeds 1002173 and 1015033 at 8f84ad5, ``test_network.py``); an offset commit of an epoch that was over put a
position back (1056945 and 1060456). No broker does either. The audit read a handler's effects inside an open transaction,
which its stale ticket would have taken back (5096361), and held a claim for valid that a restored backup had undone
(5073933, at e5f0662). The person was blamed for obeying what a worker had said of a topic created again since (7040392)."""

CLEARED: Final = (5096361, 7040392)
"""Seeds at which the audit alone was wrong: they must stay clean."""
