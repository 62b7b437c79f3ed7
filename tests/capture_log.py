"""What the capture tests see of the log and do to the network: a plain reader and a proxy before PostgreSQL."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from relay.capture.outcomes import Marker, decode_marker
from relay.message.identity import capture_id


@dataclass(frozen=True)
class Read:
    """One record of the log."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]
    marker: Marker | None

    @property
    def capture(self) -> bytes:
        return bytes.fromhex(self.headers["ce_relaycapture"].decode())


def read_log(kafka: str, topic: str) -> list[Read]:
    """Read every record up to the high watermarks, partition by partition in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": f"test-{secrets.token_hex(4)}",
            "isolation.level": "read_uncommitted",
            "enable.auto.commit": False,
        }
    )
    try:
        partitions = list(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        ends = {p: _end(consumer, TopicPartition(topic, p)) for p in partitions}
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        found: list[Read] = []
        deadline = time.monotonic() + 20
        while sum(ends.values()) > len(found):
            assert time.monotonic() < deadline, f"read {len(found)} of {ends}"
            for record in consumer.consume(1000, 0.1):
                assert record.error() is None
                headers = record.headers() or []
                marker = decode_marker(record.key(), record.value(), headers)
                found.append(
                    Read(
                        record.partition(),
                        record.offset(),
                        record.key(),
                        record.value(),
                        dict(headers),
                        marker,
                    )
                )
        return sorted(found, key=lambda read: (read.partition, read.offset))
    finally:
        consumer.close()


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    """Return the high watermark; the leader of a topic made just now may not know it yet."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=10)[1])
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def messages(kafka: str, topic: str) -> list[Read]:
    """Return the records that are not markers."""
    return [read for read in read_log(kafka, topic) if read.marker is None]


def shown(kafka: str, topic: str) -> list[Read]:
    """Return the messages behind which a committed marker of their capture stands in their partition."""
    found = read_log(kafka, topic)
    last = {
        (read.partition, read.marker.capture): read.offset
        for read in found
        if read.marker is not None and read.marker.nonce and capture_id(read.marker.nonce) == read.key
    }
    return [
        read
        for read in found
        if read.marker is None and last.get((read.partition, read.capture), -1) > read.offset
    ]


def until(condition: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
    """Ask until the answer is true."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.02)


DECIDING_COMMIT = b"'); commit\x00"
"""How the request ends that decides a capture."""
_PANIC = b"SPANIC\0VPANIC\0C53100\0Mcould not write to file: No space left on device\0\0"
PANIC = b"E" + (len(_PANIC) + 4).to_bytes(4, "big") + _PANIC
"""What a server says that finds no room for its log: it ends with all its connections, and may have written the COMMIT before."""


class DatabaseProxy:
    """Stands before PostgreSQL. ``lose_answer_to`` cuts the connection once the server has answered a command.

    It answers ``instead``. With ``refuse`` that answer ends all others too, and there are no new ones.
    """

    def __init__(self, url: str) -> None:
        facts = conninfo_to_dict(url)
        self._server = (str(facts["host"]), int(facts["port"]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = _with_address(url, self._listener.getsockname()[1])
        self.lose_answer_to: bytes | None = None
        self.instead = b""
        self.silent = False
        self.refuse = False
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End every connection."""
        ends, self._open = self._open, []
        for end in ends:
            self._shut(end)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refuse:
                client.close()
                continue
            server = socket.create_connection(self._server)
            self._open += [client, server]
            threading.Thread(target=self._carry, args=(client, server), daemon=True).start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        lost = threading.Event()
        forward = threading.Thread(target=self._forward, args=(client, server, lost), daemon=True)
        forward.start()
        try:
            self._answer(server, client, lost)
        finally:
            forward.join()
            # Only shut, a socket takes what is sent until its buffer is full: a server with much to say would wait for ever.
            client.close()
            server.close()

    def _forward(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        try:
            while data := client.recv(65536):
                if self.lose_answer_to is not None and self.lose_answer_to in data:
                    lost.set()
                server.sendall(data)
        except OSError:
            pass
        self._shut(server)

    def _answer(self, server: socket.socket, client: socket.socket, lost: threading.Event) -> None:
        try:
            while data := server.recv(65536):
                if lost.is_set():
                    if self.silent:
                        continue
                    if self.refuse:
                        self.cut()  # the database is away: also for the process's other threads
                    client.sendall(self.instead)
                    break
                client.sendall(data)
        except OSError:
            pass
        self._shut(server)
        self._shut(client)

    def _shut(self, end: socket.socket) -> None:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _with_address(url: str, port: int) -> str:
    facts = conninfo_to_dict(make_conninfo(url, host="127.0.0.1", port=port))
    return f"postgresql://{facts['user']}:{facts['password']}@127.0.0.1:{port}/{facts['dbname']}"
