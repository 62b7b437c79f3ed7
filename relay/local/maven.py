"""A mirror that the machine's Maven settings name is used instead of Maven Central."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from pathlib import Path

from relay.message.errors import ConfigError


def central_mirror() -> str | None:
    """Return the URL of the mirror of Maven Central, or None for Central itself.

    Read are the user's settings, then those of the Maven named by ``MAVEN_HOME`` or ``M2_HOME``
    (Maven settings reference, ``mirrors``); credentials and proxies in them are not used.
    """
    for path in _settings_files():
        if path.is_file():
            mirror = _mirror_in(path)
            if mirror is not None:
                return mirror
    return None


def _settings_files() -> list[Path]:
    homes = [os.environ[name] for name in ("MAVEN_HOME", "M2_HOME") if os.environ.get(name)]
    of_maven = [Path(home, "conf", "settings.xml") for home in homes]
    try:
        return [Path.home() / ".m2" / "settings.xml", *of_maven]
    except RuntimeError:  # a user that the machine does not know, as in some containers, has no settings
        return of_maven


def _mirror_in(path: Path) -> str | None:
    try:
        root = ET.parse(path).getroot()  # noqa: S314 - the user's own configuration file
    except ET.ParseError as error:
        raise ConfigError(
            f"The Maven settings {path} are not well-formed XML ({error}): mend them."
        ) from error
    for mirror in root.iter():
        if _local_name(mirror) != "mirror":
            continue
        values = {_local_name(child): (child.text or "").strip() for child in mirror}
        if _covers_central(values.get("mirrorOf", "")) and values.get("url"):
            return values["url"]
    return None


def _local_name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _covers_central(mirror_of: str) -> bool:
    """Maven's own rule: a list of ids, ``*``, ``external:*``, with ``!id`` taking an id out."""
    ids = [word.strip() for word in mirror_of.split(",")]
    return "!central" not in ids and not {"central", "*", "external:*"}.isdisjoint(ids)
