"""A job starts Spark only where everything that it needs is there; else it says what is missing, before any row."""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from relay.message.errors import ConfigError, RelayError, Unreachable
from relay.world import schedule

if TYPE_CHECKING:
    from py4j.protocol import Py4JJavaError
    from pyspark.sql import SparkSession

SPARK: Final = "4.0."
JAVA_LEAST: Final = 17
KAFKA_CLASS: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
AVRO_CLASS: Final = "org.apache.spark.sql.avro.AvroFileFormat"
SHOWN_EVERY_S: Final = 2.0
PERIOD_LEAST_S: Final = 0.1
PERIOD_MOST_S: Final = 86_400.0
_HIDDEN: Final = "spark.sql.redaction.options.regex"
_KEY: Final = "PRIVATE KEY-----"
_RAISED: Final = "[USER_RAISED_EXCEPTION] "
"""With this Spark begins what ``raise_error`` says."""
_OWN: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",  # of a repeated header the last one counts
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
}


def parser(name: str, about: str) -> ArgumentParser:
    """Return the parser of a job's own arguments, with those that every job has."""
    made = ArgumentParser(
        prog=f"relay spark {name}", description=about, formatter_class=RawDescriptionHelpFormatter
    )
    made.add_argument("--master", default="local[*]", help="where Spark runs (default: %(default)s)")
    made.add_argument("--json", action="store_true", help="print the result as JSON")
    return made


def character(text: str) -> str:
    """Read an option that is one character."""
    if len(text) != 1:
        raise ArgumentTypeError(f"{text!r} is not one character")
    return text


def period(text: str) -> float:
    """Read an option's seconds between two looks; refuses what Spark would not understand, or never end."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not PERIOD_LEAST_S <= found <= PERIOD_MOST_S:
        raise ArgumentTypeError(f"{text} is not from {PERIOD_LEAST_S:g} to {PERIOD_MOST_S:g} seconds")
    return found


def count(text: str) -> int:
    """Read an option's number of things, of which there is at least one."""
    found = int(text) if re.fullmatch("[0-9]{1,9}", text) else 0
    if found < 1:
        raise ArgumentTypeError(f"{text} is not a number from 1 to 999999999")
    return found


def filled(text: str) -> str:
    """Read an option that says something, unlike a shell's variable that is not set."""
    if not text:
        raise ArgumentTypeError("it is empty; write what it is to be")
    return text


def written(text: str) -> Path:
    """Read an option's file that is written when the job is done; refuses at once what cannot be written then."""
    path = Path(text)
    if not text or path.is_dir():
        raise ArgumentTypeError(f"{text!r} is no file; name one")
    if path.exists():
        if not os.access(path, os.W_OK):
            raise ArgumentTypeError(f"{text} may not be written; name a file that you may write")
    elif not path.parent.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise ArgumentTypeError(f"{path.parent} is no directory that you may write into; make it, or name another one")
    return path


def run(name: str, job: Callable[[], int]) -> int:
    """Run a job and return its exit code; every expected failure is one sentence on standard error."""
    try:
        return job()
    except RelayError as error:
        say(f"{name}: {error}", sys.stderr)
        return error.exit_code


