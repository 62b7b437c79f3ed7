"""What is said, and what is not believed of a message, a file or a database, while the process has no memory or file left."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import fastavro
import orjson
import pytest
from confluent_kafka import KafkaError, KafkaException
from rocksdict import Rdict
from structlog.testing import capture_logs

from relay.config.loading import load
from relay.delivery.table.sqlite import effects as sqlite_effects
from relay.message.avro_values import read_record
from relay.message.errors import ConfigError, MessageRejected, Retriable, Unreachable
from relay.message.limits import limit_met
from relay.monitor import rows_on_disk
from relay.monitor.rows_on_disk import DiskRows, IndexAtLimitError
from relay.run import process
from relay.work.dispatch import Outcome
from relay.work.loading import load_handler
from relay.work.mark import Mark
from tests.unit.configurations import BASE, ROUTES
from tests.unit.index_on_disk import PLACE, doubled, offsets, on_disk
from tests.unit.test_checkpoint import page
from tests.unit.test_intake import Fake, intake
from tests.unit.test_work_calls import ended, queue

NO_FILE = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
NO_PROCESS = BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
NO_THREAD = RuntimeError("can't start new thread")
NO_CLIENT = KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE, "Failed to create producer: Failed to create thread: Cannot allocate memory (12)"))
NO_LIBRARY = ImportError("libssl.so.3: cannot open shared object file: Too many open files")

SHORT_OF_MEMORY = """
import resource
import sqlite3
from pathlib import Path
from relay.delivery.table.mapping import decode_json
from relay.message.identity import rules

value = b'{"id": "a", "x": "' + b"y" * 3_000_000 + b'"}'
identity = rules(["json:/id"])[0]
assert decode_json(value)["id"] == "a" and identity({}, b"orders", value)
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 20), resource.RLIM_INFINITY))
for ask in (lambda: decode_json(value), lambda: identity({}, b"orders", value)):
    try:
        print(ask())
    except Exception as raised:
        print(type(raised).__name__)
"""


def test_limits_are_told_from_other_errors() -> None:
    for error in (MemoryError(), NO_FILE, NO_PROCESS, NO_THREAD, NO_LIBRARY, NO_CLIENT):
        assert "this process, or its machine, is at one of its limits" in (limit_met(error) or "")
    for other in (OSError(errno.ENOENT, "x"), RuntimeError("x"), ImportError("x"), ValueError("Not enough memory")):
        assert limit_met(other) is None


def test_json_for_which_there_is_no_memory_is_no_dead_letter_and_keeps_its_identity() -> None:
    """The JSON reader calls it no JSON. Its next identity rule would have a repeat pass for a new message."""
    said = subprocess.run([sys.executable, "-c", SHORT_OF_MEMORY], capture_output=True, text=True, check=False)

    assert said.stdout.split() == ["MemoryError", "MemoryError"], said.stderr


def test_avro_for_which_there_is_no_memory_is_no_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(fastavro, "schemaless_reader", none_left)

    with pytest.raises(MemoryError):
        read_record(b"\x02", 0, fastavro.parse_schema({"type": "int"}), None)


def test_headers_for_which_there_is_no_memory_are_no_dead_letter() -> None:
    """The client raises the same as for a name that is not UTF-8, which is the cause of that."""

    class Short(Fake):
        def headers(self) -> NoReturn:
            raise SystemError("returned a result with an exception set") from MemoryError()

    with pytest.raises(MemoryError):
        intake().derive(Short(0, []), "orders", 0)


@pytest.mark.parametrize("name", ["schema.avsc", "secret", "relay.toml"])
def test_a_file_that_cannot_be_opened_now_is_no_fault_of_the_configuration(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2 of one worker that is started again would end all of them, for good under systemd."""
    avro = '[routes.to-avro]\nfrom = ["orders"]\nto = { table = "t", resource = "shop", schema = "schema.avsc", columns = { a = "avro:a" } }\n'
    path = tmp_path / "relay.toml"
    path.write_text(f'{BASE}{ROUTES}{avro}[resources.other]\nurl = "${{file:secret}}"\n')
    (tmp_path / "schema.avsc").write_text('{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}')
    (tmp_path / "secret").write_text("hush")
    read = Path.read_text

    def short(self: Path, *given: Any, **named: Any) -> str:
        if self.name == name:
            raise NO_FILE
        return read(self, *given, **named)

    monkeypatch.setattr(Path, "read_text", short)

    with pytest.raises(Unreachable, match="Too many open files"):
        load(path)


