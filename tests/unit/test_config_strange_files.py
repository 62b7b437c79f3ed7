"""Files that a configuration names, and itself, as editors, empty variables and slips leave them: read, or named in a sentence."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from relay.config.loading import load
from tests.unit.configurations import BASE, faults_of, good

MARK = "\ufeff"
SECURE = BASE.replace(':9092"', ':9092"\n"security.protocol" = "ssl"\n"{}" = "{}"')


def test_a_byte_order_mark_before_a_configuration_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text(MARK + BASE, "utf-8")

    assert load(tmp_path / "relay.toml").relay.name == "shop"


def test_a_byte_order_mark_before_a_secret_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"{MARK}sqlite:///shop.db\r\n", "utf-8")

    config = good(BASE.replace("sqlite:///shop.db", "${file:url}"), tmp_path)

    assert config.resources["shop"].url.get_secret_value() == f"sqlite:///{tmp_path}/shop.db"


@pytest.mark.timeout(20)
def test_a_secret_in_a_device_is_refused_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "url").symlink_to("/dev/zero")

    (fault,) = faults_of(BASE.replace("sqlite:///shop.db", "${file:url}"), tmp_path)

    assert (fault.key, "it is a device" in fault.problem) == ("resources.shop.url", True)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("make", "said"), [(os.mkfifo, "it is a pipe"), (lambda path: path.symlink_to("/dev/zero"), "it is a device")])
def test_a_schema_in_a_pipe_or_a_device_is_refused_and_not_read(tmp_path: Path, make: Callable[[Path], None], said: str) -> None:
    make(tmp_path / "order.avsc")
    text = BASE + '[routes.main]\nfrom = ["orders"]\nto = { topic = "ledger", schema = "order.avsc" }\n'

    (fault,) = faults_of(text, tmp_path)

    assert (fault.key, said in fault.problem) == ("routes.main.to.schema", True)


@pytest.mark.parametrize("key", ["ssl.ca.location", "ssl.certificate.location"])
def test_a_setting_of_a_file_that_an_empty_variable_leaves_without_a_name_is_refused(tmp_path: Path, key: str) -> None:
    (fault,) = faults_of(SECURE.format(key, "${env:NOTHING}"), tmp_path, NOTHING="")

    assert (fault.key, fault.problem) == (f'kafka."{key}"', "it names nothing")


def test_only_authorities_may_lie_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "certificates").mkdir()

    good(SECURE.format("ssl.ca.location", "certificates"), tmp_path)
    (fault,) = faults_of(SECURE.format("ssl.certificate.location", "certificates"), tmp_path)

    assert (fault.key, "Is a directory" in fault.problem) == ('kafka."ssl.certificate.location"', True)


def test_an_empty_variable_does_not_make_the_configurations_folder_the_state(tmp_path: Path) -> None:
    text = BASE.replace('instance = "a"', 'instance = "a"\nstate = "${env:NOTHING}"')

    (fault,) = faults_of(text, tmp_path, NOTHING="")

    assert (fault.key, fault.problem) == ("relay.state", "it names nothing")
    assert good(text, tmp_path, NOTHING=".").relay.state == tmp_path
