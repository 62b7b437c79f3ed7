"""Topics of the relay's own as words of Spark's jobs: which of them a job takes, and for what."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from relay.jobs import session
from relay.message.errors import RelayError
from spark import archive, capture, correlate


@pytest.fixture
def unstarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A configuration for jobs that are to end before Spark is started."""
    monkeypatch.setattr(session, "start", MagicMock(side_effect=RelayError("Spark was started")))
    config = tmp_path / "relay.toml"
    config.write_text(
        '[relay]\nname = "shop"\ninstance = "a"\nstate = "state"\n[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n'
        '[routes.main]\nfrom = ["a"]\nto = { topic = "b" }\n',
        "utf-8",
    )
    return str(config)


@pytest.mark.parametrize("topic", ["shop.decisions", "shop.deadletter", "shop.main.monitor"])
@pytest.mark.parametrize(
    ("module", "words", "option"),
    [
        (correlate, ["--topic", "a", "--topic", "b", "--name", "n"], "--to"),
        (capture, ["drops", "--name", "n", "--id", "id"], "--topic"),
    ],
)
def test_a_job_that_would_write_into_a_topic_of_the_relays_own_is_refused(
    unstarted: str, capsys: pytest.CaptureFixture[str], module: Any, words: list[str], option: str, topic: str
) -> None:
    """Among the decisions its markers would stop every driver, and every worker that waits for one, until they have left."""
    assert module.main([unstarted, *words, option, topic]) == 2

    assert f"{option} {topic}: a topic of the relay's own is not a log; name a log topic" in capsys.readouterr().err


def test_of_the_relays_own_topics_an_archive_lets_nobody_trim_any_but_the_dead_letters(
    unstarted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said up to where the monitor might be trimmed, without which a relay knows no repeats."""
    words = [unstarted, "--to", "x", "--topic"]

    assert archive.main([*words, "shop.main.monitor"]) == 2
    assert "--topic shop.main.monitor: the relay needs what it has there itself" in capsys.readouterr().err
    for allowed in (["shop.deadletter"], ["shop.main.monitor", "--keep"]):
        archive.main([*words, *allowed])
        assert "Spark was started" in capsys.readouterr().err