def test_an_application_that_cannot_be_loaded_now_is_not_wrong(tmp_path: Path) -> None:
    path = tmp_path / "application_at_a_limit.py"
    path.write_text("import errno\nraise OSError(errno.EMFILE, 'no file')\n")

    with pytest.raises(Unreachable):
        load_handler(str(path), "credit")
    path.write_text("raise OSError('another')\n")
    with pytest.raises(ConfigError):
        load_handler(str(path), "credit")


@pytest.mark.parametrize(("error", "outcome"), [(NO_FILE, Outcome.AWAY), (NO_THREAD, Outcome.AWAY), (MemoryError(), Outcome.FAILED), (NO_PROCESS, Outcome.FAILED)])
def test_a_message_whose_handler_finds_no_file_or_thread_waits_and_uses_up_no_try(error: Exception, outcome: Outcome) -> None:
    def handle(_: object) -> NoReturn:
        raise error

    with capture_logs() as said:
        end = ended(queue("q", "s"), "s", handle)

    assert end.outcome is outcome
    assert [line["event"] for line in said] == ["messages wait" if outcome is Outcome.AWAY else "handler failed"]
    assert ("at one of its limits" in str(said[0]["causes"])) is (outcome is Outcome.AWAY)


@pytest.mark.parametrize(("error", "code"), [(NO_FILE, 3), (NO_THREAD, 3), (NO_LIBRARY, 3), (NO_CLIENT, 3), (MemoryError(), 1)])
def test_a_worker_that_ends_at_a_limit_says_so_in_its_last_words(
    error: Exception, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "relay.toml").write_text(BASE + ROUTES)

    def assemble(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(process, "assemble", assemble)
    monkeypatch.setattr(process, "gc", SimpleNamespace(freeze=lambda: None, set_threshold=lambda *_: None))
    monkeypatch.setattr(process, "memory", SimpleNamespace(keep=lambda: None))
    monkeypatch.setattr(process, "logging", SimpleNamespace(setup=lambda: None))
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)

    assert process.main([str(tmp_path / "relay.toml"), "--route", "to-ledger", "--worker", "0"]) == code
    assert "at one of its limits (`ulimit -a`)" in capsys.readouterr().err.splitlines()[-1]


def test_a_file_that_sqlite_cannot_open_now_stops_no_route() -> None:
    """A journal, or a place to sort, that it opens in the midst of a statement."""
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorname = "SQLITE_CANTOPEN"

    assert isinstance(sqlite_effects.judge(error, SimpleNamespace(where="table 't'", route="r")), Retriable)  # type: ignore[arg-type]


