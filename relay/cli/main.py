"""The command ``relay``: names its commands, loads one only when it is called, and turns errors into sentences.

A command's module has a Typer application called ``app``; a package that only one command needs can be missing
without breaking the others. Exit codes: 0 ok, 1 check failed, 2 usage or configuration, 3 unreachable,
130 interrupted, 141 nobody reads what it prints.
"""

from __future__ import annotations

import importlib
import os
import sys
from errno import EDQUOT, EFBIG, ENOSPC
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from relay import __version__
from relay.cli.report import tell_of_waiting, unbroken
from relay.message.errors import ConfigError, RelayError
from relay.message.limits import limit_code, limit_met

INTERRUPTED: Final = 130
UNREAD: Final = 141
"""As of a program that the signal of a closed pipe ends."""
FULL: Final = (ENOSPC, EDQUOT, EFBIG)
"""The disk, the user's part of it, the file that may be no longer (`ulimit -f`)."""

_LOGGING: Final = ("run", "work", "serve")
"""Commands whose log tells what they wait for."""

COMMANDS: Final = {
    "demo": "Show the whole way of a message in one run, with workers killed on the way.",
    "dev": "Start and stop Kafka and PostgreSQL on this machine, and see whether they answer.",
    "migrate": "Create the relay's topics and tables.",
    "check": "Check a configuration and, with --connect, what it names.",
    "run": "Run the workers of a configuration.",
    "work": "Run an application's handlers for one subscriber of a queue.",
    "status": "Show what every route does now.",
    "serve": "Answer probes and scrapes over HTTP: health, metrics, a page; it changes nothing.",
    "queue": "See every queue; pause, drain, resume, purge and move it.",
    "publisher": "List the publishers of queues, hold and resume them.",
    "subscriber": "List the subscribers of queues, pause and resume them.",
    "message": "Look at messages of queues; reveal, prioritise, withdraw, edit and redrive them.",
    "journal": "List what is over in queues, and archive it.",
    "deadletter": "List and show what routes could not deliver, with its cause, and redrive it.",
    "indoubt": "List, show and resolve what no evidence has decided.",
    "unit": "Close a run of a Spark batch that its driver will never decide.",
    "verify": "Prove from the log and the destinations that nothing is lost, doubled or reordered.",
    "chaos": "Strike the relay with seeded accidents, watch and audit it.",
    "spark": "Run a Spark job of the project, such as the one that puts the flights into the log.",
    "bench": "Measure against the plain client in the same run.",
}

app = typer.Typer(
    help="A transactional relay over Kafka: captured with the database, relayed exactly once.",
    epilog="Exit codes of every command: 0 ok, 1 a check failed, 2 usage or configuration, 3 unreachable, 130 interrupted, "
    "141 nobody reads what it prints. With --json standard output has JSON or nothing: then a sentence on standard "
    "error says why. Durations are seconds, or texts such as 90s and 5min.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback with local variables could show a secret.
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"relay {__version__}")
        raise typer.Exit


@app.callback()
def _relay(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _run(name: str, arguments: list[str]) -> int:
    """Load one command, run it, and return its exit code."""
    _open_what_is_closed()
    if isinstance(sys.stdout, TextIOWrapper):
        # Names of files, and texts of strangers, need not be what the output can encode.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _answered(name, arguments)
    except BrokenPipeError:
        _silence()
        return UNREAD
    except (MemoryError, OSError, RuntimeError) as error:
        return _said(f"relay {name}", error)


def _said(command: str, error: MemoryError | OSError | RuntimeError) -> int:
    """Say which limit a command met, or that a disk is full, and return its exit code; any other error is raised again."""
    if (sentence := limit_met(error)) is not None:
        typer.echo(f"{command}: {sentence}", err=True)
        return limit_code(error)
    if isinstance(error, FileNotFoundError) and not _is_somewhere():
        typer.echo(f"{command}: the present directory is not there any more; go to one that is", err=True)
        return 2
    if not isinstance(error, OSError) or error.errno not in FULL:
        raise error
    typer.echo(f"{command}: {error.strerror}: what it wrote is not whole", err=True)
    _silence()
    return 1


def _is_somewhere() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def _open_what_is_closed() -> None:
    """Open nothing where the caller closed standard input, output or error: files opened later would get their numbers.

    A worker's own standard error would take the place of the configuration that is handed to it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))


def _silence() -> None:
    """Let go of what cannot be written: the interpreter would try once more as it ends, and print a traceback."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _check_words(words: list[str]) -> None:
    """Refuse what no record could hold, before anything is done; only the name of a file may be bytes of any kind."""
    for word in words:
        given = word.partition("=")[2] if word.startswith("--") else word
        if any("\ud800" <= one <= "\udfff" for one in given) and not os.path.lexists(given):
            raise ConfigError(f"{given!r} is not UTF-8, and no file is called so; write it in UTF-8")


def _answered(name: str, arguments: list[str]) -> int:
    try:
        _check_words(arguments)
        if name not in _LOGGING and "--json" not in arguments:
            tell_of_waiting()
        module = importlib.import_module(f"relay.cli.{name}")
        code = unbroken(module.app)(arguments, prog_name=f"relay {name}", standalone_mode=False)
        sys.stdout.flush()
    except RelayError as error:
        typer.echo(f"relay {name}: {error}", err=True)
        return error.exit_code
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("relay"):
            typer.echo(f"relay {name}: not part of this version ({error.name} is missing)", err=True)
            return 2
        typer.echo(
            f"relay {name}: the package {error.name} is not installed; "
            "install it, or everything with: pip install '.[local,serve]' in the relay's sources",
            err=True,
        )
        return 2
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return code if isinstance(code, int) else 0


class _Unread(TyperCommand):
    """A command whose own application reads its words: here none is, neither --help nor the -- before a word with a dash."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Leave the words to whom they are for."""
        ctx.args = args
        return args


def _register(name: str, text: str) -> None:
    @app.command(name, help=text, cls=_Unread, add_help_option=False)
    def _command(context: typer.Context) -> None:
        raise typer.Exit(_run(name, list(context.args)))


for _name, _text in COMMANDS.items():
    _register(_name, _text)


def main() -> None:
    """Run what the command line asks for; always ends by SystemExit."""
    try:
        app()
    except SystemExit as ended:
        # The library that draws tables and help ends the process so, as if a check had failed.
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        _silence()
        sys.exit(UNREAD)
    except (MemoryError, OSError, RuntimeError) as error:
        # Of its own help and version: what a command meets is said by whoever runs that.
        sys.exit(_said("relay", error))


if __name__ == "__main__":
    main()
