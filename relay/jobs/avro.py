"""The relay's own records in Spark: framed as ``relay.message.schemas`` frames them, byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
