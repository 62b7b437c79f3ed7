"""What the Spark jobs decide without Spark: settings of the JVM's client, trimming records, pages."""

from __future__ import annotations

import locale
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from relay.audit.verify import COUNTS, MORE_COUNTS
from relay.config.model import RelayConfig
from relay.jobs import session
from relay.jobs.archived import ArchivedUpTo, decode, made_again
from relay.jobs.following import Following, _sentence, exists
from relay.jobs.page import bars, lines, page
from relay.jobs.records import Broker, java_settings
from relay.jobs.windows import Window
from relay.local import spark as submitting
from relay.message.errors import ConfigError, RelayError, Unreachable
from spark import archive, audit, capture, correlate, flights


def test_the_jvms_client_is_told_what_the_relays_own_is_told() -> None:
    found = java_settings(
        {
            "bootstrap.servers": "a:1", "security.protocol": "sasl_ssl", "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "ann", "sasl.password": 'a"b\\c', "ssl.ca.location": "/ca.pem", "linger.ms": "5",
        }
    )  # fmt: skip

    assert found == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="ann" password="a\\"b\\\\c";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
    }


@pytest.mark.parametrize("is_in_files", [True, False])
def test_the_jvms_client_shows_the_same_certificate(tmp_path: Path, *, is_in_files: bool) -> None:
    given = {"ssl.certificate": "chain", "ssl.key": "key"}
    for name, text in given.items():
        (tmp_path / name).write_text(text, "utf-8")
    own = {f"{name}.location": str(tmp_path / name) for name in given} if is_in_files else {f"{name}.pem": text for name, text in given.items()}

    found = java_settings({"bootstrap.servers": "a:1", "security.protocol": "ssl", "ssl.ca.pem": "ca", "ssl.key.password": "secret", **own})

    assert found == {
        "bootstrap.servers": "a:1", "security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.certificates": "ca",
        "ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": "chain", "ssl.keystore.key": "key", "ssl.key.password": "secret",
    }  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        {"security.protocol": "ssl", "ssl.keystore.location": "/k.p12"},
        {"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER", "token_file": "/token"},
    ],
)
def test_a_setting_without_a_counterpart_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=f"{[*given][-1]} is not taken over to Spark"):
        java_settings({"bootstrap.servers": "a:1", **given})


def test_authorities_of_the_machine_are_the_jvms_own_and_a_folder_of_them_is_refused(tmp_path: Path) -> None:
    """Of a broker that is there it was said that it cannot be used: the JVM took both for a file."""
    given = {"bootstrap.servers": "a:1", "security.protocol": "ssl"}

    assert java_settings({**given, "ssl.ca.location": "probe"}) == {"bootstrap.servers": "a:1", "security.protocol": "SSL"}
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location .*is a folder"):
        java_settings({**given, "ssl.ca.location": str(tmp_path)})


@pytest.mark.parametrize("form", ["EC", "RSA"])
def test_a_key_in_a_form_that_the_jvms_client_does_not_read_is_refused(form: str) -> None:
    """Brokers were called unreachable a minute later (`algid parse error`): the relay's own client reads both forms."""
    given = {"bootstrap.servers": "a:1", "security.protocol": "ssl", "ssl.certificate.pem": "chain"}
    key = "-----BEGIN {0}PRIVATE KEY-----\ncanary\n-----END {0}PRIVATE KEY-----\n"

    with pytest.raises(ConfigError, match=r"kafka\.ssl\.key\.pem .*openssl pkcs8 -topk8") as refused:
        java_settings({**given, "ssl.key.pem": "-----BEGIN EC PARAMETERS-----\n" + key.format(f"{form} ")})

    assert "canary" not in str(refused.value)
    for taken in ("", "ENCRYPTED "):
        assert java_settings({**given, "ssl.key.pem": key.format(taken)})["ssl.keystore.key"] == key.format(taken)


