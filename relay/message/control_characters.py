"""Characters by which a text gives a terminal orders, or stands on more than its line (CWE-117, CWE-150)."""

from __future__ import annotations

import codecs
import re
from typing import Final

# Loaded when it is used first, which must not fail a log line of a process that can open no further file.
codecs.lookup("unicode_escape")

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def escaped(text: str) -> str:
    """Return a text with its control characters, and those that turn its direction, written as escapes."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)
