"""A Spark job runs with connector jars from the local cache, so that only the first run needs the network."""

from __future__ import annotations

import ast
import codecs
import locale
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from relay.local import jars
from relay.local.java import BRIEF_JVM, find_java
from relay.message.errors import ConfigError
from relay.run.ending import ending_properly

SPARK: Final = "4.0.0"
"""The newest version whose Kafka connector resolves with all its dependencies."""
CONNECTOR: Final = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK}"
AVRO: Final = f"org.apache.spark:spark-avro_2.13:{SPARK}"
POSTGRESQL: Final = "org.postgresql:postgresql:42.7.7"
MEMORY: Final = {"audit": "3g", "archive": "2g", "correlate": "2g", "pipeline": "2g"}
"""What the driver may take, which with a local master does all the work; the other jobs have 1 GB."""
BRIEF_JOBS: Final = frozenset({"flights"})
"""They end within the minute: there a second compiler takes a quarter more processor time and never pays."""
KILLED: Final = 128
"""Shells add the number of the signal that ended a program to this."""
_NOISE: Final = (
    "WARNING: Using incubator modules"  # the JVM's remark about a module that Spark itself asks for
)


@dataclass(frozen=True)
class Submission:
    """What to run and with which environment."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


def jobs() -> dict[str, Path]:
    """Return the jobs by name: in the wheel beside the package's modules, in a checkout in ``spark/``."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "spark_jobs"
    folder = inside if inside.is_dir() else package.parent / "spark"
    return {path.stem: path for path in sorted(folder.glob("*.py")) if not path.stem.startswith("_")}


def purposes() -> dict[str, str]:
    """Return what each job is for, in a line."""
    documents = {name: ast.get_docstring(ast.parse(path.read_text())) or "" for name, path in jobs().items()}
    return {name: document.partition("\n")[0] for name, document in documents.items()}


def submission(name: str, arguments: Sequence[str], tell: jars.Tell = lambda _: None) -> Submission:
    """Return how to run job ``name``; resolves the connector's jars on first use.

    Raises ConfigError for an unknown job and a missing or wrong PySpark or Java; Unreachable if jars are missing
    and cannot be fetched.
    """
    known = jobs()
    if name not in known:
        raise ConfigError(f"There is no Spark job {name!r}; there are: {', '.join(known) or 'none'}.")
    home = _spark_home()
    java = find_java()
    connector = connector_jars(tell, _further(arguments))
    logging = known[name].with_name("log4j2.properties")
    flags = BRIEF_JVM if name in BRIEF_JOBS else ("-XX:+UseSerialGC",)
    options = " ".join((f"-Dlog4j2.configurationFile={logging.as_uri()}", *flags))
    jvm = (
        *("--jars", ",".join(str(jar) for jar in connector)),
        *("--driver-memory", MEMORY.get(name, "1g"), "--driver-java-options", options),
        *("--conf", "spark.ui.enabled=false", "--conf", "spark.ui.showConsoleProgress=false"),
        "pyspark-shell",
    )
    environment = {
        **os.environ,
        **_letters(),
        # The job starts its JVM with these. Under spark-submit, which starts the job, both its outputs would be one.
        "PYSPARK_SUBMIT_ARGS": shlex.join(jvm),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if java.executable.parent.name == "bin":
        environment["JAVA_HOME"] = str(java.executable.resolve().parent.parent)
    return Submission((sys.executable, str(known[name]), *arguments), environment)


def _letters() -> dict[str, str]:
    """Return by what Java spells the names of files in UTF-8, as Python does in any locale: in one without it makes `?` of other letters."""
    return {} if codecs.lookup(locale.getencoding()).name == "utf-8" else {"LC_ALL": "C.UTF-8"}


def connector_jars(tell: jars.Tell = lambda _: None, further: Sequence[str] = ()) -> list[Path]:
    """Return the jars of the Kafka connector and of further coordinates, less those that Spark has itself.

    Each set is resolved on first use. Raises as ``submission``.
    """
    home = _spark_home()
    found = {jar.name: jar for one in (CONNECTOR, *further) for jar in jars.resolve([one], tell)}
    return [jar for _, jar in sorted(found.items()) if not _ships_with_spark(jar, home)]


def _further(arguments: Sequence[str]) -> list[str]:
    """A job that is given a PostgreSQL address needs that driver too; a jar of one's own goes to spark-submit."""
    return [POSTGRESQL] if any(argument.startswith("jdbc:postgresql:") for argument in arguments) else []


def run(job: Submission) -> int:
    """Run the job to its end and return its exit code, as a shell does; its output is passed on, less the JVM's noise.

    Told to end by SIGTERM or SIGHUP it tells the job: one that went on by itself would be nobody's.
    """
    with (
        ending_properly(),
        subprocess.Popen(job.command, env=job.environment, stderr=subprocess.PIPE, text=True, errors="replace") as process,
    ):
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if not line.startswith(_NOISE):
                    sys.stderr.write(line)
                    sys.stderr.flush()
            code = process.wait()
            return code if code >= 0 else KILLED - code
        except SystemExit:
            process.terminate()
            raise


def _spark_home() -> Path:
    spec = find_spec("pyspark")
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        found = None
    if spec is None or not spec.submodule_search_locations or found is None:
        raise ConfigError("PySpark is not installed: pip install '.[local]' in the relay's sources.")
    if found != SPARK:
        raise ConfigError(
            f"PySpark is {found}, but the Kafka connector is for {SPARK}: pip install pyspark=={SPARK}."
        )
    return Path(spec.submodule_search_locations[0])


def _ships_with_spark(jar: Path, home: Path) -> bool:
    """Tell whether Spark has this very jar; the resolved name carries its organisation before the first "_"."""
    return (home / "jars" / jar.name.partition("_")[2]).exists()
