"""`Capture`: many threads, one producer, a connection each; messages exist if and only if their block committed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from relay.capture.async_block import AsyncCaptureBlock, BlockThreads
from relay.capture.block import CaptureBlock
from relay.capture.publisher import Publisher
from relay.kafka.registry import Registry, RegistryLike
from relay.kafka.settings import DefaultTiming, TimingLike
from relay.message import envelope
from relay.message.avro_values import AvroEncoder, parsed_schema
from relay.message.errors import ConfigError
from relay.resources import open_resource
from relay.resources.port import Resource

MAX_MESSAGES: Final = 100_000
MAX_BYTES: Final = 64 << 20
ASYNC_BLOCKS: Final = 32


class Capture:
    """Captures messages together with transactions of one database. Use from any number of threads.

    Only the process that opened it can use it: a fork has none of its threads, and its connections are the parent's. Worker
    processes that are forked open their own. On SQLite the parent must ``close`` before it forks: nothing may have the file
    open then, or its forks are refused.

    A block needs a database session to itself: an address of PgBouncer's transaction mode is refused (ConfigError). It takes
    up to ``max_messages`` and ``max_bytes`` (100,000 and 64 MiB, as with ``open``). ``inquiries`` is the topic on which relays ask
    this process what they cannot ask the database; without it (None) they wait. Of ``relay``, its name, no topic of its own is
    published to. ``registry`` is the configuration's section about a schema registry, which only ``avro`` asks. So many
    ``async_blocks`` are open at once, each with a thread and a connection; others wait until one is over.
    """

    def __init__(
        self,
        *,
        kafka: Mapping[str, str],
        resource: Resource,
        source: str,
        timing: TimingLike | None = None,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = MAX_BYTES,
        inquiries: str | None = None,
        relay: str | None = None,
        registry: RegistryLike | None = None,
        async_blocks: int = ASYNC_BLOCKS,
    ) -> None:
        if not source or not isinstance(source, str):
            raise ConfigError(f"source = {source!r} is no name; give a text that names the publisher, such as '/checkout'")
        if async_blocks < 1:
            raise ConfigError(f"async_blocks = {async_blocks} lets no block begin; give at least 1")
        if "\0" in source or not envelope.is_utf8(source):  # queues would take none of its messages
            raise ConfigError(f"source = {source!r} holds a NUL, or half of a surrogate pair; give a text that names the publisher")
        self._publisher = self._publishing(
            resource,
            source,
            kafka=kafka,
            timing=timing or DefaultTiming(),
            max_messages=max_messages,
            max_bytes=max_bytes,
            inquiries=inquiries,
            relay=relay,
        )
        self._registry = registry
        self._threads = BlockThreads(async_blocks)

    @classmethod
    def open(
        cls, path: str | Path, *, resource: str, source: str, async_blocks: int = ASYNC_BLOCKS
    ) -> Self:
        """Open by a configuration file, with the name of one of its ``[resources]`` and of this publisher (``ce_source``).

        Raises ConfigError, Unreachable.
        """
        from relay.config.loading import load  # noqa: PLC0415 - a Capture without a file needs no configuration

        config = load(Path(path))
        if resource not in config.resources:
            raise ConfigError(
                f"resource = {resource!r} is not among [resources] of {path}: {', '.join(config.resources) or 'none'}"
            )
        url = config.resources[resource].url.get_secret_value()
        opened = open_resource(resource, url, config.timing.resolver_lock_timeout)
        return cls(
            kafka=config.kafka,
            resource=opened,
            source=source,
            timing=config.timing,
            inquiries=config.inquiries_topic,
            relay=config.relay.name,
            registry=config.registry,
            async_blocks=async_blocks,
        )

    def transaction(self) -> CaptureBlock:
        """Return a block for a ``with`` statement; leaving it commits, or rolls back if an exception leaves it.

        The statement raises what the block raises, and: CaptureError (rolled back: run the block again), CaptureFenced (the
        same, since a resolver was first), CaptureInDoubt (the decision row will tell), Unreachable (nothing was begun),
        RowLocked (nothing was begun: others hold the SQLite file), ConfigError (nothing took effect: a right, a topic or a
        table is missing).
        """
        return CaptureBlock(self._publisher)

    def async_transaction(self) -> AsyncCaptureBlock:
        """Return a block for an ``async with`` statement, whose event loop waits neither for the database nor for the log.

        ``await tx.execute(...)``, ``await tx.publish(...)``, ``async with tx.savepoint()``. The statement raises what
        that of ``transaction`` does. One that is cancelled rolls back, unless COMMIT was sent: ``tx.is_committed`` tells.
        """
        return AsyncCaptureBlock(self._publisher, self._threads)

    def avro(
        self, topic: str, schema: Path | Mapping[str, Any], *, subject: str | None = None
    ) -> AvroEncoder:
        """Return the encoder that ``publish(schema=...)`` takes: values in a registry's frame if one is configured, else bare.

        The subject is ``TOPIC-value`` unless given. A registry is asked now, so that no block ever waits for it. Raises
        ConfigError for a schema that cannot be read, is not registered or is refused; Unreachable; Stopped for wrong
        credentials.
        """
        parsed, text = parsed_schema(schema)
        if self._registry is None:
            return AvroEncoder(parsed)
        registry = Registry(self._registry)
        try:
            return AvroEncoder(parsed, registry.number_of(subject or f"{topic}-value", text))
        finally:
            registry.close()

    @property
    def backlog(self) -> int:
        """How many captures of this process are not yet known to be marked."""
        return self._publisher.backlog

    @property
    def in_doubt(self) -> int:
        """How many captures of this process have an unknown outcome."""
        return self._publisher.in_doubt

    def close(self) -> None:
        """Write the markers that are due, then let go of producer and connections. Safe to repeat."""
        self._publisher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _publishing(self, resource: Resource, source: str, **given: Any) -> Publisher:
        """Return what its blocks ask; one for tests asks no broker."""
        return Publisher(resource, source, **given)
