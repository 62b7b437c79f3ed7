"""Services of a test's own, in a directory of their own: settings that others must not meet, brokers that may be killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from relay.local.kafka import SMALL, BrokerSettings
from relay.local.services import LocalServices
from relay.message.errors import ConfigError, Unreachable


@contextmanager
def own_brokers(name: str, settings: BrokerSettings = SMALL, **wanted: Any) -> Iterator[LocalServices]:
    """Start brokers as `LocalServices.up` is told to, without a database; where none can be, skip, or fail in CI."""
    directory = Path(tempfile.mkdtemp(prefix=f"relay-{name}-"))
    try:
        try:
            local = LocalServices.up(directory, postgres=False, settings=settings, **wanted)
        except (ConfigError, Unreachable) as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"no local broker: {error}")
        yield local
    finally:
        started = LocalServices.find(directory)
        if started is not None:
            started.down()
        shutil.rmtree(directory, ignore_errors=True)
