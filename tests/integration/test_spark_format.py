"""Spark itself, on a real broker: whatever dies, each row of the source is downstream exactly once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from relay.capture.decisions import batch_unit
from relay.local.spark import Submission, connector_jars, submission
from relay.spark.deciding import abort_unit, commit_unit
from relay.spark.options import WriteOptions
from relay.spark.writing import Appended, append_rows, attempts_of
from relay.world import crash
from tests.conftest import MakeRoute, MakeTopic
from tests.integration.crash_site import assert_audited
from tests.integration.warm_spark import brief
from tests.kept_process import KeptProcess
from tests.routes import Route, TopicRoute, ce, publish, read_all, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
LINES = 50
FILES = 4
STEPS = (
    "spark.appending", "spark.appended", "spark.deciding", "decide.fenced", "decide.written", "decide.committed",
    "spark.decided", "spark.marked",
)  # fmt: skip
BATCHES = int(os.environ.get("RELAY_TEST_BATCHES", "12"))
"""Fifty, by the environment, for the whole proof: it takes about ten minutes."""
PLAIN = "to_json(struct(value as n)) as value"
RANDOM = "to_json(struct(value as n, rand() as chance)) as value"
"""Each run of a batch makes other values of it."""


def driver_environment() -> dict[str, str]:
    return {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


class Driver:
    """A Spark driver in a process of its own."""

    def __init__(self, what: str, env: Mapping[str, str] | None = None, **arguments: Any) -> None:
        command = [sys.executable, "-m", "tests.spark_driver", json.dumps({"what": what, **arguments})]
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the driver
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.said, text=True, env={**driver_environment(), **(env or {})}
        )
        self.java = 0

    def end(self) -> None:
        """Kill it if it still runs."""
        if not self.ended:
            self.kill()

    def facts(self) -> Iterator[dict[str, Any]]:
        """Yield what it tells, until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("fact "):
                fact = json.loads(line.removeprefix("fact "))
                self.java = fact.get("java", self.java)
                if "ready" not in fact:
                    yield fact
        if self._process.wait(60) > 0:
            self.said.seek(0)
            print(self.said.read()[-3000:])

    def await_ready(self) -> None:
        """Return when its JVM runs."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("fact "):
                self.java = json.loads(line.removeprefix("fact "))["java"]
                return
        raise AssertionError("the driver ended before it began")

    @property
    def ended(self) -> bool:
        """Is it over?"""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End the driver, JVM and Python, as a power failure would; its Python workers may go on for a moment."""
        for pid in (self.java, self._process.pid):
            if pid:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        self._process.wait(30)


Drive = Callable[..., Driver]


@pytest.fixture
def drive() -> Iterator[Drive]:
    """Start drivers that are ended with the test."""
    started: list[Driver] = []

    def start(*what: Any, **arguments: Any) -> Driver:
        started.append(Driver(*what, **arguments))
        return started[-1]

    yield start
    for driver in started:
        driver.end()


