"""Numbers in JSON that a double does not hold: the decoder makes one of them all the same, and drops digits in silence."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

DOUBLE_CHARACTERS: Final = 16
"""A number that is written in fewer is its double, unless that is nearly zero."""

LONG_NUMBER: Final = re.compile(rb"[0-9.]{16}|[0-9][eE]-[0-9]{3}")
"""In a value without one no number was cut: one of many digits, or one below the doubles that have all theirs."""


def is_cut(written: str, value: float) -> bool:
    """Is a decoded number another one than was written?"""
    try:
        return Decimal(written) != Decimal(repr(value))
    except ArithmeticError:
        return True  # an exponent of so many digits that Decimal takes none of it
