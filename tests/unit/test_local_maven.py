"""A mirror in the machine's Maven settings is used; everything else means Maven Central."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.local.maven import central_mirror
from relay.message.errors import ConfigError

MIRROR = "<mirrors><mirror><id>m</id><url>https://mirror.example/maven</url><mirrorOf>{}</mirrorOf></mirror></mirrors>"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MAVEN_HOME", raising=False)
    monkeypatch.delenv("M2_HOME", raising=False)
    (tmp_path / ".m2").mkdir()
    return tmp_path / ".m2" / "settings.xml"


@pytest.mark.parametrize(
    ("mirror_of", "used"),
    [
        ("central", True),
        ("*", True),
        ("external:*", True),
        ("*,!internal", True),
        ("internal, central", True),
        ("*,!central", False),
        ("internal", False),
    ],
)
def test_mirror_of_central_is_used(settings: Path, mirror_of: str, used: bool) -> None:
    namespace = ' xmlns="http://maven.apache.org/SETTINGS/1.2.0"'
    settings.write_text(f"<settings{namespace}>{MIRROR.format(mirror_of)}</settings>")

    assert central_mirror() == ("https://mirror.example/maven" if used else None)


def test_settings_of_the_maven_installation_are_read_after_the_users(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "maven" / "conf").mkdir(parents=True)
    (tmp_path / "maven" / "conf" / "settings.xml").write_text(f"<settings>{MIRROR.format('*')}</settings>")
    monkeypatch.setenv("MAVEN_HOME", str(tmp_path / "maven"))

    assert central_mirror() == "https://mirror.example/maven"


def test_no_settings_mean_no_mirror(settings: Path) -> None:
    assert central_mirror() is None


def test_broken_settings_are_named(settings: Path) -> None:
    settings.write_text("<settings>")

    with pytest.raises(ConfigError, match=r"settings\.xml are not well-formed"):
        central_mirror()
