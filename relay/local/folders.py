"""Where a command puts what it makes: an empty folder that was named, or a temporary one."""

from __future__ import annotations

import tempfile
from pathlib import Path

from relay.message.errors import ConfigError
from relay.message.limits import raise_limit


def empty_folder(named: Path | None, prefix: str, option: str = "--dir") -> Path:
    """Return an empty folder, made if it is not there; raises ConfigError, which calls the folder by the option that named it."""
    try:
        if named is None:
            return Path(tempfile.mkdtemp(prefix=prefix))
        if named.exists() and (not named.is_dir() or any(named.iterdir())):
            raise ConfigError(f"{option} {named}: not an empty directory; name one that is empty or does not exist")
        named.mkdir(parents=True, exist_ok=True)
        return named.resolve()
    except OSError as error:
        raise_limit(error)
        if named is None:
            raise ConfigError(f"no temporary directory can be used ({error.strerror}); set TMPDIR to one that you may write") from error
        raise ConfigError(f"{option} {named} cannot be used ({error.strerror}); name a directory that you may write") from error
