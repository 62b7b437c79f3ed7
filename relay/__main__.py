"""The command ``relay``, also as ``python -m relay``: Ctrl-C while it loads its modules ends it like Ctrl-C later on."""

from __future__ import annotations

import sys


def main() -> None:
    """Load the command line and run it; always ends by SystemExit."""
    try:
        from relay.cli.main import main as command  # noqa: PLC0415 - loading it takes a moment, on a cold disk seconds

        command()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
