"""Records that a well-behaved client cannot write: header names of any bytes, through the C library itself."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import confluent_kafka

_PRODUCER, _TOPIC, _PARTITION, _VALUE, _FLAGS, _HEADERS, _END = 0, 1, 3, 4, 7, 10, 0
_COPY: Final = 2


@cache
def _library() -> ctypes.CDLL:
    folder = Path(confluent_kafka.__path__[0]).parent / "confluent_kafka.libs"
    found = ctypes.CDLL(str(next(folder.glob("librdkafka*"))))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(found, name).restype = ctypes.c_void_p
    return found


def append_raw(kafka: str, topic: str, partition: int, headers: Sequence[tuple[bytes, bytes]], value: bytes) -> None:
    """Append one record whose header names are the given bytes."""
    library = _library()
    error = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(conf, b"bootstrap.servers", kafka.encode(), error, 512)
    producer = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, conf, error, 512))
    assert producer.value, error.value
    made = ctypes.c_void_p(library.rd_kafka_headers_new(len(headers)))
    for name, content in headers:
        library.rd_kafka_header_add(
            made, name, ctypes.c_ssize_t(len(name)), content, ctypes.c_ssize_t(len(content))
        )
    code = library.rd_kafka_producev(
        producer,
        ctypes.c_int(_TOPIC), topic.encode(),
        ctypes.c_int(_PARTITION), ctypes.c_int32(partition),
        ctypes.c_int(_VALUE), value, ctypes.c_size_t(len(value)),
        ctypes.c_int(_FLAGS), ctypes.c_int(_COPY),
        ctypes.c_int(_HEADERS), made,
        ctypes.c_int(_END),
    )  # fmt: skip
    assert code == 0, f"the client library answers {code}"
    assert library.rd_kafka_flush(producer, 30_000) == 0
    library.rd_kafka_destroy(producer)
