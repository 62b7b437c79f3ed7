"""Spark as publisher and subscriber of the log: a micro-batch, or a named batch write, is one capture.

``register(spark)`` makes ``df.write.format("relay")`` and ``df.writeStream.format("relay")`` known; ``capture_batch`` does
the same inside ``foreachBatch`` through the JVM's Kafka sink; ``kafka_columns`` gives rows of a plain, at-least-once
job ids by which the relay drops repeats; ``committed`` and ``committed_stream`` read the log, only what counts and each
message once.
"""

from relay.spark.batches import capture_batch
from relay.spark.columns import kafka_columns
from relay.spark.reading import committed, committed_stream
from relay.spark.source import register

__all__ = ["capture_batch", "committed", "committed_stream", "kafka_columns", "register"]
