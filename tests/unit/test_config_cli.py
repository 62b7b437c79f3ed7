"""The command: quick help, exit codes, and one sentence instead of a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relay.audit.checker import Findings
from relay.audit.verify import RouteReport
from relay.cli import main
from relay.config.routes import POSITION_NOTE

GOOD = '[relay]\nname = "shop"\ninstance = "a"\n[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n'

runner = CliRunner()


def relay(*words: str) -> tuple[int, str, str]:
    result = runner.invoke(main.app, list(words))
    return result.exit_code, result.stdout, result.stderr


def test_help_loads_no_client_and_no_driver() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from relay.cli.main import app\n"
        "shown = CliRunner().invoke(app, ['--help'])\n"
        "assert shown.exit_code == 0 and 'migrate' in shown.stdout, shown.output\n"
        "print([name for name in ('confluent_kafka', 'psycopg', 'pydantic', 'fastavro') if name in sys.modules])\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout.strip() == "[]"


def test_a_good_configuration(tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text(GOOD)

    code, out, _ = relay("check", str(tmp_path / "relay.toml"))

    assert code == 0
    assert "ok (configuration)" in out


def test_faults_are_printed_for_people_and_for_programs(tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text(GOOD + "acks = 1\n[timing]\nresend_after = 20\n")

    code, out, _ = relay("check", str(tmp_path / "relay.toml"))
    json_code, json_out, _ = relay("check", str(tmp_path / "relay.toml"), "--json")

    assert code == json_code == 2
    assert out.count("fault: ") == 2
    report = json.loads(json_out)
    assert report["ok"] is False
    assert [fault["key"] for fault in report["faults"]] == ['kafka."acks"', "timing.resend_after"]
    assert all(fault["remedy"] for fault in report["faults"])


def test_an_unreadable_file_and_wrong_words_are_usage(tmp_path: Path) -> None:
    code, _, err = relay("check", str(tmp_path / "absent.toml"))
    assert code == 2
    assert "absent.toml: the file cannot be read" in err
    assert relay("check")[0] == 2
    assert relay("chekc", "x")[0] == 2
    assert relay("check", "x", "--nonsense")[0] == 2


def test_an_unreachable_broker_is_three(tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text(GOOD + "[timing]\nsocket_timeout = 0.5\n")

    code, out, _ = relay("check", str(tmp_path / "relay.toml"), "--connect", "--json")

    assert code == 3
    assert "127.0.0.1:1: no broker answers" in json.loads(out)["unreachable"][0]


def test_a_missing_package_breaks_one_command_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "relay.setup.check", None)
    monkeypatch.delitem(sys.modules, "relay.cli.check", raising=False)

    code, _, err = relay("check", "x")

    assert code == 2
    assert "not part of this version" in err
    assert relay("--help")[0] == 0


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from relay.cli import check  # noqa: PLC0415 - patched, not used

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(check, "check", interrupted)

    assert relay("check", "x")[0] == 130


def test_each_command_answers_help_by_its_own_module() -> None:
    code, out, _ = relay("check", "--help")

    assert code == 0
    assert "--connect" in out


@pytest.mark.parametrize(("identity", "said"), [('["position"]', [POSITION_NOTE]), ('["cloudevents", "position"]', [])])
def test_verify_says_what_a_routes_identity_does_not_protect_against(
    identity: str, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "relay.toml"
    path.write_text(f'{GOOD}[routes.r]\nfrom = ["orders"]\nidentity = {identity}\nto = {{ topic = "out" }}\n')
    report = RouteReport("r", "topic out", "exactly once", Findings(), [], 0.0, allow_lag=False, ordered=True)
    monkeypatch.setattr("relay.cli.verify.verify", lambda *_, **__: [report])

    code, shown, _ = relay("verify", str(path), "--json")

    assert (code, json.loads(shown)["routes"]["r"]["notes"]) == (0, said)
