"""A stand-in for a schema registry: what Confluent's REST interface answers for the requests that the client makes.

It is not a registry: it compares schemas as texts, and calls incompatible what it is told to. Tests make it refuse, be slow
or talk nonsense. The interface is Confluent's "Schema Registry API Reference".
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import NAMESPACE_URL, UUID, uuid5


class RegistryServer:
    """Schemas by number, versions by subject; ``requests`` are the paths asked for."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[str] = []
        self.texts: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.user: tuple[str, str] | None = None
        self.answer_with: tuple[int, bytes] | None = None
        self.incompatible: set[str] = set()
        self.hang: threading.Event | None = None
        outer = self

        class Requests(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.serve(self, None)

            def do_POST(self) -> None:
                outer.serve(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self.hang is not None:
            self.hang.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def add(self, subject: str, schema: Any, references: list[dict[str, Any]] | None = None, kind: str = "AVRO") -> int:
        """Register a schema as a publisher would have; returns its number."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        entry = {"schema": text, "schemaType": kind, "references": references or []}
        number = next((number for number, known in self.texts.items() if known == entry), len(self.texts) + 1)
        self.texts[number] = entry
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    @staticmethod
    def guid(number: int) -> UUID:
        return uuid5(NAMESPACE_URL, str(number))

    def serve(self, request: BaseHTTPRequestHandler, body: Any) -> None:
        path = unquote(urlsplit(request.path).path)
        self.requests.append(path)
        if self.hang is not None:
            self.hang.wait(30)
        status, found = self._answer(path, body, request.headers.get("Authorization"))
        raw = found if isinstance(found, bytes) else json.dumps(found).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        request.send_header("Content-Length", str(len(raw)))
        request.end_headers()
        request.wfile.write(raw)

    def _answer(self, path: str, body: Any, authorization: str | None) -> tuple[int, Any]:
        if self.answer_with is not None:
            return self.answer_with
        if self.user is not None:
            wanted = "Basic " + base64.b64encode(":".join(self.user).encode()).decode()
            if authorization != wanted:
                return 401, {"error_code": 401, "message": "Unauthorized"}
        return self._found(path, body)

    def _found(self, path: str, body: Any) -> tuple[int, Any]:  # noqa: PLR0911 - one for each path
        match path.strip("/").split("/"):
            case ["schemas", "types"]:
                return 200, ["AVRO"]
            case ["schemas", "ids", number] if int(number) < 1 << 31:  # beyond, it is no page of a registry written in Java
                return self._schema(int(number))
            case ["schemas", "guids", guid]:
                return self._schema(next((n for n in self.texts if str(self.guid(n)) == guid), 0))
            case ["subjects", subject] if body is not None:
                return self._look_up(subject, body)
            case ["subjects", subject, "versions"] if body is not None:
                if subject in self.incompatible:
                    return 409, {"error_code": 409, "message": "incompatible"}
                return self._schema(self.add(subject, body["schema"], body.get("references")))
            case ["subjects", subject, "versions", version]:
                return self._version(subject, int(version))
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _schema(self, number: int) -> tuple[int, Any]:
        if number not in self.texts:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return 200, {"id": number, **self.texts[number], "guid": str(self.guid(number))}

    def _look_up(self, subject: str, body: Any) -> tuple[int, Any]:
        if subject not in self.subjects:
            return 404, {"error_code": 40401, "message": "Subject not found"}
        for version, number in enumerate(self.subjects[subject], 1):
            if self.texts[number]["schema"] == body["schema"]:
                return self._version(subject, version)
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _version(self, subject: str, version: int) -> tuple[int, Any]:
        versions = self.subjects.get(subject, [])
        if not 1 <= version <= len(versions):
            return 404, {"error_code": 40402, "message": "Version not found"}
        number = versions[version - 1]
        return 200, {**self._schema(number)[1], "subject": subject, "version": version}


@contextmanager
def registry_server(tls: ssl.SSLContext | None = None) -> Iterator[RegistryServer]:
    """Run a stand-in for the length of a block."""
    server = RegistryServer(tls)
    server.start()
    try:
        yield server
    finally:
        server.stop()