@pytest.mark.parametrize(
    ("chain", "raised", "words"),
    [
        (["KafkaException", "InvalidConfigurationException", "NoSuchAlgorithmException"], ConfigError, "openssl pkcs8 -topk8"),
        (["KafkaException", "ConfigException"], Unreachable, "cannot be used: ConfigException"),
    ],
)
def test_a_certificate_that_the_jvms_client_does_not_take_is_not_called_a_broker_out_of_reach(
    chain: list[str], raised: type[Exception], words: str
) -> None:
    """Its client does not read what `openssl pkcs8` encrypts by default: `PBES2 SecretKeyFactory not available`."""
    inner = None
    for name in reversed(chain):
        thrown = MagicMock()
        thrown.getClass().getSimpleName.return_value = name
        thrown.getCause.return_value = inner
        inner = thrown
    spark = MagicMock()
    create = spark._jvm.org.apache.kafka.clients.admin.AdminClient.create
    create.side_effect = Py4JJavaError("", MagicMock(_target_id="o1", _gateway_client=MagicMock()))
    create.side_effect.java_exception = inner

    with pytest.raises(raised, match=words):
        Broker(spark, {"bootstrap.servers": "a:1"})


def test_what_is_archived_never_goes_back() -> None:
    first = ArchivedUpTo("shop.journal", b"\x01\x02").advanced_by({0: 10, 1: 5})

    later = first.advanced_by({0: 8, 2: 1})

    assert later.positions == {0: 10, 1: 5, 2: 1}
    assert decode(later.key, later.encode()) == later


def test_progress_of_another_topic_of_the_name_is_none_of_this_ones() -> None:
    now, told = {"orders": b"\x02"}, [ArchivedUpTo("orders", b"\x01"), ArchivedUpTo("bills", b"\x02")]

    assert made_again(now, {"orders": "01"}, [], []) == "orders"
    assert made_again(now, {"orders": "02"}, ["orders"], told) is None
    assert made_again(now, {}, ["orders"], told) == "orders", "an earlier version kept no ids beside its progress"
    assert made_again(now, {}, ["orders"], [*told, ArchivedUpTo("orders", b"\x02")]) is None
    assert made_again(now, {}, [], told) is None, "a new archive begins at the beginning"
    assert made_again(now, {"bills": "01"}, ["bills"], []) is None


class Control:
    """The control topic as the archive uses it."""

    def __init__(self) -> None:
        self.put_under: list[bytes] = []

    def under(self, _prefixes: list[bytes]) -> list[tuple[bytes, bytes]]:
        return []

    def put(self, key: bytes, _value: bytes, *, wait: bool) -> None:
        assert wait
        self.put_under.append(key)

    def close(self) -> None: ...


@pytest.mark.parametrize("now", [b"\x02", None])
def test_of_a_topic_that_was_made_again_meanwhile_nothing_is_called_archived(monkeypatch: pytest.MonkeyPatch, now: bytes | None) -> None:
    control, config = Control(), cast("RelayConfig", SimpleNamespace(control_topic="shop.control"))
    ids = {"shop.control": b"\x03"} | ({"orders": now} if now else {})
    monkeypatch.setattr(archive, "_control", lambda _config: control)
    monkeypatch.setattr(archive, "_topic_ids", lambda _config, _topics: ids)

    with pytest.raises(ConfigError, match=r"topic orders was deleted and created again .* another --to"):
        archive._tell(config, {"orders": b"\x01"}, {"orders": {0: 1500}})
    assert control.put_under == []

    ids["orders"] = b"\x01"
    assert archive._tell(config, {"orders": b"\x01"}, {"orders": {0: 1500}}) == {"orders": {"0": 1500}}
    assert control.put_under == [b"archived/orders/01"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"start/main", b"{}"),
        (b"archived/t/zz", b"{}"),
        (b"archived/t/01", b"not JSON"),
        (b"archived/t/01", None),
    ],
)
def test_what_is_no_record_of_the_archive_is_left_alone(key: bytes, value: bytes | None) -> None:
    assert decode(key, value) is None


def route(**counts: int) -> dict[str, Any]:
    """Return a route's report with these counts and two windows of one second."""
    zero = dict.fromkeys((*COUNTS, *MORE_COUNTS), 0)
    windows = [
        {
            **zero,
            **counts,
            "start": f"2026-01-01T00:00:0{n}+00:00",
            "seconds": 1,
            "delay_ms_p50": None,
            "delay_ms_p99": 7,
        }
        for n in range(2)
    ]
    return {
        **zero, **counts, "ok": not counts, "windows": windows, "destination": "topic <out>", "guarantee": "exactly once",
        "offenders": [{"kind": "lost", "place": "log[0]@1", "id": "<script>", "source": "/a", "why": "gone"}], "notes": [],
    }  # fmt: skip


