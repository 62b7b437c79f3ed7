"""What a function may return instead of having done its work: nobody would learn how that ends."""

from __future__ import annotations

import inspect
from concurrent.futures import Future
from types import AsyncGeneratorType, GeneratorType
from typing import Final

_UNFINISHED: Final = (GeneratorType, AsyncGeneratorType, Future)


def is_unfinished(returned: object) -> bool:
    """Is it an awaitable, a generator or a future, finished or not? How one ended was not looked at."""
    return returned is not None and (isinstance(returned, _UNFINISHED) or inspect.isawaitable(returned))
