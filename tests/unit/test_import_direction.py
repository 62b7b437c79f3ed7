"""The shape of the code, read from its syntax: who may import whom, who reads time, who starts threads, how long."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import relay

ROOT: Final = Path(relay.__file__).parent
LAYERS: Final = (
    {"world"},
    {"message"},
    {"monitor", "log", "capture", "transfer", "resources", "kafka", "queue"},
    {"delivery"},
    {"config"},
    {"run"},
    {"setup"},
    {"control"},
    {"work", "spark", "jobs", "cli", "audit", "bench", "chaos", "demo", "local", "serve"},
)
"""Each layer imports itself and the ones before it."""
REPLACED: Final = {
    "relay.world.clock": {"time"},
    "relay.world.schedule": {"threading", "queue", "_thread"},
    "relay.world.randomness": {"random", "secrets", "uuid"},
}
"""What a simulation replaces as a whole, and the modules that are hidden behind it."""
DECIDING: Final = set().union(*LAYERS[:-1]) - {"kafka"}
DRAWS: Final = {
    "relay.run.supervisor": "a process of its own that no simulation runs",
}
EXCEPTIONS: Final = {
    ("relay.capture.capture", "relay.config.loading"): "Capture.open is the composition root of the library",
}
MODULE_LINES_MAX: Final = 500
FUNCTION_LINES_MAX: Final = 70
CALENDARS: Final = {"datetime", "date", "dt"}


def modules() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py"))


def outside() -> list[Path]:
    """Jobs and tests, which are read as often."""
    return sorted(path for folder in ("spark", "tests") for path in (ROOT.parent / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def nodes(path: Path, *words: str) -> Iterator[ast.AST]:
    """Yield what a module's syntax consists of, if its text has one of the words: without them it is not worth the reading."""
    text = path.read_text("utf-8")
    if not words or any(word in text for word in words):
        yield from ast.walk(ast.parse(text))


@cache
def imports(path: Path) -> list[tuple[str, int]]:
    """Return every imported module with its line, wherever in the module the import stands."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            module = node.module or ""
            inner = [f"{module}.{alias.name}" for alias in node.names]
            known = [name for name in inner if (ROOT.parent / name.replace(".", "/")).with_suffix(".py").exists()]
            for name in known or [module]:
                yield name, node.lineno


def layer(module: str) -> int | None:
    parts = module.split(".")
    if len(parts) < 2:
        return None
    return next((n for n, names in enumerate(LAYERS) if parts[1] in names), None)


def by_type_checking_only(path: Path) -> set[int]:
    """Lines inside ``if TYPE_CHECKING``: they import nothing when the program runs."""
    lines: set[int] = set()
    for node in nodes(path, "TYPE_CHECKING"):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            lines |= {inner.lineno for inner in ast.walk(node) if hasattr(inner, "lineno")}
    return lines


def test_every_folder_has_its_layer() -> None:
    named = set().union(*LAYERS)
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.glob("*.py"))}

    assert folders <= named, f"say where {sorted(folders - named)} belongs"


def outward(path: Path) -> Iterator[str]:
    """Yield each import of a module from further out."""
    here = name_of(path)
    mine = layer(here)
    free = by_type_checking_only(path)
    for module, line in imports(path):
        theirs = layer(module)
        if theirs is None or mine is None or line in free or (here, module) in EXCEPTIONS:
            continue
        if theirs > mine:
            yield f"{here}:{line} imports {module}, which lies further out"


def test_imports_go_from_the_world_and_the_message_outwards() -> None:
    assert [fault for path in modules() for fault in outward(path)] == []


def test_what_all_routes_share_knows_none_of_them() -> None:
    kinds = ("relay.delivery.topic.", "relay.delivery.table.", "relay.delivery.queue.")
    shared = (path for path in modules() if path.parent == ROOT / "delivery")

    assert [f"{name_of(path)}: {module}" for path in shared for module, _ in imports(path) if module.startswith(kinds)] == []


def test_only_the_kafka_folder_knows_the_kafka_client() -> None:
    found = {
        f"{name_of(path)}:{line}"
        for path in modules()
        if not path.is_relative_to(ROOT / "kafka")
        for module, line in imports(path)
        if module.split(".")[0] == "confluent_kafka"
    }

    assert found == set()


def reads_time(path: Path) -> Iterator[int]:
    """Yield the lines that read a clock: whatever imports ``time``, and ``datetime.now`` and its like."""
    yield from (line for module, line in imports(path) if module.split(".")[0] == "time")
    for node in nodes(path, "now", "today"):
        if isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today"):
            yield from [node.lineno] if isinstance(node.value, ast.Name) and node.value.id in CALENDARS else []


def test_only_the_clock_reads_time() -> None:
    found = {
        f"{name_of(path)}:{line}" for path in modules() if name_of(path) != "relay.world.clock" for line in reads_time(path)
    }

    assert found == set()


def test_only_the_schedule_starts_threads() -> None:
    starters = ("Thread", "Timer", "ThreadPoolExecutor", "start_new_thread")
    found = {
        f"{name_of(path)}:{node.lineno}"
        for path in modules()
        if name_of(path) != "relay.world.schedule"
        for node in nodes(path, *starters)
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Attribute) and node.func.attr in starters)
            or (isinstance(node.func, ast.Name) and node.func.id in starters)
        )
    }

    assert found == set()


def test_clock_threads_and_randomness_come_from_one_place_each() -> None:
    found = {
        f"{name_of(path)}:{line} imports {module}"
        for path in modules()
        if path.relative_to(ROOT).parts[0] in DECIDING and name_of(path) not in {*REPLACED, *DRAWS}
        for module, line in imports(path)
        if any(module.split(".")[0] in hidden for hidden in REPLACED.values())
    }

    assert found == set()


def test_what_a_simulation_replaces_is_taken_as_a_module() -> None:
    found = {
        f"{name_of(path)}:{node.lineno}"
        for path in modules()
        for node in nodes(path, *REPLACED)
        if isinstance(node, ast.ImportFrom) and node.module in REPLACED
    }

    assert found == set()


def long(path: Path) -> Iterator[str]:
    """Yield a module, and each function of it, that has too many lines; one with fewer than a function may have has none."""
    lines = len(path.read_text("utf-8").splitlines())
    if lines > MODULE_LINES_MAX:
        yield f"{name_of(path)} has {lines} lines"
    for node in nodes(path) if lines > FUNCTION_LINES_MAX else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield f"{name_of(path)}.{node.name} has {length} lines"


def test_modules_and_functions_stay_short() -> None:
    assert [fault for path in (*modules(), *outside()) for fault in long(path)] == []
