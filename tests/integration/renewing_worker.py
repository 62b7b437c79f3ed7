"""A worker whose index moves to disk soon, and looks every half second for what it may drop.

Run as ``python -m tests.integration.renewing_worker`` in place of ``relay.run.process``.
"""

from __future__ import annotations

import os
from typing import Any

from relay.run import assembly, process, views

if __name__ == "__main__":
    own: Any = assembly
    own.INDEX_ENTRIES_IN_MEMORY = 100
    own = views
    own.SAVE_PERIOD_S, own.RENEW_PERIOD_S = 0.1, 0.5
    os._exit(process.main())
