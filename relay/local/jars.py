"""Jars are resolved once into a user cache and used only while their checksums still hold."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from relay.local.java import find_java
from relay.local.lock import exclusive
from relay.local.maven import central_mirror
from relay.message.errors import CheckFailed, ConfigError, Unreachable
from relay.message.limits import raise_limit

KAFKA_VERSION = "4.3.0"
# Kafka logs through slf4j 1.7 and ships no binding for it; this one makes the broker's log readable.
KAFKA_LOGGING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"
_CHECKSUMS = "SHA256SUMS"
_COORDINATE = re.compile(r"[\w.\-]+:[\w.\-]+:[\w.\-]+", re.ASCII)
_RESOLVE_TIMEOUT_S = 900.0

_REMEDY = "name a folder that you may write, and that stays, in XDG_CACHE_HOME"

Tell = Callable[[str], None]


def cache_directory() -> Path:
    """Return the relay's folder in the user cache (``XDG_CACHE_HOME``, else ``~/.cache``), absolute; ConfigError if there is no home."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base).absolute() if base else Path.home() / ".cache") / "transactional-relay"
    except RuntimeError:
        raise ConfigError(f"This user has no home directory, where jars would be kept: {_REMEDY}.") from None


def kafka_jars(version: str, tell: Tell = lambda _: None) -> list[Path]:
    """Return the jars of a broker of that version, resolved on first use."""
    return resolve([f"org.apache.kafka:kafka_2.13:{version}", KAFKA_LOGGING], tell)


def resolve(coordinates: Sequence[str], tell: Tell = lambda _: None) -> list[Path]:
    """Return the jars of Maven ``coordinates`` (``group:artifact:version``) with their runtime dependencies.

    The first call downloads them (``tell`` is given one progress line); later calls read the cache and verify
    every SHA-256. A set that no longer matches is resolved anew, and must then have the recorded checksums.
    Raises ConfigError for a malformed coordinate, missing PySpark or a cache that cannot be used, Unreachable when
    resolving fails, and CheckFailed when the repository now serves other bytes than those recorded.
    """
    for coordinate in coordinates:
        if not _COORDINATE.fullmatch(coordinate):
            raise ConfigError(f"Maven coordinate {coordinate!r} is not of the form group:artifact:version.")
    directory = cache_directory() / "jars" / _set_name(coordinates)
    try:
        return _resolved(directory, coordinates, tell)
    except OSError as error:
        raise_limit(error)
        raise ConfigError(f"Jars cannot be kept in {cache_directory()} ({error.strerror}): {_REMEDY}.") from error


def _resolved(directory: Path, coordinates: Sequence[str], tell: Tell) -> list[Path]:
    if _faults(directory) == []:
        return _jars_in(directory)
    with exclusive(cache_directory() / "resolve.lock"):
        faults = _faults(directory)  # another process may have resolved them while we waited
        if faults == []:
            return _jars_in(directory)
        recorded = _recorded(directory) if faults else None
        if faults:
            tell(f"Cached jars do not match their checksums ({', '.join(faults[:3])}): resolving them again")
            # Ivy's own copy may be what went bad; without it every jar is fetched and checked again.
            shutil.rmtree(cache_directory() / "ivy", ignore_errors=True)
        else:
            tell(f"Resolving {', '.join(coordinates)} (once; about a minute)")
        _resolve_into(directory, coordinates, recorded)
    return _jars_in(directory)


def _set_name(coordinates: Sequence[str]) -> str:
    digest = hashlib.sha256("\n".join(coordinates).encode()).hexdigest()[:12]
    return f"{coordinates[0].split(':')[1]}-{coordinates[0].split(':')[2]}-{digest}"