Ask = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Return ``ask(what, **arguments)``: what a driver tells that is kept for all that lose none."""
    jars = [str(jar) for jar in connector_jars()]
    kept = KeptProcess("tests.spark_driver", [json.dumps({"what": "keep", "jars": jars})], driver_environment())

    def ask(what: str, **arguments: Any) -> list[dict[str, Any]]:
        facts, said = kept.ask({"what": what, **arguments})
        print(said)
        return list(facts)

    yield ask
    kept.end()


@pytest.fixture
def route(make_route: MakeRoute) -> TopicRoute:
    return make_route(partitions=3)


def write_files(folder: Path, count: int) -> list[str]:
    folder.mkdir()
    lines = [f"{number}" for number in range(count * LINES)]
    for number in range(count):
        (folder / f"{number:04}.txt").write_text("\n".join(lines[number * LINES : (number + 1) * LINES]) + "\n")
    return lines


def options(route: Route) -> dict[str, str]:
    return {"relay": route.name, "topic": route.log, "kafka.bootstrap.servers": route.kafka}


def numbers(route: TopicRoute) -> Counter[str]:
    return Counter(json.loads(record.value())["n"] for record in route.outputs())


@pytest.mark.nightly  # the tests below kill it at the two steps that matter most
def test_killed_at_each_step_each_row_counts_once(route: TopicRoute, drive: Drive, tmp_path: Path) -> None:
    lines = write_files(tmp_path / "in", FILES)
    driver = drive(
        "stream", steps=[*STEPS, "spark.appended:2", ""], options=options(route), columns=[RANDOM],
        files=str(tmp_path / "in"), checkpoint=str(tmp_path / "checkpoint"),
    )  # fmt: skip
    facts = list(driver.facts())

    assert [fact["step"] for fact in facts if "failed" in fact and fact["step"] != "spark.appended:2"] == list(STEPS)
    assert facts[-1] == {"step": "", "done": True}
    assert len(read_all(route.kafka, route.log, 3)) > len(lines), "nothing was written twice: nothing was killed"
    assert route.finish(until_idle_s=3) == 0
    assert numbers(route) == Counter(lines)


def test_a_batch_write_counts_once_and_what_is_missing_is_a_sentence(route: TopicRoute, ask: Ask, tmp_path: Path) -> None:
    lines = write_files(tmp_path / "in", 2)
    good, named = ["value as key", RANDOM], {**options(route), "unit": "load"}
    refused = [
        ({"columns": good, "options": options(route)}, 'option("unit", NAME) is missing'),
        ({"columns": good, "options": {**named, "topic": "absent"}}, "topic 'absent' does not exist"),
        ({"columns": good, "options": {**named, "relay": "nobody"}}, "there is no relay 'nobody'"),
        ({"columns": ["value", "1 as total"], "options": named}, "column total: not one that is written"),
        ({"columns": ["1.5 as value"], "options": named}, "cast it to binary or string"),
    ]
    another = {"columns": good, "options": {**named, "topic": route.out}}
    writes = [*(write for write, _ in refused), *({"columns": good, "options": named},) * 2, another]

    facts = ask("batch", writes=writes, files=str(tmp_path / "in"))

    for (_, sentence), fact in zip(refused, facts, strict=False):
        assert sentence in fact["failed"]
    assert facts[len(refused) : -1] == [{"done": True}, {"done": True}]
    assert "unit load was committed by an earlier write" in facts[-1]["failed"]
    assert route.finish(until_idle_s=3) == 0
    assert numbers(route) == Counter(lines)


@pytest.mark.parametrize(
    "has_id", [pytest.param(True, id="id column"), pytest.param(False, id="numbered", marks=pytest.mark.nightly)]
)
def test_capture_batch_killed_after_its_rows_counts_them_once(
    route: TopicRoute, drive: Drive, ask: Ask, tmp_path: Path, has_id: bool
) -> None:
    lines = write_files(tmp_path / "in", 3)
    arguments: dict[str, Any] = {
        "capture": {"relay": route.name, "topic": route.log, "kafka": {"bootstrap.servers": route.kafka}},
        "columns": [RANDOM, *(["value as id"] if has_id else [])],
        "files": str(tmp_path / "in"),
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    jars = [str(jar) for jar in connector_jars()]
    for step in ("spark.appended:2", "decide.committed"):
        killed = drive("foreach", {crash.VARIABLE: step}, jars=jars, **arguments)
        assert [fact for fact in killed.facts() if "done" in fact] == []
        killed.kill()
    facts = ask("foreach", **arguments)

    assert facts == [{"done": True}]
    assert len([one for one in read_all(route.kafka, route.log, 3) if one.key() != b""]) > len(lines)
    assert route.finish(until_idle_s=3) == 0
    assert numbers(route) == Counter(lines)


def test_capture_batch_counts_rows_without_a_key_once_though_their_task_is_retried(route: TopicRoute, ask: Ask) -> None:
    place = {"relay": route.name, "topic": route.log, "kafka": {"bootstrap.servers": route.kafka}}
    facts = ask("retried", capture=place, columns=["cast(id as string) as id"])

    assert facts == [{"done": True}]
    assert len(read_all(route.kafka, route.log, 3)) > 2000 + 3, "the rows of the failed tasks, and markers"
    assert route.finish(until_idle_s=3) == 0
    assert {n: count for n, count in numbers(route).items() if count > 1} == {}
    assert numbers(route).total() == 2000


def test_the_capture_job_skips_no_row_because_its_checkpoint_is_lost_or_went_back(route: TopicRoute, ask: Ask, tmp_path: Path) -> None:
    folder = tmp_path / "drops"
    folder.mkdir()

    def capturing(checkpoint: str) -> Submission:
        return brief(submission("capture", [
            str(route.path), str(folder), "--topic", route.log, "--name", "drops", "--id", "n",
            "--checkpoint", f"file:{tmp_path / checkpoint}",  # as Spark understands it, which is no path of this machine
        ]))  # fmt: skip

    def capture(checkpoint: str) -> tuple[int, str]:
        _, program, *words = capturing(checkpoint).command
        (told,) = ask("job", program=program, words=words)
        return told["code"], told["said"]

    (folder / "first.csv").write_text("n\n1\n")
    job = capturing("one")  # as a user does; what follows needs no start of its own
    first = subprocess.run(job.command, env=dict(job.environment), capture_output=True, text=True, timeout=300)
    assert first.returncode == 0, first.stdout + first.stderr
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    (folder / "second.csv").write_text("n\n2\n")

    code, said = capture("two")

    assert code == 2, said
    assert "has captured before" in said
    code, said = capture("one")
    assert code == 0, said
    (folder / "third.csv").write_text("n\n3\n")
    code, said = capture("copy")
    assert code == 2, said
    assert "ends with batch 0, but" in said
    assert {record.value() for record in read_all(route.kafka, route.log, 3) if record.value()[:1] == b"{"} == {
        b'{"n":1}', b'{"n":2}',
    }  # fmt: skip


@pytest.mark.slow
def test_the_capture_job_takes_a_table_of_postgresql(route: TopicRoute, postgres: str) -> None:
    """As a user runs it: the driver's jar is brought by the job, and the rows are told when the sink has them."""
    with psycopg.connect(postgres) as connection:
        connection.execute("create table goods (id text, n int)")
        connection.execute("insert into goods select n::text, n from generate_series(1, 50) n")
        at = connection.info
        address = f"jdbc:postgresql://{at.host}:{at.port}/{at.dbname}?user={at.user}&password={at.password}"
    words = [str(route.path), address, "--format", "jdbc", "--table", "goods", "--topic", route.log, "--name", "goods", "--id", "id", "--json"]
    job = brief(submission("capture", [*words, "--key", "id", "--order-by", "n"]))

    done = subprocess.run(job.command, env=dict(job.environment), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["rows"] == 50
    assert route.finish(until_idle_s=3) == 0
    assert numbers(route) == Counter(range(1, 51))


def test_a_row_without_an_id_stops_what_tells_repeats_by_it(route: TopicRoute, ask: Ask) -> None:
    place = {"relay": route.name, "topic": route.log, "kafka": {"bootstrap.servers": route.kafka}}
    facts = ask("nameless", capture=place)

    assert ["column id is null or empty in a row" in fact.get("failed", "") for fact in facts] == [True] * 4
    assert route.finish(until_idle_s=3) == 0
    assert route.outputs() == []


def test_joined_messages_of_different_parents_have_different_ids(ask: Ask) -> None:
    parents = [
        ("/a", "1", "/w", "7", None, None),
        ("/b", "1", "/w", "7", None, None),  # another source's message 1
        ("/a", "1", None, None, "/w", "7"),  # an outer join's gap elsewhere
        ("/a", "1", "/w", "7+8", None, None),
        ("/a", "1", "/w", "7", "/w", "8"),
    ]
    (told,) = ask("joined", parents=parents * 2)
    first, again = told["ids"][: len(parents)], told["ids"][len(parents) :]

    assert len(set(first)) == len(parents)
    assert first == again, "what is joined again is known again"
    assert told["parents"][0] == {"ce_relayparents": [{"source": "/a", "id": "1"}, {"source": "/w", "id": "7"}]}, "and none for a gap"


def test_the_capture_job_calls_different_rows_differently_and_a_nameless_one_nothing(ask: Ask) -> None:
    time = "2026-01-02T03:04:05Z"
    rows = [
        ("a-b", "c", 1, time), ("a", "b-c", 2, time), ("a", None, 3, time), (None, "a", 4, time), ("a\\", "b", 5, time),
        ("a\\-b", None, -6, time), (None, None, 7, time),
    ]  # fmt: skip

    two, three, one = ask("called", rows=rows, names=["x,y", "x,n", "x"])

    assert len({*two["ids"]}) == len(rows)
    assert (two["ids"][-1], one["ids"][-1]) == (None, None), "refused where it is written"
    assert three["ids"][1] == "a-2"
    assert one["ids"][0] == "a-b", "one column is the id as it is"
    assert two["time"] == "timestamp", "capture_batch writes it in UTC; its text would have no zone"


def test_spark_reads_what_counts_once_each_at_rest_and_as_a_stream(route: TopicRoute, ask: Ask, tmp_path: Path) -> None:
    written = WriteOptions(route.name, {"bootstrap.servers": route.kafka}, topic=route.log)
    publish(route.kafka, route.log, [(0, ce("/plain", "1"), b"plain"), (0, ce("/plain", "1"), b"repeat")])
    # Without an id, also with an empty one, each is itself; an empty source is none, and the topic's name stands for it.
    publish(route.kafka, route.log, [(0, ce("/plain", ""), value) for value in (b"nameless", b"nameless too")])
    publish(route.kafka, route.log, [(0, ce(source, "2"), b"sourceless") for source in ("", route.log)])
    counted, dropped, held = (append_values(written, number, values) for number, values in enumerate(("ab", "c", "d"), 1))
    commit_unit(written, counted.unit, counted.run, attempts_of([counted]))
    abort_unit(written, dropped.unit, dropped.run, attempts_of([dropped]))

    facts = ask(
        "read", relay=route.name, kafka={"bootstrap.servers": route.kafka}, topic=route.log, checkpoint=str(tmp_path / "checkpoint")
    )

    assert held.attempt is not None
    once = ["nameless", "nameless too", "plain", "sourceless"]
    assert facts[0] == {"at_rest": ["a", "b", *once]}
    assert facts[1] == {"stream": ["a", "b", *once]}
    # The undecided row holds back what lies behind it in partition 0; the batches are in partition 1.
    assert facts[2] == {"stream": ["a", "b", "named", "named", *once]}


def append_values(options: WriteOptions, number: int, values: str) -> Appended:
    rows = pa.RecordBatch.from_pydict({"value": list(values)})
    return append_rows(options, batch_unit("before", number), "run", iter([rows]))


class TableRoute(Route):
    """A route into the table ``rows`` of a fresh database."""

    postgres: str

    def numbers(self) -> Counter[str]:
        """Return how often each source row is in the table."""
        with psycopg.connect(self.postgres) as connection:
            return Counter(n for (n,) in connection.execute("select n from rows").fetchall())


@pytest.fixture
def table(tmp_path: Path, kafka: str, postgres: str, make_topic: MakeTopic) -> Iterator[TableRoute]:
    with psycopg.connect(postgres) as connection:
        connection.execute("create table rows (id text not null, n text not null)")
    made = TableRoute(tmp_path, kafka, make_topic(3), '{ table = "rows", resource = "shop", columns = { id = "ce:id", n = "json:/n" } }')
    made.path.write_text(made.path.read_text() + f'\n[resources.shop]\nurl = "{postgres}"\n')
    made.postgres = postgres
    made.migrate()
    yield made
    made.stop()


@pytest.mark.parametrize(
    "column", [pytest.param(PLAIN, id="deterministic"), pytest.param(RANDOM, id="rand", marks=pytest.mark.nightly)]
)
def test_batches_with_a_kill_in_every_third(table: TableRoute, drive: Drive, tmp_path: Path, column: str) -> None:
    route, batches = table, BATCHES
    lines = write_files(tmp_path / "in", batches)
    checkpoint = tmp_path / "checkpoint"
    arguments: dict[str, Any] = {
        "steps": [""], "options": options(route), "columns": [column], "files": str(tmp_path / "in"),
        "checkpoint": str(checkpoint),
    }  # fmt: skip
    route.start()
    driver = drive("stream", **arguments)
    driver.await_ready()
    killed = Counter[str]()
    for target in range(3, batches, 3):
        current = driver
        wait_for(lambda at=target, one=current: one.ended or planned(checkpoint) >= at, 300, "the next batch")  # type: ignore[misc]
        if target % 2:
            killed["executor"] += kill_python_workers(driver.java)
        else:
            driver.kill()
            killed["driver"] += 1
        if driver.ended or target % 2 == 0:
            driver.kill()
            driver = drive("stream", **arguments)
            driver.await_ready()
    facts = list(driver.facts())
    while not facts or "done" not in facts[-1]:
        driver = drive("stream", **arguments)
        facts = list(driver.facts())

    assert killed["driver"] >= batches // 7
    assert killed["executor"] >= batches // 12
    wait_for(lambda: route.numbers().total() >= len(lines), 120, "the last rows")
    assert route.finish(number=1, until_idle_s=3) == 0
    assert route.numbers() == Counter(lines)
    assert_audited(route, len(lines))


def planned(checkpoint: Path) -> int:
    """Return how many batches the query has planned."""
    return sum(1 for one in checkpoint.glob("offsets/*") if one.name.isdigit())


def kill_python_workers(java: int) -> int:
    """Kill the Python workers of a driver, not the daemon that makes new ones; return how many."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    processes = [line.split(None, 2) for line in listed.splitlines()]
    daemons = {pid for pid, parent, command in processes if int(parent) == java and "pyspark.daemon" in command}
    workers = [int(pid) for pid, parent, _ in processes if parent in daemons]
    for pid in workers:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(workers)
