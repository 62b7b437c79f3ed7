"""The answers over HTTP, and who may have them: this machine, or whoever knows the token; nobody can change anything."""

from __future__ import annotations

import hmac
import socket
from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from relay.control.status import document
from relay.serve.connections import BoundedListener, tell_of_the_server
from relay.serve.metrics import metrics
from relay.serve.page import page
from relay.serve.watching import Watching

CONNECTIONS_AT_ONCE: Final = 64
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]", "::1")
"""Another name for this machine in a request is a trick of a page elsewhere that a browser here has open."""
_OPEN_TO_ALL: Final = ("/livez", "/readyz", "/healthz")
"""They tell no more than yes or no, and those who ask have no token."""
_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True)
class Door:
    """Who may ask. ``token`` None: whoever reaches the port. ``names``: by which the machine may be called, None: any."""

    token: str | None = None
    names: tuple[str, ...] | None = LOOPBACK_NAMES


class _Sight(Collector):
    def __init__(self, watching: Watching, version: str) -> None:
        self._watching = watching
        self._version = version

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of what was seen last."""
        seen = self._watching
        return metrics(seen.sight, version=self._version, age_s=seen.age_s(), ready=seen.is_ready)


class _Guard:
    """Asks for the token and says to browsers what they may do with an answer."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._may_pass(scope):
            await self._app(scope, receive, send)
            return
        refusal = PlainTextResponse("the token is missing or wrong\n", 401, {"www-authenticate": 'Basic realm="relay"'})
        await refusal(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        if self._token is None or scope["path"] in _OPEN_TO_ALL:
            return True
        return _knows(Headers(scope=scope).get("authorization", ""), self._token)


def _knows(authorization: str, token: str) -> bool:
    """Is it ``Bearer TOKEN``, or for browsers ``Basic`` with the token as the password?"""
    scheme, _, given = authorization.encode("latin-1").partition(b" ")  # the bytes that came
    if scheme.lower() == b"basic":
        try:
            given = b64decode(given, validate=True).partition(b":")[2]
        except ValueError:  # no Base64
            return False
    elif scheme.lower() != b"bearer":
        return False
    return hmac.compare_digest(given, token.encode())


def application(relay: str, version: str, watching: Watching, door: Door) -> Starlette:
    """Return the application: ``/`` for people, ``/status`` and ``/metrics`` for programs, ``/livez`` and ``/readyz``."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Sight(watching, version))

    async def home(_: Request) -> Response:
        return HTMLResponse(page(relay, watching.sight, watching.problem, watching.age_s()), headers=_HEADERS)

    async def status(_: Request) -> Response:
        sight = watching.sight
        if sight is None:
            return _json({"relay": relay, "ok": False, "problem": watching.problem}, 503)
        told = document(relay, sight.at_ms, sight.routes, sight.notes)
        ready = watching.is_ready
        told |= {"ok": told["ok"] and ready and sight.is_whole, "problem": watching.problem, "queues": dict(sight.queues)}
        return _json(told, 200 if ready else 503)

    async def scrape(request: Request) -> Response:
        try:
            encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        except (TypeError, ValueError):  # the library reads no version in quotes, or of other than numbers
            encoder, content_type = choose_encoder("")
        return Response(encoder(registry), media_type=content_type, headers=_HEADERS)

    async def live(_: Request) -> Response:
        return _word(watching.is_alive, "alive", "the look at brokers and stores does not end")

    async def ready(_: Request) -> Response:
        return _word(watching.is_ready, "ready", "brokers were not seen; the page says why")

    routes = [
        Route("/", home),
        Route("/status", status),
        Route("/metrics", scrape),
        *(Route(path, live) for path in ("/livez", "/healthz")),
        Route("/readyz", ready),
    ]
    guards = [Middleware(_Guard, door.token)]
    if door.names is not None:
        guards.insert(0, Middleware(TrustedHostMiddleware, allowed_hosts=list(door.names), www_redirect=False))
    return Starlette(routes=routes, middleware=guards)


def _json(told: Mapping[str, object], status: int) -> Response:
    return JSONResponse(told, status, headers=_HEADERS)


def _word(good: bool, yes: str, no: str) -> Response:
    return PlainTextResponse(f"{yes if good else no}\n", 200 if good else 503, _HEADERS)


def serve(application: Starlette, listening: socket.socket, tls: tuple[str, str] | None) -> None:
    """Answer on a socket until a signal ends it; ``tls`` is the certificate's file and its key's."""
    certificate, key = tls or (None, None)
    tell_of_the_server()
    config = uvicorn.Config(
        application,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        loop="asyncio",  # uvloop accepts behind the back of a socket that counts
        http="h11",
        backlog=2 * CONNECTIONS_AT_ONCE,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        timeout_graceful_shutdown=2,
        ws="none",
    )
    uvicorn.Server(config).run(sockets=[BoundedListener(listening, CONNECTIONS_AT_ONCE)])
