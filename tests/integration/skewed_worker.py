"""A worker whose wall clock follows a file; with DURATIONS=wall it measures durations on that clock too, which is wrong.

Run as ``python -m tests.integration.skewed_worker`` in place of ``relay.run.process``, the file's name in CLOCK.
"""

from __future__ import annotations

import os
from pathlib import Path

from relay.chaos.skewed import skew
from relay.run.process import main
from relay.world import clock

if __name__ == "__main__":
    skew(Path(os.environ["CLOCK"]))
    if os.environ.get("DURATIONS") == "wall":
        clock.monotonic = lambda: clock.wall_ms() / 1000
    os._exit(main())
