"""Java missing or too old is told in one sentence that says what to install."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.local.java import JavaMissingError, find_java


def fake_java(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "java"
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    script.chmod(0o755)
    return script


@pytest.fixture(autouse=True)
def only_this_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("25.0.1", 25), ("17-ea", 17)])
def test_new_enough_java_on_path_is_found(tmp_path: Path, version: str, major: int) -> None:
    script = fake_java(tmp_path / "path", version)

    found = find_java()

    assert (found.executable, found.major) == (script, major)


@pytest.mark.parametrize(("version", "major"), [("11.0.2", 11), ("1.8.0_392", 8)])
def test_too_old_java_names_itself_and_the_version_to_install(
    tmp_path: Path, version: str, major: int
) -> None:
    script = fake_java(tmp_path / "path", version)

    with pytest.raises(JavaMissingError) as caught:
        find_java()

    sentence = str(caught.value)
    assert f"{script} is Java {major}" in sentence
    assert "install OpenJDK 17 or newer" in sentence
    assert "\n" not in sentence
    assert caught.value.exit_code == 2


def test_no_java_at_all_says_what_to_install() -> None:
    with pytest.raises(JavaMissingError, match=r"not found on PATH.*install OpenJDK 17 or newer"):
        find_java()


def test_java_home_wins_over_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "path", "11.0.1")
    script = fake_java(tmp_path / "home" / "bin", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))

    assert find_java().executable == script


def test_empty_java_home_is_not_silently_replaced_by_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "path", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))

    with pytest.raises(JavaMissingError, match=r"JAVA_HOME is .*nothing"):
        find_java()


@pytest.mark.parametrize(("name", "value"), [("JAVA_HOME", "jdk"), ("PATH", "jdk/bin")])
def test_a_java_that_is_named_from_here_is_found_from_a_brokers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    script = fake_java(tmp_path / "jdk" / "bin", "17.0.1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, value)

    assert find_java().executable == script