def test_the_page_shows_faults_and_loads_nothing() -> None:
    text = page("Audit", {"main": route(lost=3)})

    assert "Faults: lost" in text
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert re.findall(r"(?:src|href)=", text) == []
    assert "wrong" in text


@pytest.mark.parametrize("start_s", [1_700_000_000_000_000, -1_700_000_000_000_000])
def test_a_window_of_a_time_that_no_calendar_has_is_shown_by_its_number(start_s: int) -> None:
    shown = Window(start_s, 60, {}).document()

    assert shown["start"] == f"@{start_s}", "a producer that takes microseconds for milliseconds must not end the audit"
    told = route(captured=1)
    assert f"@{start_s}" in page("Audit", {"main": {**told, "windows": [{**told["windows"][0], **shown}]}})


def test_a_chart_without_values_is_still_a_chart() -> None:
    assert "<svg" in bars("nothing", [], [("captured", [])])
    assert "<svg" in lines("nothing", [0], [("p50", [None])])


def test_a_querys_progress_leaves_standard_output_to_the_result(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    following = Following("drops", checkpoint=tmp_path, trigger_s=None)

    following._show(SimpleNamespace(recentProgress=[{"batchId": 0, "numInputRows": 7, "stateOperators": []}]))

    assert tuple(capsys.readouterr()) == ("", "drops: batch 0: 7 rows, 7 in all\n")


def test_the_flights_progress_leaves_standard_output_to_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    done = threading.Event()

    class Grown:
        def end(self, _partitions: int) -> int:
            done.set()
            return 3

    flights.watch(Grown(), 1, 6, 0, done)

    assert tuple(capsys.readouterr()) == ("", "flights: 3 of 6 in the log (50 %)\n")


@pytest.mark.parametrize(("written", "limit"), [(3, None), (2, 2), (7, 1)])
def test_the_flights_are_in_the_log_if_it_has_grown_by_as_many(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, written: int, limit: int | None) -> None:
    table, topic = _three_flights(monkeypatch, tmp_path, written)

    assert flights.capture(MagicMock(), topic, table, 1, limit) == (limit or 3)


@pytest.mark.parametrize(("written", "limit"), [(2, None), (0, 1)])
def test_flights_that_the_log_did_not_grow_by_are_missed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, written: int, limit: int | None) -> None:
    table, topic = _three_flights(monkeypatch, tmp_path, written)

    with pytest.raises(flights.Refused, match=f"only {written} were written to 'flights'") as refused:
        flights.capture(MagicMock(), topic, table, 1, limit)
    assert refused.value.code == 1


def _three_flights(monkeypatch: pytest.MonkeyPatch, place: Path, written: int) -> tuple[Path, Any]:
    """Return a table of three and a topic that grows by ``written`` records as they are written."""
    table = place / "flights.csv"
    table.write_text("year\n2013\n2013\n2013\n")
    ends = [5]
    monkeypatch.setattr(flights, "read", MagicMock())
    monkeypatch.setattr(flights, "messages", MagicMock())
    monkeypatch.setattr(flights, "write", lambda *_: ends.append(5 + written))
    return table, SimpleNamespace(name="flights", end=lambda _: ends[-1])


@pytest.mark.parametrize("name", ["", "a/b", "x" * 250])
def test_what_is_no_topics_name_is_refused(capsys: pytest.CaptureFixture[str], name: str) -> None:
    with pytest.raises(ConfigError, match="not a topic's name"):
        Broker.partitions(object.__new__(Broker), name)
    with pytest.raises(SystemExit, match="2"):
        flights.parse(["--topic", name])
    assert "not a topic's name" in capsys.readouterr().err


ARCHIVE = (archive, ["relay.toml", "--topic", "t", "--to", "x"])
AUDIT = (audit, ["relay.toml"])
CAPTURE = (capture, ["relay.toml", "in", "--topic", "t", "--name", "n", "--id", "id"])
CORRELATE = (correlate, ["relay.toml", "--topic", "a", "--topic", "b", "--to", "c", "--name", "n"])


def test_an_archive_of_no_topic_is_refused_with_the_word_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        archive.main(["relay.toml", "--to", "x"])
    assert "--topic" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["inf", "nan", "1e308", "0", "-1", "soon"])
