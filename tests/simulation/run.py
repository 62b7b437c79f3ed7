"""Many seeds on all cores: ``python -m tests.simulation.run --seeds N --first K``; one seed: ``--seed S --trace``.

A seed replays exactly: the same commit, the same seed, the same trace. Sets of names are iterated in the order of
their hashes, so the process starts itself again with a fixed hash seed.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

SEED_SECONDS_MAX: Final = 30
SHOWN_LINES: Final = 120
COLLECT_EVERY: Final = 20


def main(arguments: list[str] | None = None) -> int:
    """Run seeds; 1 if one of them broke a promise."""
    options = _options(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.run", *(arguments or sys.argv[1:])])
    sys.unraisablehook = _unraisable
    if options.seed is not None:
        return _one(options)
    return _many(options)


def _unraisable(one: sys.UnraisableHookArgs) -> None:
    """A killed process runs no finalizers: here they meet the end of their world, and stop at it."""
    from tests.simulation.scheduler import Crashed  # noqa: PLC0415

    if not isinstance(one.exc_value, Crashed):
        sys.__unraisablehook__(one)


def _one(options: argparse.Namespace) -> int:
    outcome = _run(options.seed, options.kind, tracing=True)
    lines = outcome.lines if options.trace else outcome.lines[-SHOWN_LINES:]
    for line in lines:
        print(*line)
    _show(outcome)
    return 1 if outcome.problems else 0


def _many(options: argparse.Namespace) -> int:
    started = time.monotonic()
    numbers = range(options.first, options.first + options.seeds)
    failed: list[int] = []
    done = 0
    for seed, problems in _outcomes(list(numbers), options):
        done += 1
        if problems:
            failed.append(seed)
            print(f"\nseed {seed}: {problems[0]}" + (f" and {len(problems) - 1} more" if len(problems) > 1 else ""))
        if sys.stderr.isatty() or done % 500 == 0:
            pace = done / (time.monotonic() - started)
            print(f"\r{done} of {len(numbers)} seeds, {len(failed)} failed, {pace:.0f} a second", end="", file=sys.stderr)
        if len(failed) >= options.most:
            break
    seconds = time.monotonic() - started
    print(f"\n{done} seeds from {options.first} in {seconds:.1f} s ({done / seconds:.0f} a second), {len(failed)} failed")
    if failed:
        first = min(failed)
        print(f"first failure, at commit {_commit()}:")
        print(f"  python -m tests.simulation.run --seed {first} --kind {options.kind} --trace")
        _one(argparse.Namespace(seed=first, kind=options.kind, trace=False))
    return 1 if failed else 0


def _outcomes(numbers: list[int], options: argparse.Namespace) -> Iterator[tuple[int, list[str]]]:
    jobs = [(seed, options.kind) for seed in numbers]
    if options.processes == 1:
        yield from map(_job, jobs)
        return
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        yield from pool.imap_unordered(_job, jobs, chunksize=10)


def _job(job: tuple[int, str]) -> tuple[int, list[str]]:
    seed, kind = job
    return seed, _run(seed, kind, tracing=False).problems


def _run(seed: int, kind: str, *, tracing: bool) -> Any:
    """Run one seed without the garbage collector: when it strikes must not matter."""
    from tests.simulation.kinds import run  # noqa: PLC0415
    from tests.simulation.trial import Outcome  # noqa: PLC0415

    def alarm(*_: object) -> None:
        raise TimeoutError(f"no end within {SEED_SECONDS_MAX} s of computing")

    gc.disable()
    # The processor's time, not the clock's: a machine that is paused or busy elsewhere is no endless loop.
    signal.signal(signal.SIGPROF, alarm)
    signal.setitimer(signal.ITIMER_PROF, SEED_SECONDS_MAX)
    try:
        return run(seed, kind, tracing=tracing)
    except Exception as broken:
        if tracing:
            raise
        return Outcome(seed, problems=[f"simulator: {type(broken).__name__}: {broken}"])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if seed % COLLECT_EVERY == 0:
            gc.collect()


def _show(outcome: Any) -> None:
    print(
        f"seed {outcome.seed}: {outcome.messages} messages, {outcome.deaths} deaths, {outcome.seconds:.1f} s of virtual "
        f"time, {outcome.steps} events, trace {outcome.digest}"
    )
    print(f"faults: {', '.join(outcome.faults) or 'none'}")
    for problem in outcome.problems[:20]:
        print(f"ANOMALY {problem}")
    if len(outcome.problems) > 20:
        print(f"and {len(outcome.problems) - 20} more")


def _commit() -> str:
    found = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=None, help="run only this one")
    parser.add_argument("--trace", action="store_true", help="show the whole trace of --seed")
    parser.add_argument("--kind", default="any", help="any, or one kind of run")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--most", type=int, default=10, help="stop after so many failures")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
