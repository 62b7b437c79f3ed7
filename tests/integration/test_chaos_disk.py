"""A table route whose SQLite file, inbox and checkpoints share a disk that runs full: nothing is lost, torn or repeated."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relay.audit.verify import verify
from relay.chaos.disks import Disk, NotPermitted
from relay.config.loading import load
from relay.run.restarts import ExitCode
from tests.routes import Route, Worker, ce, publish, wait_for

pytestmark = [pytest.mark.slow]

PARTITIONS = 2
FOR_A_PERSON = (ExitCode.CONFIG, ExitCode.PERSON, ExitCode.TWIN)
MANY = 4000
TO = '{ table = "ledger", resource = "shop", columns = { id = "ce:id", n = "json:/n" } }'


class FileRoute(Route):
    """A route to the table ``ledger`` of an SQLite file; a worker that ended is started again, as a supervisor does."""

    database: Path
    worker: Worker

    def tend(self) -> None:
        if (code := self.worker.poll()) is not None:
            assert code not in FOR_A_PERSON, self.said()
            self.worker = self.start()

    def numbers(self) -> list[int]:
        connection = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=10)
        try:
            return [n for (n,) in connection.execute("select n from ledger order by rowid")]
        finally:
            connection.close()

    def capture(self, first: int, count: int) -> None:
        numbers = range(first, first + count)
        publish(self.kafka, self.log, [(n % PARTITIONS, ce(f"/{n % PARTITIONS}", f"m-{n}"), b'{"n": %d}' % n) for n in numbers])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    try:
        made = Disk.mounted(tmp_path / "image.ext4", tmp_path / "place", 32 << 20)
    except NotPermitted as reason:
        pytest.skip(f"not permitted here: {reason}")
    yield made
    made.close()


@pytest.fixture
def route(tmp_path: Path, disk: Disk, kafka: str, make_topic: Callable[..., str]) -> Iterator[FileRoute]:
    made = FileRoute(tmp_path, kafka, make_topic(PARTITIONS), TO)
    made.database = disk.place / "shop.db"
    text = made.path.read_text().replace(f'state = "{tmp_path}/', f'state = "{disk.place}/')
    made.path.write_text(f'{text}\n[resources.shop]\nurl = "sqlite:///{made.database}"\n')
    # No unique column on purpose: a second effect would stand there for everyone to see.
    connection = sqlite3.connect(made.database)
    connection.execute("create table ledger (id text not null, n integer not null)")
    connection.close()
    made.migrate()
    yield made
    made.stop()


def test_a_cursor_whose_disk_runs_full_takes_nothing_and_goes_on_when_there_is_room(route: FileRoute, disk: Disk) -> None:
    route.capture(0, 100)
    route.worker = route.start()
    wait_for(lambda: len(route.numbers()) == 100, what="the first messages")

    disk.fill()
    route.capture(100, MANY)

    def has_met_it() -> bool:
        route.tend()
        return "SQLITE_FULL" in route.said() or "No space left" in route.said() or "disk is full" in route.said()

    wait_for(has_met_it, what="a worker that meets the full disk")
    assert len(route.numbers()) < 100 + MANY
    disk.free()

    def is_done() -> bool:
        route.tend()
        return len(route.numbers()) >= 100 + MANY

    wait_for(is_done, what="all messages")
    route.stop()
    assert sorted(route.numbers()) == list(range(100 + MANY))
    for partition in range(PARTITIONS):
        mine = [n for n in route.numbers() if n % PARTITIONS == partition]
        assert mine == sorted(mine)
    (report,) = verify(load(route.path), ("main",))
    assert report.ok, report.sentence
