"""A process that is kept, since its start takes long, and answers questions: a line of JSON each, one after the other."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


class KeptProcess:
    """A module of the tests that calls ``answer`` when it is run. Ask from any thread."""

    def __init__(self, module: str, words: Sequence[str], env: Mapping[str, str]) -> None:
        self._asking = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *words], cwd=Path(__file__).parents[1], env={**env},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, question: Any) -> Any:
        """Return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._asking:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        """Close its input and wait until it has ended."""
        with self._process:
            pass


def answer(reply: Callable[[Any], object]) -> None:
    """Answer each question until there are no more; what ``reply`` prints while it has another output is no answer."""
    answers = sys.stdout
    for line in sys.stdin:
        answers.write(json.dumps(reply(json.loads(line))) + "\n")
        answers.flush()


def outcome(main: Callable[[list[str]], object], arguments: list[str]) -> tuple[object, str, str]:
    """Run a program's ``main`` in this process; return its exit code and what it wrote to both its outputs."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as wrong:
            code = wrong.code
    return code, out.getvalue(), err.getvalue()
