"""An application as its author types it: mypy, which ``make test`` runs, takes what works and refuses what would fail."""

from __future__ import annotations

from collections.abc import Mapping

from relay import AsyncCaptureBlock, CaptureBlock, Database, Message, subscriber


def headers_of_a_capture(tx: CaptureBlock, texts: Mapping[str, str], raw: Mapping[str, bytes]) -> None:
    """Mappings and pairs, of text and of bytes."""
    tx.publish("orders", headers={"a": "x", "b": b"y"})
    tx.publish("orders", headers={**texts, **raw})
    tx.publish("orders", headers={"a": bytearray(b"x"), "b": memoryview(b"y")})
    tx.publish("orders", headers={})
    tx.publish("orders", headers=texts)
    tx.publish("orders", headers=[("a", "x"), ("a", b"y")])
    tx.publish("orders", headers=[*texts.items(), ("a", b"y")])
    tx.publish("orders", headers=texts.items())
    tx.publish("orders", headers=((name, text.encode()) for name, text in texts.items()))
    tx.publish("orders", headers={"a": None})  # type: ignore[dict-item]
    tx.publish("orders", headers={"a": 1})  # type: ignore[dict-item]
    tx.publish("orders", headers=["a"])  # type: ignore[list-item]


async def headers_of_an_asynchronous_one(tx: AsyncCaptureBlock) -> None:
    """The same."""
    await tx.publish("orders", headers={"a": "x", "b": b"y"})


@subscriber("orders", resource="shop")
def handle(message: Message, db: Database) -> None:
    """A child's headers are those of queues, where one may have no value."""
    db.execute("insert into approval (id) values (%s)", (message.id,))
    message.publish("mail", {"id": 1}, headers={"a": "x", "b": b"y", "c": None})
    message.publish("mail", message.value, headers=message.headers)