@contextmanager
def at_most(limit: int, of: int = resource.RLIMIT_NOFILE) -> Iterator[None]:
    before = resource.getrlimit(of)
    resource.setrlimit(of, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(of, before)


def test_an_index_on_disk_that_finds_no_file_to_open_stays_whole_and_stops_no_route(tmp_path: Path) -> None:
    """It was thrown away as one that is damaged, or taken for one that another process has."""
    index = on_disk(tmp_path)
    index.add_page(page(range(10)))
    assert index.renew(0, 100)
    index.add_page(page(range(10, 20)))
    index.close()
    said: list[str] = []

    for files in range(3, 200):
        try:
            with at_most(files):
                DiskRows(tmp_path / PLACE).close()
            break
        except (Unreachable, IndexAtLimitError) as short:
            said.append(str(short))

    assert said
    assert all("Too many open files; this process" in words for words in said)
    index = on_disk(tmp_path)
    assert offsets(index, range(20)) == doubled(range(20))
    index.close()


def test_an_index_whose_generations_cannot_be_listed_is_not_opened_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that lies in them would pass for new."""
    index = on_disk(tmp_path)
    index.add_page(page(range(10)))
    assert index.renew(0, 100)
    index.add_page(page(range(10, 20)))
    index.close()

    class Short:
        @staticmethod
        def list_cf(path: str) -> NoReturn:
            raise Exception(f"IO error: While open a file for sequentially reading: {path}/CURRENT: Too many open files")  # noqa: TRY002 - as the library

        def __new__(cls, *given: Any) -> Any:
            return Rdict(*given)

    with monkeypatch.context() as patched:
        patched.setattr(rows_on_disk, "Rdict", Short)
        with pytest.raises(Unreachable):
            DiskRows(tmp_path / PLACE)
    index = on_disk(tmp_path)
    assert offsets(index, range(20)) == doubled(range(20))
    index.close()


def test_a_failure_at_a_limit_leaves_no_mark_on_an_index(tmp_path: Path) -> None:
    rows = DiskRows(tmp_path / PLACE)

    with pytest.raises(IndexAtLimitError), rows._guarded():
        raise Exception("IO error: While open a file for appending: x.sst: Too many open files")  # noqa: TRY002 - as the library
    rows.close()

    DiskRows(tmp_path / PLACE).close()


def test_an_index_on_a_disk_that_fills_stays_whole_and_is_closed_with_a_sentence(tmp_path: Path) -> None:
    """It was thrown away as one that is damaged; a worker that closed it ended with a traceback."""
    index = on_disk(tmp_path)
    index.add_page(page(range(20)))
    index.close()
    index = on_disk(tmp_path)
    index.add_page(page(range(20, 40)))

    with at_most(1 << 10, resource.RLIMIT_FSIZE):  # a disk that is full, as far as a process without rights can have one
        for _ in range(2):
            with pytest.raises(IndexAtLimitError, match="File too large; make room there"):
                index.add_page(page(range(40, 80)))
        with pytest.raises(IndexAtLimitError, match="File too large; make room there"):
            index.close()
    shutil.copytree(tmp_path / PLACE, tmp_path / "as the next process finds it" / PLACE)
    found = on_disk(tmp_path / "as the next process finds it")
    assert offsets(found, range(80)) == doubled(range(40))
    found.close()


def test_an_index_that_is_opened_on_a_full_disk_is_not_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database's own words for it were not known."""

    class Full:
        list_cf = Rdict.list_cf

        def __new__(cls, path: str, *_: Any) -> Any:
            why = "No space left on device"
            raise Exception(f"IO error: {why}: While appending to file: {path}/MANIFEST-000019: {why}")  # noqa: TRY002 - as the library

    index = on_disk(tmp_path)
    index.add_page(page(range(20)))
    index.close()
    with monkeypatch.context() as patched:
        patched.setattr(rows_on_disk, "Rdict", Full)
        with pytest.raises(Unreachable, match="make room there"):
            DiskRows(tmp_path / PLACE)

    index = on_disk(tmp_path)
    assert offsets(index, range(20)) == doubled(range(20))
    index.close()


def test_a_worker_of_handlers_says_that_it_may_not_write_its_state(tmp_path: Path) -> None:
    """It ended with a traceback."""
    (tmp_path / "work").touch()

    with pytest.raises(Unreachable, match=r"\[relay\] state: .* cannot be written \(Not a directory\)"):
        Mark(tmp_path / "work" / "credit", b"holder")


def test_a_log_line_needs_no_file(tmp_path: Path) -> None:
    """The first one with a control character had the interpreter load a codec, and failed whoever wrote it."""
    script = (
        "import resource, structlog\n"
        "from relay.run.logging import setup\n"
        "setup(as_json=True)\n"
        "structlog.get_logger().info('first')\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
        "try:\n"
        "    open('x')\n"
        "except OSError as error:\n"
        "    structlog.get_logger().error('a\\x1b\\nb', reason=error, key=b'\\xff', exc_info=True)\n"
    )

    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False)

    assert said.returncode == 0, said.stderr
    assert orjson.loads(said.stderr.splitlines()[1])["event"] == "a\\x1b\\nb"


def test_a_message_that_is_none_still_dies() -> None:
    with pytest.raises(MessageRejected):
        read_record(b"", 0, fastavro.parse_schema({"type": "int"}), None)


def test_services_for_whose_ports_no_file_is_left_are_in_no_wrong_directory(tmp_path: Path) -> None:
    up = ["dev", "up", "--brokers", "9", "--dir", str(tmp_path / "services")]
    command = ["/bin/sh", "-c", 'ulimit -n 24; exec "$@"', "sh", sys.executable, "-m", "relay.cli.main", *up]

    done = subprocess.run(command, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (3, f"relay dev: {limit_met(NO_FILE)}\n")
