"""``relay serve CONFIG``: liveness, readiness, metrics and a page over HTTP, from this machine unless told otherwise."""

from __future__ import annotations

import signal
import socket
import ssl
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer

from relay import __version__
from relay.cli.report import ConfigArgument, print_json, print_line
from relay.config.loading import load, text_of
from relay.config.model import RelayConfig
from relay.kafka.settings import is_loopback
from relay.message.errors import ConfigError
from relay.run.logging import setup
from relay.serve.http import LOOPBACK_NAMES, Door, application, serve
from relay.serve.watching import RelayEyes, Watching

PORT: Final = 8480
TOKEN_CHARACTERS: Final = (16, 1000)

app = typer.Typer(add_completion=False)


@app.command("serve")
def serve_command(
    config: ConfigArgument,
    *,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen at; one that other machines reach needs --token-file.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen at; 0: any that is free.")] = PORT,
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="A file with the secret that whoever asks must give; probes need none.")] = None,
    certificate: Annotated[Path | None, typer.Option("--tls-certificate", metavar="FILE", help="PEM; needs --tls-key.")] = None,
    key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="PEM, without a password.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say where it listens, and log, as JSON lines.")] = False,
) -> None:
    """Answer until a signal: / for people, /status (JSON), /metrics (Prometheus), /livez, /readyz; nothing can be changed.

    One process tells of the whole relay, wherever its workers run. The secret is given as `Authorization: Bearer`, or in a
    browser as a password.
    """
    text = text_of(Path(config))
    loaded = load(Path(config), text)
    tls = _tls(certificate, key)
    token = None if token_file is None else _token(token_file)
    _check_host(loaded, host, token, has_tls=tls is not None)
    setup(as_json=True if as_json else None)
    listening = _listen(host, port)
    # After a look that failed its secrets are read again: brokers may want another password by now.
    watching = Watching(lambda: RelayEyes(load(Path(config), text)))
    door = Door(token, (*LOOPBACK_NAMES, host) if is_loopback(host) else None)
    # It may come before the server listens to signals; one that has ended the server is let go on to here.
    signal.signal(signal.SIGTERM, _end)
    try:
        _say(listening, host, has_tls=tls is not None, as_json=as_json)
        serve(application(loaded.relay.name, __version__, watching, door), listening, tls)
    finally:
        watching.close()
        listening.close()


def _end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def _check_host(config: RelayConfig, host: str, token: str | None, *, has_tls: bool) -> None:
    if is_loopback(host):
        return
    if token is None:
        raise ConfigError(
            f"--host {host}: other machines reach it; give --token-file FILE with a secret of at least "
            f"{TOKEN_CHARACTERS[0]} characters, or stay at 127.0.0.1"
        )
    if not has_tls and not config.relay.allow_plaintext:
        raise ConfigError(
            f"--host {host}: the token would cross the network in the clear; give --tls-certificate and --tls-key, or "
            "[relay] allow_plaintext = true where something else encrypts"
        )


def _token(path: Path) -> str:
    try:
        token = path.read_text("utf-8").strip()
    except OSError as error:
        raise ConfigError(
            f"--token-file {path}: the file cannot be read ({error.strerror}); correct the path or its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--token-file {path}: it is no UTF-8 text; give a file with one secret") from error
    least, most = TOKEN_CHARACTERS
    if not least <= len(token) <= most or not token.isprintable() or " " in token:
        raise ConfigError(
            f"--token-file {path}: give one word of {least} to {most} characters, such as `openssl rand -hex 32` prints"
        )
    return token


def _tls(certificate: Path | None, key: Path | None) -> tuple[str, str] | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("--tls-certificate and --tls-key go together; give both")
    try:
        # A key with a password would be asked for on a terminal that nobody sees.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--tls-certificate {certificate} --tls-key {key}: {getattr(error, 'strerror', None) or error}; give a certificate "
            "and its key in PEM, the key without a password"
        ) from error
    return str(certificate), str(key)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()  # from here on nobody is refused: who comes early waits
    except (OSError, UnicodeError) as error:  # the second for a name with an empty part, or one of more than 63 characters
        raise ConfigError(
            f"--host {host} --port {port}: {getattr(error, 'strerror', None) or error}; choose an address of this machine and a free port"
        ) from error
    return listening


def _say(listening: socket.socket, host: str, *, has_tls: bool, as_json: bool) -> None:
    port = listening.getsockname()[1]
    name = f"[{host.strip('[]')}]" if ":" in host else host
    url = f"{'https' if has_tls else 'http'}://{name}:{port}/"
    if as_json:
        print_json({"url": url}, one_line=True)
    else:
        print_line(f"{url}  (also status, metrics, livez, readyz); Ctrl-C ends it")
