"""The latency benchmark runs on a real broker, and every message that is sent shows."""

from __future__ import annotations

import pytest

from relay.bench import latency


@pytest.mark.slow
def test_the_time_until_a_message_shows_is_measured_beside_the_plain_loop(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency, "WARM_UP", 500)

    row = latency.run(kafka, 2_000, rounds=1)

    assert 0 < row["p50_ms"] <= row["value"] < 1000 * latency.SHOWN_S
    assert 0 < row["reference_p50_ms"] <= row["reference"]
    assert row["ratio"] == pytest.approx(row["value"] / row["reference"], rel=0.02)