def start(name: str, master: str, *, needs: Sequence[str] = (KAFKA_CLASS,), **settings: str) -> SparkSession:
    """Start Spark and return the session. ConfigError says what is wrong or missing, with the remedy.

    ``needs`` are Java classes; ``settings`` have ``__`` for each dot. Addresses are this machine's only with a local
    master; elsewhere spark-submit's own settings hold.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with PySpark
    from pyspark.errors import PySparkException  # noqa: PLC0415 - needs PySpark
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the job's help must not wait for it

    own = dict(_OWN) if master.startswith("local") else {k: v for k, v in _OWN.items() if "driver" not in k}
    builder = SparkSession.builder.master(master).appName(f"relay-{name}")
    for key, value in (own | {key.replace("__", "."): value for key, value in settings.items()}).items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except (Py4JJavaError, PySparkException) as error:
        raise ConfigError(f"--master {master}: Spark does not start ({cause(error)}); correct it, or what Spark says before this") from error
    examine(spark, needs)
    hide_keys(spark)
    return spark


def hide_keys(spark: SparkSession) -> None:
    """Have Spark's pages and event logs hide a client's private key among a writer's options, where it stands as PEM.

    Spark knows passwords by their names, or by the word in a value, and hides them by itself.
    """
    given = spark.conf.get(_HIDDEN) or ""
    if _KEY not in given:
        spark.conf.set(_HIDDEN, f"{given}|{_KEY}" if given else _KEY)


def examine(spark: Any, needs: Sequence[str]) -> None:
    """Refuse a Spark or a Java of another version, a missing connector, and a missing pyarrow."""
    if not spark.version.startswith(SPARK):
        raise ConfigError(
            f"Spark is {spark.version}, but the connectors in use are for {SPARK}x: pip install pyspark=={SPARK}0."
        )
    jvm = spark._jvm  # noqa: SLF001 - the only way to ask the JVM
    java = int(jvm.java.lang.Runtime.version().feature())
    if java < JAVA_LEAST:
        raise ConfigError(f"Java is {java}, but Spark needs {JAVA_LEAST}: set JAVA_HOME to a newer one.")
    for name in needs:
        if not _has_class(jvm, name):
            what = {KAFKA_CLASS: "Kafka", AVRO_CLASS: "Avro"}.get(name, name)
            raise ConfigError(
                f"Spark has no {what} connector: run the job as `relay spark NAME`, which brings its jars, or give "
                "spark-submit --packages."
            )
    try:
        import pyarrow  # noqa: F401, PLC0415 - only asked for
    except ImportError:
        raise ConfigError("pyarrow is not installed: pip install '.[local]' in the relay's sources.") from None


def _has_class(jvm: Any, name: str) -> bool:
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with PySpark

    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(name, False, loader)
    except Py4JJavaError:
        return False
    return True


@contextmanager
def reaching(doing: str) -> Iterator[None]:
    """Turn a failure inside Spark into one sentence with the innermost Java exception; no payload is in it."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with PySpark
    from pyspark.errors import PySparkException  # noqa: PLC0415 - needs PySpark

    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        words = cause(error)
        raise refused(doing, words) or Unreachable(f"{doing} failed: {words}; the job may be run again.") from error


def raised(error: Py4JJavaError) -> Iterator[Any]:
    """Yield the exception that Java raised, and each that it was raised for."""
    inner = error.java_exception
    while inner is not None:
        yield inner
        inner = inner.getCause()


def cause(error: Exception) -> str:
    """Return what the innermost Java exception says of a failure inside Spark."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with PySpark

    if not isinstance(error, Py4JJavaError):
        return " ".join(str(error).split())[:300]
    *_, inner = raised(error)
    words = str(inner.getMessage() or "").strip().splitlines()
    return f"{inner.getClass().getSimpleName()}: {(words or ['no reason given'])[-1][:300]}"


def refused(doing: str, words: str) -> ConfigError | None:
    """Return the sentence of a cause that lies in a row, which no further run mends; None for another one."""
    if _RAISED in words:
        return ConfigError(f"{doing} failed: {words.partition(_RAISED)[2].partition(' SQLSTATE: ')[0]}")
    if "RecordTooLarge" in words:
        return ConfigError(
            f"{doing} failed: a row is larger than what Spark's client sends or the topic takes ({words}); shorten or leave it out, or write "
            'it by capture_batch with sink={"kafka.max.request.size": ...}'
        )
    return None


@contextmanager
def progress(spark: SparkSession, name: str) -> Iterator[Callable[[str], None]]:
    """Show which step runs and how many of its tasks are done, every two seconds; yields ``step(words)``."""
    over, step = schedule.event(), {"words": "starting"}

    def watch() -> None:
        shown = ""
        while not over.wait(SHOWN_EVERY_S):
            line = f"{name}: {step['words']}{_tasks(spark)}"
            if line != shown:
                say(line, sys.stderr)
                shown = line

    thread = schedule.start_thread("relay-job-progress", watch)
    try:
        yield lambda words: step.update(words=words)
    finally:
        over.set()
        thread.join()


def _tasks(spark: SparkSession) -> str:
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    total = sum(stage.numTasks for stage in stages if stage)
    done = sum(stage.numCompletedTasks for stage in stages if stage)
    return f" ({done} of {total} tasks)" if total else ""


def say(sentence: str, stream: Any = None) -> None:
    """Print a line at once: the output is usually a pipe."""
    print(sentence, file=stream or sys.stdout, flush=True)
