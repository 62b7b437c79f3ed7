"""The page shows every fault of a history, needs nothing from elsewhere, and believes no text it is given."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from relay.chaos.history import FILE, History, read
from relay.chaos.nemesis import NATURES, Kind
from relay.chaos.timeline import page


def fault(at: float, number: int, phase: str, kind: Kind = Kind.WORKER_KILL, **more: Any) -> dict[str, Any]:
    words = {"kind": kind.value, "struck": NATURES[kind].struck.value, "target": "to-topic.0"}
    return {"t": at, "word": "fault", "n": number, "phase": phase, **words, **more}


def sight(at: float, passed: int, lag: int, in_doubt: int = 0) -> dict[str, Any]:
    return {
        "t": at,
        "word": "sight",
        "log": {"to-topic": passed + lag},
        "passed": {"to-topic": passed},
        "lag": {"to-topic": lag},
        "in_doubt": in_doubt,
        "held": 1,
    }


def drawn(document: str) -> ElementTree.Element:
    found = re.search(r"<svg.*</svg>", document, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found.group())


def bars(document: str) -> dict[str, ElementTree.Element]:
    return {rect.attrib["data-n"]: rect for rect in drawn(document).iter("rect")}


def test_every_fault_of_the_history_is_a_bar_and_a_row() -> None:
    history = []
    for number, kind in enumerate(Kind, start=1):
        history += [fault(number, number, "begin", kind), fault(number + 0.5, number, "end", kind)]

    document = page(history)

    assert set(bars(document)) == {str(number) for number in range(1, len(Kind) + 1)}
    labels = [text.text for text in drawn(document).iter("text")]
    for kind in Kind:
        assert kind.value in labels
        assert f"<td>{escape(kind.value)}</td>" in document


def test_a_fault_lasts_from_its_begin_to_its_end_and_one_without_an_end_to_the_last_entry() -> None:
    history = [fault(10, 1, "begin"), fault(20, 1, "end"), fault(30, 2, "begin"), sight(50, 1, 0), sight(100, 9, 0)]

    found = bars(page(history))
    width = {number: float(rect.attrib["width"]) for number, rect in found.items()}

    assert round(width["2"] / width["1"], 1) == 7.0


def test_what_missed_is_counted_and_not_drawn_and_what_failed_is_marked() -> None:
    history = [fault(1, 1, "missed"), fault(2, 2, "begin"), fault(3, 2, "failed", how="it does not start")]

    document = page(history)

    assert set(bars(document)) == {"2"}
    assert "1 without a target" in document
    assert "failed" in bars(document)["2"].attrib["class"]


def test_what_this_machine_does_not_permit_is_told_with_its_reason() -> None:
    missed = [fault(n, n, "missed", Kind.BROKER_DISK_FULL, how="not permitted here") for n in (1, 2)]

    document = page([*missed, {"t": 3, "word": "result", "report": {"ok": True, "disks": "disks: <none>"}}])

    assert "<td>a broker&#x27;s disk is full</td><td>not permitted here</td><td>2</td>" in document
    assert "disks: &lt;none&gt;" in document


def test_throughput_lag_and_doubt_are_lines_and_anomalies_stand_out() -> None:
    history = [sight(0, 0, 5), sight(4, 100, 0, in_doubt=3), {"t": 5, "word": "anomaly", "kind": "duplicates", "detail": "x"}]

    document = page(history)

    lines = {text.text for text in drawn(document).iter("text")}
    assert {"into the log", "passed by to-topic", "lag of to-topic", "in doubt", "held"} <= lines
    assert len(list(drawn(document).iter("polyline"))) == 5
    assert [line for line in drawn(document).iter("line") if line.attrib["class"] == "anomaly"]


def test_a_line_is_broken_where_nothing_could_be_seen() -> None:
    document = page([sight(0, 0, 5), sight(1, 5, 0), sight(30, 9, 0), sight(31, 10, 0)])

    lag = [line for line in drawn(document).iter("polyline") if line.attrib["class"] == "line l1"]
    assert [len(line.attrib["points"].split()) for line in lag] == [1, 2, 2, 2]


def test_the_page_needs_nothing_from_elsewhere_and_has_both_colour_schemes() -> None:
    document = page([fault(1, 1, "begin")])

    assert not re.search(r"https?:|src=|href=|url\(|@import", document)
    assert "prefers-color-scheme: dark" in document


def test_text_of_a_history_is_never_markup() -> None:
    evil = "<script>alert(1)</script>"
    report = {"ok": False, "seed": evil, "complaints": [evil], "routes": {evil: {}}, "reader": {evil: 1}}
    history = [fault(1, 1, "begin", target=evil), {"t": 2, "word": "result", "report": report}]

    assert "<script" not in page(history)


def test_the_result_is_said_on_top() -> None:
    assert ">clean<" in page([{"t": 2, "word": "result", "report": {"ok": True}}])
    assert "NOT CLEAN" in page([{"t": 2, "word": "result", "report": {"ok": False, "complaints": ["lost"]}}])
    assert "not finished" in page([])


def test_a_history_is_read_as_it_was_written_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    history = History(tmp_path / FILE)
    history.tell("fault", n=1, phase="begin")
    history.tell("note", text="x")
    history.close()
    with history.path.open("ab") as cut:
        cut.write(b'{"t":1,"word":"fa')

    assert [(entry["word"], entry["t"] >= 0) for entry in read(history.path)] == [("fault", True), ("note", True)]
