"""Interrupts what captures at each moment at which the interpreter might run a signal's handler, one after the other."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import relay

ROOT: Final = Path(relay.__file__).parent
WATCHED: Final = {str(path) for folder in ("capture", "resources") for path in (ROOT / folder).glob("*.py")}
BEHIND_THESE: Final = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD")}
"""The interpreter looks for signals where a function begins, behind a call, and where a loop turns; with no regard to
whose function was called, which is more than it does."""


class Interrupt(BaseException):
    """What a signal's handler raises."""


class Interrupting:
    """Raises at the ``at``-th moment at which the interpreter might run a signal's handler in capture or resource."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.where = ""
        self._last: dict[FrameType, int] = {}

    def run(self, do: Callable[[], None]) -> bool:
        """Was it interrupted?"""
        sys.settrace(self._entered)
        try:
            do()
        except Interrupt:
            return True
        except TypeError as error:
            # Seen once in thousands of runs: CPython 3.11 says this in place of what a trace function raised.
            if self.left > 0 or str(error) != "'traceback' object is not callable":
                raise
            return True
        finally:
            sys.settrace(None)
            self._last.clear()
        return False

    def _entered(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in WATCHED:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._moment(frame)
        return self._at_instruction

    def _at_instruction(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "opcode":
            last = self._last.get(frame)
            self._last[frame] = frame.f_code.co_code[frame.f_lasti]
            if last in BEHIND_THESE:
                self._moment(frame)
        return self._at_instruction

    def _moment(self, frame: FrameType) -> None:
        self.left -= 1
        if self.left == 0:
            self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} ({frame.f_code.co_name})"
            raise Interrupt
