"""PostgreSQL refuses to run as root, so under root it gets an account without rights and a directory of its own."""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relay.local.jars import Tell
from relay.message.errors import ConfigError

_CANDIDATES = ("postgres", "pgserver", "nobody")


@dataclass(frozen=True)
class Account:
    """The system user a server runs as; ``uid`` is None when it is simply the user we are."""

    uid: int | None
    gid: int | None

    @classmethod
    def for_servers(cls) -> Account:
        """Return the present user, or under root the first of postgres, pgserver, nobody that exists."""
        if os.geteuid() != 0:
            return cls(None, None)
        for name in _CANDIDATES:
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(entry.pw_uid, entry.pw_gid)
        raise ConfigError(
            f"PostgreSQL does not run as root and none of the users {', '.join(_CANDIDATES)} exists: run as "
            "another user, create one of them, or give --postgres URL or --no-postgres."
        )

    def process_arguments(self) -> dict[str, Any]:
        """Return what ``subprocess`` needs to start a process under this account."""
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Give ``path`` to the account."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def reach(self, path: Path, tell: Tell) -> None:
        """Let the account pass through the folders above ``path``: search only, they stay unlisted."""
        if self.uid is None:
            return
        for folder in path.resolve().parents:
            mode = folder.stat().st_mode
            if not mode & stat.S_IXOTH:
                tell(f"Letting PostgreSQL's account pass through {folder} (mode o+x)")
                folder.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)
