"""Seeds that once failed, each with what it taught; they are run with every test run, so no fault comes back unseen.

A seed means what it meant only as long as nobody changes what is drawn from it; the lesson stays, and where it was a
defect of production there is a test of its own beside it.
"""

from __future__ import annotations

from typing import Final

SEEDS: Final[tuple[tuple[str, int, str], ...]] = (
    ("topic", 28, "two workers that fence each other in step did so for ever: the pause before a recovery is spread"),
    ("topic", 50, "the same with three workers"),
    ("topic", 1385, "a worker that stood still within recovery took another owner's news for a lost position"),
    ("topic", 4164, "the same, after a broker pause"),
    ("topic", 1949, "a dead process's announcement arrived after its successor's, which took it for a living twin"),
    ("topic", 3449, "the same, after a connection reset"),
    ("topic", 3854, "a late TxnOffsetCommit put the position back, and nothing moved it on: it is said once more"),
    ("topic", 1524, "a late TxnOffsetCommit put the position back for a moment: harmless, the index knows better"),
    ("topic", 300, "another worker's open transaction hid the outputs of a torn one from its settlement: delivered twice"),
    ("topic", 546, "the same"),
    ("topic", 640, "the same, after three deaths"),
    ("topic", 1436, "the same"),
    ("topic", 10316, "the broker refuses a transaction's first write that follows a refused one; the simulator did not"),
    ("topic", 16674, "a late JoinGroup takes the place of the living one: the member waits for the rebalance timeout"),
    ("route", 2117, "batches of repeats widened the batches after a refused record, so that it never came alone"),
    ("route", 2137, "the same"),
    ("route", 261, "a backup restored under a running worker has its epoch: the position jumped over what was lost"),
    ("route", 284, "the same"),
    ("capture", 6979, "the client sends nothing past batches whose connection broke; the simulator did"),
)