@pytest.mark.parametrize(
    ("job", "option"),
    [
        (ARCHIVE, "--follow"),
        (CAPTURE, "--follow"),
        (CAPTURE, "--files-per-batch"),
        (CORRELATE, "--follow"),
        (CORRELATE, "--window"),
        (CORRELATE, "--watermark"),
        (AUDIT, "--window"),
        (AUDIT, "--tasks"),
    ],
    ids=lambda value: value[0].__name__ if isinstance(value, tuple) else value,
)
def test_a_number_that_is_none_or_beyond_all_use_is_refused(
    capsys: pytest.CaptureFixture[str], job: tuple[Any, list[str]], option: str, given: str
) -> None:
    module, words = job
    with pytest.raises(SystemExit, match="2"):
        module._parse([*words, f"{option}={given}"])

    assert f"argument {option}: {given} is not " in capsys.readouterr().err
    assert module._parse([*words, f"{option}=30"])


@pytest.mark.parametrize(("job", "option"), [(ARCHIVE, "--to"), (CAPTURE, "--name"), (CORRELATE, "--name")], ids=["archive", "capture", "correlate"])
def test_a_name_that_is_empty_is_refused(capsys: pytest.CaptureFixture[str], job: tuple[Any, list[str]], option: str) -> None:
    """As a variable of a shell that is not set leaves it; Spark's own refusal was a traceback."""
    module, words = job
    with pytest.raises(SystemExit, match="2"):
        module._parse([*words, option, ""])

    assert f"argument {option}: it is empty" in capsys.readouterr().err


class Hadoop:
    """Spark's file systems, which note what they are asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=SimpleNamespace(fs=SimpleNamespace(Path=self._path)))))
        self._jsc = SimpleNamespace(hadoopConfiguration=lambda: None)

    def _path(self, text: str) -> Any:
        self.asked.append(text)
        return SimpleNamespace(getFileSystem=lambda _: SimpleNamespace(exists=lambda _: False))


@pytest.mark.parametrize(("module", "words"), [ARCHIVE, CAPTURE, CORRELATE], ids=["archive", "capture", "correlate"])
def test_progress_may_be_kept_under_an_address(module: Any, words: list[str]) -> None:
    """A path of Python's would fold hdfs://store/... to hdfs:/store/..., which is a folder of another store, or of none."""
    spark = Hadoop()

    options = module._parse([*words, "--checkpoint", "hdfs://store:8020/progress"])

    assert not exists(cast("Any", spark), f"{options.checkpoint}/metadata")
    assert spark.asked == ["hdfs://store:8020/progress/metadata"]


def test_a_topic_that_is_named_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["relay.toml", "--topic", "a", "--topic", "b", "--topic", "a", "--to", "c", "--name", "n"]

    assert correlate.main(arguments) == 2
    assert "name each topic once" in capsys.readouterr().err


def test_a_join_into_a_topic_that_it_reads_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Its messages would stand among those of the route that leads there, and the next run would refuse them as a log's."""
    assert correlate.main(["relay.toml", "--topic", "a", "--topic", "b", "--to", "b", "--name", "n"]) == 2
    assert "--to b: it is one of those that are joined; name a log topic" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--report", "--html"])
@pytest.mark.parametrize("place", ["", "away/report", ".", "taken/report"])
def test_a_report_that_could_not_be_written_is_refused_before_the_audit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str, place: str
) -> None:
    (tmp_path / "taken").touch()

    with pytest.raises(SystemExit):
        audit._parse(["relay.toml", option, place and str(tmp_path / place)])

    assert f"argument {option}: " in capsys.readouterr().err
    assert audit._parse(["relay.toml", option, str(tmp_path / "taken")])
    assert audit._parse(["relay.toml", option, str(tmp_path / "new")])
    assert not (tmp_path / "new").exists(), "one that is there tells of an audit that came to its end"


def test_what_the_audit_found_is_said_also_where_its_report_can_no_longer_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = audit._parse(["relay.toml", "--json", "--report", str(tmp_path / "report")])
    options.report = tmp_path / "gone" / "report"

    with pytest.raises(ConfigError, match="report cannot be written"):
        audit._write(options, cast("RelayConfig", None), {}, {})

    assert '"ok": true' in capsys.readouterr().out


