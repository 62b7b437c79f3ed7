"""No secret of a configuration is shown, and what keeps secrets is looked at."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.configurations import BASE, faults_of, good, route_with, table_with


def test_a_secret_file_that_everybody_reads_is_noted(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://db/shop")
    (tmp_path / "url").chmod(0o644)

    config = good(BASE.replace("sqlite:///shop.db", "${file:url}"), tmp_path)

    assert "chmod" in config.notes[0]


CANARY = "c4n4ry"


@pytest.mark.parametrize(
    "text",
    [
        BASE.replace("sqlite:///shop.db", f"mysql://bob:{CANARY}@db/shop"),
        BASE.replace('url = "sqlite:///shop.db"', f'url = ["postgresql://bob:{CANARY}@db/shop"]'),
        BASE.replace(
            'url = "sqlite:///shop.db"', f'url = "sqlite:///x"\nmigrate_url = "postgresql://b:{CANARY}@h/d"'
        ),
        BASE.replace('url = "sqlite:///shop.db"', f'ulr = "postgresql://bob:{CANARY}@db/shop"'),
        BASE.replace("[kafka]", f'[kafka]\n"sasl.password" = "{CANARY}"'),
        BASE.replace("[kafka]", f'[kafka]\n"ssl.key.password" = "{CANARY}"\n"sasl.username" = "x"'),
        BASE.replace("[kafka]", f'[kafka]\n"sasl.oauthbearer.client.secret" = "{CANARY}"'),
        BASE.replace("[kafka]", f"""[kafka]\n"sasl.jaas.config" = 'x required password="{CANARY}";'"""),
        BASE.replace("sqlite:///shop.db", f"postgresql://bob:a/{CANARY}@db/shop"),
        BASE + f'[queues.q]\nstore = "postgresql://bob:a/{CANARY}@db/shop"\nsubscribers = {{ a = {{}} }}\n',
        BASE + f'[queues.q]\nstore = "postgresql://bob:a@{CANARY}@db/shop"\nsubscribers = {{ a = {{}} }}\n',
        BASE.replace('instance = "a"', 'instance = "${env:SECRET}/"'),
        BASE.replace(
            "[resources.shop]", f'[resources]\nother = "postgresql://bob:{CANARY}@db/shop"\n[resources.shop]'
        ),
        route_with("").replace('["orders"]', '["${env:SECRET}/"]'),
        table_with('mode = "sql", sql = "insert into x values (%(${env:SECRET})s)"'),
    ],
)
def test_no_fault_shows_a_secret(text: str, tmp_path: Path) -> None:
    faults = faults_of(text, tmp_path, SECRET=CANARY)

    assert faults
    assert CANARY not in " ".join(str(fault) for fault in faults)


def test_printing_a_configuration_shows_no_secret(tmp_path: Path) -> None:
    text = BASE.replace("sqlite:///shop.db", f"postgresql://bob:{CANARY}@db/shop").replace(
        "[kafka]",
        f'[kafka]\n"sasl.password" = "{CANARY}"\n"sasl.username" = "bob"\n"security.protocol" = "sasl_ssl"\n'
        f'"ssl.key.pem" = "{CANARY}"',
    )

    config = good(text, tmp_path)

    for shown in (repr(config), str(config), repr(config.kafka), f"{config.kafka}", repr(config.resources)):
        assert CANARY not in shown
    assert config.kafka["sasl.password"] == CANARY


SECURE = BASE.replace(':9092"', ':9092"\n"security.protocol" = "ssl"\n"ssl.ca.location" = "{}"')


def test_a_certificate_lies_beside_the_file_as_every_path_does(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----")
    (tmp_path / "authorities").mkdir()

    for written in ("ca.pem", str(tmp_path / "ca.pem"), "authorities"):
        assert good(SECURE.format(written), tmp_path).kafka["ssl.ca.location"] == str(tmp_path / written)
    assert good(SECURE.format("probe"), tmp_path).kafka["ssl.ca.location"] == "probe", "the client's word, and no path"


def test_a_certificate_that_is_not_there_is_told_before_any_broker_is_asked(tmp_path: Path) -> None:
    (fault,) = faults_of(SECURE.format("absent.pem"), tmp_path)

    assert fault.key == 'kafka."ssl.ca.location"'
    assert "No such file" in fault.problem
    assert "relative to the configuration" in fault.remedy


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ca.pem")

    (fault,) = faults_of(SECURE.format("ca.pem"), tmp_path)

    assert "it is a pipe" in fault.problem


@pytest.mark.timeout(20)
def test_a_secret_in_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "url")

    (fault,) = faults_of(BASE.replace("sqlite:///shop.db", "${file:url}"), tmp_path)

    assert (fault.key, "it is a pipe" in fault.problem) == ("resources.shop.url", True)


def test_the_token_of_clients_is_a_file_beside_the_configuration(tmp_path: Path) -> None:
    lines = '"security.protocol" = "sasl_ssl"\n"sasl.mechanism" = "OAUTHBEARER"\ntoken_file = "token"'
    text = BASE.replace(':9092"', f':9092"\n{lines}')

    (fault,) = faults_of(text, tmp_path)
    (tmp_path / "token").write_text("not-read-by-a-check")

    assert (fault.key, fault.value) == ('kafka."token_file"', "'token'")
    assert "cannot be read" in fault.problem
    assert good(text, tmp_path).kafka["token_file"] == str(tmp_path / "token")