def _jars_in(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.jar"))


def _recorded(directory: Path) -> dict[str, str]:
    lines = (directory / _CHECKSUMS).read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def _checksums(directory: Path) -> dict[str, str]:
    return {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in _jars_in(directory)}


def _faults(directory: Path) -> list[str] | None:
    """Return the jars whose bytes differ from the recorded ones (missing and extra count); None if not resolved."""
    if not (directory / _CHECKSUMS).exists():
        return None
    recorded, found = _recorded(directory), _checksums(directory)
    return sorted(name for name in recorded.keys() | found.keys() if recorded.get(name) != found.get(name))


def _resolve_into(directory: Path, coordinates: Sequence[str], recorded: dict[str, str] | None) -> None:
    """Resolve into a fresh folder and put it in place by rename, so that a set is whole or absent."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".resolving-", dir=directory.parent))
    try:
        _run_ivy(coordinates, work)
        fresh = _checksums(work / "jars")
        if not fresh:
            raise Unreachable(f"Resolving {', '.join(coordinates)} gave no jar: check the coordinates.")
        if recorded is not None and fresh != recorded:
            changed = sorted(
                name for name in recorded.keys() | fresh.keys() if recorded.get(name) != fresh.get(name)
            )
            raise CheckFailed(
                f"The repository now serves other bytes for {', '.join(changed)} than those recorded in "
                f"{directory / _CHECKSUMS}: if you trust the new ones, delete that folder and try again."
            )
        (work / "jars" / _CHECKSUMS).write_text(
            "".join(f"{digest}  {name}\n" for name, digest in sorted(fresh.items()))
        )
        if directory.exists():
            directory.rename(work / "replaced")
        (work / "jars").rename(directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run_ivy(coordinates: Sequence[str], work: Path) -> None:
    (work / "ivy.xml").write_text(_ivy_file(coordinates))
    command: list[str | Path] = [find_java().executable, "-cp", _ivy_jar(), "org.apache.ivy.Main"]
    command += ["-ivy", work / "ivy.xml", "-cache", cache_directory() / "ivy", "-warn"]
    mirror = central_mirror()
    if mirror is None:
        command += ["-m2compatible"]  # Ivy's default resolver for public modules
    else:
        (work / "ivysettings.xml").write_text(_mirror_settings(mirror))
        command += ["-settings", work / "ivysettings.xml"]
    pattern = work / "jars" / "[organisation]_[artifact]-[revision](-[classifier]).[ext]"
    command += ["-confs", "default", "-types", "jar", "bundle", "-retrieve", pattern]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_RESOLVE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unreachable(
            f"Resolving {', '.join(coordinates)} took over {_RESOLVE_TIMEOUT_S:g} s: check the network and the "
            "Maven mirror in ~/.m2/settings.xml, then try again."
        ) from error
    if answer.returncode != 0:
        reasons = [line.strip() for line in (answer.stdout + answer.stderr).splitlines() if line.strip(" .")]
        raise Unreachable(
            f"Resolving {', '.join(coordinates)} failed: check the network and the Maven mirror in "
            f"~/.m2/settings.xml. Ivy's last lines: {' | '.join(reasons[-6:])}"
        )


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    places = spec.submodule_search_locations if spec else None
    jars = sorted(Path(places[0], "jars").glob("ivy-*.jar")) if places else []
    if not jars:
        raise ConfigError(
            "PySpark, whose Ivy resolves the jars, is not installed: pip install '.[local]' in the relay's sources."
        )
    return jars[-1]


def _ivy_file(coordinates: Sequence[str]) -> str:
    dependencies = "".join(
        f'<dependency org="{group}" name="{name}" rev="{revision}" conf="default->default"/>'
        for group, name, revision in (coordinate.split(":") for coordinate in coordinates)
    )
    return (
        '<ivy-module version="2.0"><info organisation="relay" module="jars"/>'
        '<configurations><conf name="default"/></configurations><publications/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


def _mirror_settings(mirror: str) -> str:
    return (
        '<ivysettings><settings defaultResolver="mirror"/><resolvers>'
        f'<ibiblio name="mirror" m2compatible="true" root={quoteattr(mirror)}/></resolvers></ivysettings>'
    )
