"""What a crash of the machine may leave of the records of local services: files without content."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relay.cli.main import app
from relay.local import kafka
from relay.local.jars import KAFKA_VERSION
from relay.local.kafka import ClusterPlan, KafkaCluster
from relay.local.postgres import PostgresServer
from relay.local.services import LocalServices
from relay.message.errors import CheckFailed, ConfigError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "kafka" / "1").mkdir(parents=True)
    (tmp_path / "postgres").mkdir()
    ClusterPlan.new(1, None, None).write(tmp_path / "kafka" / "cluster.json")
    return tmp_path


@pytest.mark.parametrize("torn", ["kafka/1/process.json", "postgres/process.json", "postgres/access.json", "services.json"])
def test_a_record_without_content_stops_no_command(directory: Path, torn: str) -> None:
    (directory / "services.json").write_text('{"postgres": true}')
    (directory / torn).write_text("")

    status = CliRunner().invoke(app, ["dev", "status", "--dir", str(directory)])
    down = CliRunner().invoke(app, ["dev", "down", "--dir", str(directory)])

    assert (status.exit_code, down.exit_code) == (3, 0), "nothing runs, and nothing is to be stopped"


def test_services_without_content_still_find_the_database_of_the_directory(directory: Path) -> None:
    (directory / "services.json").touch()
    (directory / "postgres" / "access.json").write_text('{"port": 5, "password": "p"}')

    found = LocalServices.find(directory)

    assert found is not None
    assert found.postgres == "postgresql://postgres:p@127.0.0.1:5/postgres"


def test_a_directory_whose_name_is_not_utf8_can_be_named(tmp_path: Path) -> None:
    directory = tmp_path / "not-utf8-\udcff"
    (directory / "kafka").mkdir(parents=True)
    ClusterPlan.new(1, None, None).write(directory / "kafka" / "cluster.json")

    for words, said in ((["down"], "Nothing ran in"), (["down", "--json"], '"stopped"')):
        done = subprocess.run(
            [sys.executable, "-m", "relay.cli.main", "dev", *words, "--dir", str(directory)],
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert said in done.stdout


@pytest.mark.parametrize("name", ["", "x" * 5000, "not-utf8-\udcff"])
def test_what_is_no_topics_name_is_a_usage_error(directory: Path, name: str) -> None:
    said = CliRunner().invoke(app, ["dev", "topic", "orders", name, "--dir", str(directory)])

    assert said.exit_code == 2
    assert "not a topic's name" in said.output or "not UTF-8" in said.output


def test_a_cluster_without_content_is_named(directory: Path) -> None:
    (directory / "kafka" / "cluster.json").write_text("")

    said = CliRunner().invoke(app, ["dev", "down", "--dir", str(directory)])

    assert said.exit_code == 1
    assert "cluster.json cannot be read" in said.output


def test_a_database_whose_address_is_without_content_is_named(directory: Path) -> None:
    (directory / "postgres" / "access.json").touch()

    with pytest.raises(CheckFailed, match=r"access\.json cannot be read.*Start from another directory"):
        PostgresServer(directory / "postgres").start()


def test_what_is_measured_on_a_database_needs_one(directory: Path) -> None:
    (directory / "services.json").write_text('{"postgres": false}')

    said = CliRunner().invoke(app, ["bench", "topic", "table", "--dir", str(directory)])

    assert said.exit_code == 2
    assert f"table: --dir {directory} has no PostgreSQL; run `relay dev up --dir" in said.stderr


def test_a_kept_process_is_found_again(directory: Path) -> None:
    cluster = KafkaCluster.find(directory / "kafka")
    assert cluster is not None
    kafka.RecordedProcess.of(1).keep(directory / "kafka" / "1" / "process.json")

    found = cluster.process(1)

    assert found is not None
    assert found.pid == 1


def test_data_of_one_kafka_is_not_opened_with_another(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=f"set up with Kafka {KAFKA_VERSION} and 3.6.2 is asked for"):
        LocalServices.up(directory, kafka_version="3.6.2")
    monkeypatch.setenv("RELAY_KAFKA_VERSION", "3.9.1")
    with pytest.raises(ConfigError, match=r"3\.9\.1 is asked for, by --kafka-version or RELAY_KAFKA_VERSION"):
        LocalServices.up(directory)


def test_a_directory_keeps_its_version_of_kafka_and_one_without_has_the_first(directory: Path) -> None:
    path = directory / "kafka" / "cluster.json"
    plan = ClusterPlan.new(1, None, None, "3.6.2")
    plan.write(path)

    kept = ClusterPlan.read(path)
    path.write_text(json.dumps({name: value for name, value in asdict(plan).items() if name != "version"}))
    of_before = ClusterPlan.read(path)

    assert kept == plan
    assert of_before == replace(plan, version=KAFKA_VERSION)
