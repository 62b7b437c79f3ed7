"""What the jobs join and where they archive, held against plain Python: one session without a broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import functions

from relay.jobs.session import hide_keys
from relay.message.errors import ConfigError
from spark.correlate import _as_json, _joining
from tests.integration import test_spark_frames

spark = test_spark_frames.spark
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_what_only_begins_as_json_is_a_text_of_a_joined_message(spark: Any) -> None:
    """Spark reads one value of a text and looks at nothing behind it: as such the message was none, or had other parts."""
    texts = ["42 apples", "true story", '{"a": 1} {"b": 2}', '{"a": 1}, "weather": {"wind": 9}', "{} ] x", "1], [2", "1, 2", "", "nul"]
    values = ['{"a": [1, {"b": null}]}', ' "x"\n', "[]", "-1.5e3", "true", "null"]
    frame = spark.createDataFrame([(one,) for one in texts + values], "value string")

    found = [row[0] for row in frame.select(_as_json(functions.col("value"))).collect()]

    assert [json.loads(one) for one in found] == texts + [json.loads(one) for one in values]


def test_a_pointer_finds_what_json_pointers_find(spark: Any) -> None:
    value = {"a/b": 1, "~": 2, "d.e": 3, "items": [4, {"x": 5}], "n": {"0": 6}}
    frame = spark.createDataFrame([(json.dumps(value),)], "value string")

    def joined(on: str) -> Any:
        return frame.select(_joining(on)).collect()[0][0]

    assert [joined(on) for on in ("/a~1b", "/~0", "/d.e", "/items/0", "/items/1/x", "/n/0")] == ["1", "2", "3", "4", "5", "6"]
    assert json.loads(joined("/a~1b,/n/0")) == ["1", "6"]
    assert joined("/none,/n/0") is None
    for on in ("origin", "", "/", "/o'clock", "/*"):
        with pytest.raises(ConfigError, match="--on"):
            joined(on)


def test_sparks_pages_and_event_logs_hide_a_private_key_among_a_writers_options(spark: Any) -> None:
    """Spark hides what has password, secret or token in it, and an unencrypted key has none of these words."""
    key = {"kafka.ssl.keystore.key": "-----BEGIN PRIVATE KEY-----\nunencrypted\n-----END PRIVATE KEY-----"}
    options = {"url": "jdbc:none", "dbtable": "plain", **key}  # written in Spark's plans as those of the Kafka sink are
    hide_keys(spark)
    hide_keys(spark)

    with pytest.raises(Exception, match="No suitable driver"):
        spark.createDataFrame([("v",)], "value string").write.format("jdbc").options(**options).save()

    shown = spark._jsparkSession.sharedState().statusStore().executionsList()
    plan = shown.apply(shown.size() - 1).physicalPlanDescription()
    assert "dbtable=plain" in plan
    assert "unencrypted" not in plan
    assert spark.conf.get("spark.sql.redaction.options.regex") == "(?i)url|PRIVATE KEY-----"
