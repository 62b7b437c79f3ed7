"""The section that names a schema registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.configurations import BASE, faults_of, good, table_with


def registry_with(lines: str) -> str:
    return f"{BASE}\n[registry]\n{lines}\n"


def test_a_registry_stands_in_for_schema_files(tmp_path: Path) -> None:
    words = 'url = "https://registry:8081/"\nuser = "relay"\npassword = "${env:REGISTRY_PASSWORD}"\ntimeout = "500ms"'
    text = table_with('mode = "insert"').replace("ce:id", "avro:id") + 'identity = ["avro:id"]\n'

    config = good(text + f"[registry]\n{words}\n", tmp_path, REGISTRY_PASSWORD="canary")

    assert config.registry is not None
    assert (config.registry.url, config.registry.timeout) == ("https://registry:8081", 0.5)
    assert config.registry.credentials == "relay:canary"
    assert "canary" not in repr(config)
    assert good(BASE, tmp_path).registry is None


@pytest.mark.parametrize(
    ("lines", "key", "words"),
    [
        ("", "registry.url", "missing"),
        ('url = "registry:8081"', "registry.url", "not the address"),
        ('url = "ftp://registry"', "registry.url", "not the address"),
        ('url = "https://:8081"', "registry.url", "not the address"),
        ('url = "https://a:99999"', "registry.url", "not an address"),
        ('url = "https://relay:canary@registry"', "registry.url", "no password"),
        ('url = "https://a,https://b"', "registry.url", "more than one"),
        ('url = "http://registry:8081"', "registry.url", "not encrypted"),
        ('url = "https://a"\nuser = "relay"', "registry.user", "needs a password"),
        ('url = "https://a"\npassword = "canary"', "registry.user", "needs a password"),
        ('url = "https://a"\nuser = "re:lay"\npassword = "canary"', "registry.user", "pattern"),
        ('url = "https://a"\nca = "absent.pem"', "registry.ca", "cannot be read"),
        ('url = "https://a"\ntimeout = "5m"', "registry.timeout", "60"),
        ('url = "https://a"\ncache = 0', "registry.cache", "1"),
        ('url = "https://a"\ntoken = "canary"', "registry.token", "not a setting"),
    ],
)
def test_a_wrong_registry_is_one_fault_with_its_remedy(lines: str, key: str, words: str, tmp_path: Path) -> None:
    (fault,) = faults_of(registry_with(lines), tmp_path)

    assert fault.key == key
    assert words in f"{fault.problem} {fault.remedy}"
    assert "canary" not in str(fault)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8081", "http://[::1]:8081", "http://localhost"])
def test_a_registry_on_this_machine_may_be_plain(url: str, tmp_path: Path) -> None:
    good(registry_with(f'url = "{url}"'), tmp_path)


def test_plain_http_elsewhere_must_be_allowed(tmp_path: Path) -> None:
    text = registry_with('url = "http://registry:8081"')
    good(text.replace('instance = "a"', 'instance = "a"\nallow_plaintext = true'), tmp_path)