@pytest.mark.parametrize("is_new", [True, False])
def test_a_table_that_was_captured_before_is_said_to_be(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, is_new: bool) -> None:
    config = SimpleNamespace(kafka={"bootstrap.servers": "a:1"}, relay=SimpleNamespace(name="shop", state=Path("/state")))
    stubs: dict[str, Any] = {
        "load": config, "Broker": SimpleNamespace(partitions=lambda _: 1), "_read_table": None, "refuse_name_of_files": None,
        "_messages": None, "_capture_table": 3 if is_new else None,
    }  # fmt: skip
    for name, found in stubs.items():
        monkeypatch.setattr(capture, name, lambda *_, found=found: found)
    monkeypatch.setattr(capture.session, "start", lambda *_, **__: None)

    code = capture.main(["relay.toml", "jdbc:x", "--format", "jdbc", "--table", "t", "--topic", "log", "--name", "load", "--id", "id"])

    said = capsys.readouterr()
    assert (code, said.out.partition(" rows")[0]) == (0, "3" if is_new else "0")
    assert ("--name load has captured a table before" in said.err) is not is_new


def test_a_master_with_which_spark_does_not_start_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a traceback of Spark's own Python."""

    def refuse(_: Any) -> None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", refuse)

    with pytest.raises(ConfigError, match=r"^--master foo: Spark does not start \(\[JAVA_GATEWAY_EXITED\].*; correct it"):
        session.start("capture", "foo")
    with pytest.raises(flights.Refused, match=r"^--master foo: Spark does not start \(\[JAVA_GATEWAY_EXITED\].*; correct it") as refused:
        flights.session("foo")
    assert refused.value.code == 2


@pytest.mark.parametrize(("encoding", "is_set"), [("UTF-8", False), ("utf8", False), ("ANSI_X3.4-1968", True), ("ISO-8859-1", True)])
def test_java_spells_the_names_of_files_as_python_does(monkeypatch: pytest.MonkeyPatch, *, encoding: str, is_set: bool) -> None:
    """Under LC_ALL=C an archive in a folder called archïve was written into one called arch?ve, and failed."""
    monkeypatch.setattr(locale, "getencoding", lambda: encoding)
    monkeypatch.setattr(submitting, "connector_jars", lambda *_: [])
    monkeypatch.setattr(submitting, "find_java", lambda: SimpleNamespace(executable=Path("/java/java")))
    monkeypatch.setenv("LC_ALL", "before")

    assert submitting.submission("archive", []).environment["LC_ALL"] == ("C.UTF-8" if is_set else "before")


THROUGH_CSV = "\n\tat org.apache.spark.sql.execution.datasources.csv.CSVFileFormat.$anonfun$buildReader$2(CSVFileFormat.scala:142)"


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("TimeoutException: Topic orders not present in metadata", Unreachable),
        ("[FAILED_READ_FILE.NO_HINT] Encountered error while reading file", ConfigError),
    ],
)
def test_of_what_failed_the_words_tell_whether_the_data_is_wrong_and_no_class_it_went_through(said: str, kind: type) -> None:
    failure = _sentence("orders", said + THROUGH_CSV, Path("checkpoint"), "name", "of its cause")
    assert type(failure) is kind
    failure = _sentence("orders", f"Query x terminated with exception: {said}\n=== Streaming Query ===\nplan: CSV", Path("c"), "name")
    assert type(failure) is kind


@pytest.mark.parametrize(
    ("kind", "words", "code"),
    [
        ("IOException", "mkdir of file:/proc/x failed", 2),
        ("ClassNotFoundException", "Class org.apache.hadoop.fs.s3a.S3AFileSystem not found", 2),
        ("ConnectException", "Connection refused", 3),
    ],
)
def test_a_place_that_spark_cannot_use_is_a_sentence(tmp_path: Path, kind: str, words: str, code: int) -> None:
    """It was a traceback: of the archive's folder, and of where progress is kept."""
    java = MagicMock()
    java.getCause.return_value, java.getMessage.return_value = None, words
    java.getClass.return_value.getSimpleName.return_value = kind
    failed = Py4JJavaError("An error occurred", java)
    spark, writer = Hadoop(), MagicMock()
    spark._jvm.org.apache.hadoop.fs.Path = MagicMock(side_effect=failed)
    writer.option.return_value.queryName.return_value.trigger.return_value.start.side_effect = failed

    with pytest.raises(RelayError, match=f"{kind}: {words}") as refused:
        exists(cast("Any", spark), "s3a://bucket/x")
    with pytest.raises(RelayError, match=f"{kind}: {words}") as unstarted:
        Following("archive", checkpoint=tmp_path, trigger_s=None).write(writer)

    assert (refused.value.exit_code, unstarted.value.exit_code) == (code, code)
