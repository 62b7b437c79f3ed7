"""Finds a Java that is new enough for the broker, or says in one sentence what to install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from relay.message.errors import ConfigError

JAVA_MAJOR_MIN = 17  # Kafka 4.x brokers and PySpark 4.0 both refuse anything older
BRIEF_JVM: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For what runs for minutes: a second compiler costs more there than it gains."""
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class JavaMissingError(ConfigError):
    """No Java, or none that is new enough; the sentence says what to install."""


@dataclass(frozen=True)
class Java:
    """A Java runtime that passed the version check."""

    executable: Path
    major: int


def find_java() -> Java:
    """Return the Java of ``JAVA_HOME``, else the one on ``PATH``.

    Raises JavaMissingError when there is none or it is older than 17. A ``JAVA_HOME`` that is set is believed:
    falling back silently to another Java would hide the mistake.
    """
    executable = _java_executable()
    major = _major_version(executable)
    if major < JAVA_MAJOR_MIN:
        raise JavaMissingError(
            f"{executable} is Java {major}, but the local broker needs Java {JAVA_MAJOR_MIN} or newer: install "
            f"OpenJDK {JAVA_MAJOR_MIN} or newer and put it on PATH or name it in JAVA_HOME."
        )
    return Java(executable, major)


def _java_executable() -> Path:
    home = os.environ.get("JAVA_HOME")
    if home:
        candidate = Path(home).absolute() / "bin" / "java"  # brokers are started in folders of their own
        if os.access(candidate, os.X_OK):
            return candidate
        raise JavaMissingError(
            f"JAVA_HOME is {home!r}, which holds no bin/java: install OpenJDK {JAVA_MAJOR_MIN} or newer and "
            "point JAVA_HOME at it, or unset JAVA_HOME to use the java on PATH."
        )
    found = shutil.which("java")
    if found is None:
        raise JavaMissingError(
            f"Java was not found on PATH and JAVA_HOME is not set: install OpenJDK {JAVA_MAJOR_MIN} or newer."
        )
    return Path(found).absolute()


def _major_version(executable: Path) -> int:
    try:
        answer = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissingError(
            f"{executable} does not run ({error}): install OpenJDK {JAVA_MAJOR_MIN} or newer."
        ) from error
    match = _VERSION.search(answer.stderr + answer.stdout)
    if match is None:
        raise JavaMissingError(
            f"{executable} -version did not name a version: install OpenJDK {JAVA_MAJOR_MIN} or newer."
        )
    return int(match.group(1))
