"""Avro in Spark, byte for byte as the relay writes it: its own records, and values in a schema registry's frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.message.avro_values import FRAME_BYTES as REGISTRY_FRAME_BYTES
from relay.message.avro_values import frame
from relay.message.schemas import FRAME_BYTES, codec, text

if TYPE_CHECKING:
    from pyspark.sql import Column


def from_relay(column: Column, name: str) -> Column:
    """Return a record of ``schemas/<name>.avsc`` as a struct; null where the frame names another schema."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package
    from pyspark.sql.avro.functions import from_avro  # noqa: PLC0415 - see the package

    framed = sql.substring(column, 1, FRAME_BYTES) == sql.unhex(sql.lit(codec(name).frame.hex()))
    body = sql.when(framed, column.substr(sql.lit(FRAME_BYTES + 1), sql.length(column)))
    return from_avro(body, text(name))


def to_relay(column: Column, name: str) -> Column:
    """Return a struct with the fields of ``schemas/<name>.avsc`` as the relay writes it."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package
    from pyspark.sql.avro.functions import to_avro  # noqa: PLC0415 - see the package

    return sql.concat(sql.unhex(sql.lit(codec(name).frame.hex())), to_avro(column, text(name)))


def from_framed(column: Column, schema: str, number: int) -> Column:
    """Return a value of the schema that a registry knows by this number as a struct; null where the frame is another."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package
    from pyspark.sql.avro.functions import from_avro  # noqa: PLC0415 - see the package

    framed = sql.substring(column, 1, REGISTRY_FRAME_BYTES) == sql.unhex(sql.lit(frame(number).hex()))
    body = sql.when(framed, column.substr(sql.lit(REGISTRY_FRAME_BYTES + 1), sql.length(column)))
    return from_avro(body, schema)


def to_framed(column: Column, schema: str, number: int) -> Column:
    """Return a struct as ``Capture.avro`` writes it: framed with the number under which a registry knows the schema."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package
    from pyspark.sql.avro.functions import to_avro  # noqa: PLC0415 - see the package

    return sql.concat(sql.unhex(sql.lit(frame(number).hex())), to_avro(column, schema))
