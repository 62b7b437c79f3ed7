"""Jars are resolved once, verified at every use, and never replaced by other bytes unnoticed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from relay.local.jars import cache_directory, resolve
from relay.message.errors import CheckFailed, ConfigError, Unreachable

COORDINATES = ["org.example:thing_2.13:1.0.0"]

# Answers `-version` as Java 17; run as Ivy it notes the call and retrieves two jars whose bytes come from a file.
IVY = """#!/bin/sh
if [ "$1" = "-version" ]; then echo 'openjdk version "17.0.1"' >&2; exit 0; fi
echo call >> '{root}/calls'
[ -f '{root}/broken' ] && {{ echo 'UNRESOLVED DEPENDENCY: not found'; exit 1; }}
while [ "$1" != "-retrieve" ]; do shift; done
folder=${{2%/*}}
mkdir -p "$folder"
cat '{root}/served' > "$folder/org.example_thing_2.13-1.0.0.jar"
cat '{root}/served' '{root}/served' > "$folder/org.example_other-2.jar"
"""


@pytest.fixture
def ivy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for ``java`` that behaves as Ivy does; returns the folder of its switches."""
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(IVY.format(root=tmp_path))
    (home / "bin" / "java").chmod(0o755)
    (tmp_path / "served").write_text("bytes of the repository")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def calls(ivy: Path) -> int:
    path = ivy / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_second_use_reads_the_cache(ivy: Path) -> None:
    told: list[str] = []

    first = resolve(COORDINATES, told.append)
    second = resolve(COORDINATES, told.append)

    assert [jar.name for jar in first] == ["org.example_other-2.jar", "org.example_thing_2.13-1.0.0.jar"]
    assert second == first
    assert calls(ivy) == 1
    assert len(told) == 1


def test_a_cache_that_is_named_from_here_is_found_from_a_brokers_folder(ivy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ivy)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")

    assert [jar.parent.parent.parent for jar in resolve(COORDINATES)] == [ivy / "cache" / "transactional-relay"] * 2


def test_a_cache_that_cannot_be_written_is_named_with_what_to_do(ivy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (ivy / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(ivy / "file"))

    with pytest.raises(ConfigError, match=r"file/transactional-relay \(Not a directory\): name a folder .* in XDG_CACHE_HOME"):
        resolve(COORDINATES)


def test_a_user_without_a_home_is_told_where_jars_can_be_kept(ivy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers run as numbers that no list of users has."""

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    assert len(resolve(COORDINATES)) == 2, "the cache is named"

    monkeypatch.delenv("XDG_CACHE_HOME")
    with pytest.raises(ConfigError, match=r"no home directory.* in XDG_CACHE_HOME"):
        resolve(COORDINATES)


@pytest.mark.parametrize("damage", ["changed", "missing", "added"])
def test_damaged_cache_is_found_and_resolved_again(ivy: Path, damage: str) -> None:
    jars = resolve(COORDINATES)
    intact = [jar.read_bytes() for jar in jars]
    if damage == "changed":
        jars[0].write_bytes(intact[0][:-1] + b"!")
    elif damage == "missing":
        jars[0].unlink()
    else:
        (jars[0].parent / "stowaway.jar").write_bytes(b"not recorded")
    told: list[str] = []

    again = resolve(COORDINATES, told.append)

    assert "do not match their checksums" in told[0]
    assert again == jars
    assert [jar.read_bytes() for jar in again] == intact
    assert calls(ivy) == 2


def test_other_bytes_than_recorded_are_refused_with_the_remedy(ivy: Path) -> None:
    jars = resolve(COORDINATES)
    jars[0].unlink()
    (ivy / "served").write_text("bytes of somebody else")

    with pytest.raises(CheckFailed, match=r"other bytes.*delete that folder"):
        resolve(COORDINATES)

    with pytest.raises(CheckFailed):  # and the refusal lasts: nothing of the new bytes was taken over
        resolve(COORDINATES)


def test_failed_resolving_tells_the_reason_and_leaves_nothing_behind(ivy: Path) -> None:
    (ivy / "broken").touch()

    with pytest.raises(Unreachable, match="UNRESOLVED DEPENDENCY"):
        resolve(COORDINATES)

    assert list((cache_directory() / "jars").iterdir()) == []
    (ivy / "broken").unlink()
    assert len(resolve(COORDINATES)) == 2


def test_two_at_once_resolve_once(ivy: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: resolve(COORDINATES), range(4)))

    assert answers == [answers[0]] * 4
    assert calls(ivy) == 1


@pytest.mark.parametrize("coordinate", ["kafka", "a:b", "a:b:c:d", 'a:b:1"/><x', "a:b:../../c"])
def test_malformed_coordinate_is_refused_before_anything_runs(ivy: Path, coordinate: str) -> None:
    with pytest.raises(ConfigError, match="group:artifact:version"):
        resolve([coordinate])

    assert calls(ivy) == 0
