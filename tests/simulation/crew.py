"""The workers of one simulated relay: composed by production's own assembly, started again when they end.

As the supervisor does, a worker that stops because a person must act stays down: that is noted and ends the run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb

from relay.config.model import RelayConfig
from relay.config.reading import read
from relay.message.errors import ConfigError, RelayError, Stopped, TwinDetected
from relay.run.assembly import assemble
from tests.simulation.scheduler import Crashed, Process, World

FOR_A_PERSON = (Stopped, TwinDetected, ConfigError)
Person = Callable[[RelayError], bool]
"""Whoever is told with what sentence a worker stopped: does it act on it? Then the worker is started again."""
RELAY, ROUTE, LOG, OUTPUT = "sim", "main", "log", "out"


def read_config(to: str = f'topic = "{OUTPUT}"', extra: str = "", resources: str = "") -> RelayConfig:
    """Read a configuration as production does, from text."""
    import tomllib  # noqa: PLC0415

    text = f"""
[relay]
name = "{RELAY}"
instance = "a"
state = "/nowhere/simulated"
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
"max.poll.interval.ms" = "60000"
{resources}
[routes.{ROUTE}]
from = ["{LOG}"]
start = "earliest"
to = {{ {to} }}
{extra}
"""
    config, faults = read(tomllib.loads(text), Path("/nowhere/relay.toml"), {})
    assert not faults, faults
    assert config is not None
    return config


class Crew:
    """Starts workers, and starts them again."""

    def __init__(self, world: World, config: RelayConfig) -> None:
        self.world = world
        self.config = config
        self.route = ROUTE
        self.person: Person = lambda _said: False
        self.running: dict[int, Process] = {}
        self.twinned: set[int] = set()
        self.stopped: list[str] = []
        self.uncaught: list[str] = []
        self.deaths = 0
        self.on_end: list[Callable[[], None]] = []
        self.restart_s = (0.1, 3.0)
        self._assemble = assemble

    def start(self, number: int) -> Process:
        """Start worker ``number`` as a new process."""
        process = self.world.process(f"worker-{number}")
        self.running[number] = process
        process.on_death.append(lambda: self._ended(number, process))
        self.world.spawn(process, "main", lambda: self._main(number, process))
        return process

    def rename(self, config: RelayConfig, route: str) -> None:
        """Stop every worker at once; they are started again with this route of this configuration."""
        self.config, self.route = config, route
        for process in list(self.world.processes):
            if process.alive and process.name.startswith("worker-"):
                process.kill()

    def _main(self, number: int, process: Process) -> None:
        try:
            self._assemble(self.config, self.route, number).run(None)
        except Crashed:
            raise
        except FOR_A_PERSON as final:
            if not (isinstance(final, TwinDetected) and self._goes_on(number, process)) and not self.person(final):
                self.stopped.append(f"{process.name} {type(final).__name__}: {final}")
            self.world.trace(process.name, "stopped", type(final).__name__, str(final)[:300])
        except RelayError as known:
            self.world.trace(process.name, "ended", type(known).__name__, str(known)[:300])
        except Exception as unknown:  # noqa: BLE001 - noted, and judged by the run
            where = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in extract_tb(unknown.__traceback__)[-3:]]
            self.uncaught.append(f"{process.name} {type(unknown).__name__}: {unknown} at {' '.join(where)}")
            self.world.trace(process.name, "uncaught", type(unknown).__name__, str(unknown)[:300])
            process.failure = unknown
        process.kill()

    def _goes_on(self, number: int, process: Process) -> bool:
        """Does another process under this name go on? Of two, the one that announced itself earlier stops."""
        if self.running.get(number) is process:
            named = (other for other in self.world.processes if other.alive and other.name == process.name)
            self.running[number] = next((other for other in named if other is not process), process)
        if self.running[number] is process and number in self.twinned:
            # The other one died after it had announced itself; its own supervisor starts it again.
            self.twinned.discard(number)
            self.start(number)
        return self.running[number] is not process

    def start_twin(self, number: int) -> None:
        """Start a second process under a living one's name."""
        self.twinned.add(number)
        self.start(number)

    def _ended(self, number: int, process: Process) -> None:
        self.deaths += 1
        for told in self.on_end:
            told()
        if self.running.get(number) is process and not self.stopped:
            self.world.at(self.world.rng.uniform(*self.restart_s), self._again, number, process)

    def _again(self, number: int, process: Process) -> None:
        if self.running.get(number) is process:
            self.start(number)
