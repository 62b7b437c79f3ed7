"""The auditor of the simulator sees what it must see: each anomaly is planted into a clean history and named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.auditor import CHECKS, Check, audit
from tests.simulation.evidence import (
    Decided,
    Effect,
    Evidence,
    Held,
    Logged,
    Marked,
    MessageId,
    Partition,
    Sample,
    Seen,
    Told,
)

P0: Partition = ("orders", 0)
P1: Partition = ("orders", 1)


def name(number: int, source: str = "/shop") -> MessageId:
    return (source, f"m-{number}")


def clean() -> Evidence:
    """Two partitions; capture c1 committed, c2 aborted, c3 in doubt and committed; a repeat, a poison, an aborted one."""
    log = [
        Logged(P0, 0, name(0), "c1", sequence=1, incarnation="i"),
        Logged(P0, 1, name(1), "c1", sequence=2, incarnation="i"),
        Logged(P0, 2, name(2), "c2", sequence=3, incarnation="i"),
        Logged(P0, 4, name(3), "c3", sequence=4, incarnation="i"),
        Logged(P0, 5, name(4)),
        Logged(P0, 6, name(4)),
        Logged(P1, 0, name(10), "c3", sequence=1, incarnation="i"),
        Logged(P1, 1, name(11), aborted=True),
        Logged(P1, 2, name(12), poison=True),
        Logged(P1, 3, name(13, "/other")),
    ]
    shown = [(P0, 0), (P0, 1), (P0, 3), (P0, 4), (P1, 10)]
    effects = [Effect(f"out-{p[1]}", (at,), name(n), "w1", 10.0 + at) for at, (p, n) in enumerate(shown)]
    effects.append(Effect("out-1", (9,), name(13, "/other"), "w1", 19.0))
    return Evidence(
        log=log,
        log_ends={P0: 7, P1: 4},
        decisions={
            "c1": Decided(True, 1.0, ((P0, 2),)),
            "c2": Decided(False, 1.5),
            "c3": Decided(True, 2.0, ((P0, 1), (P1, 1))),
        },
        told={"c1": Told.COMMITTED, "c2": Told.ABORTED, "c3": Told.UNKNOWN},
        conflicts=[["c1", "c3"]],
        marked=[
            Marked(P0, 3, "c1", True, True),
            Marked(P0, 3, "c2", False, False),
            Marked(P0, 5, "c3", True, True),
            Marked(P1, 2, "c3", True, True),
        ],
        effects=effects,
        dead=[name(12)],
        positions={P0: 7, P1: 4},
        samples=[
            Sample(5.0, {P0: 0}, frozenset()),
            Sample(11.5, {P0: 4, P1: 0}, frozenset({name(0), name(1)})),
            Sample(15.0, {P0: 7, P1: 1}, frozenset({name(n) for n in (0, 1, 3, 4, 10)})),
        ],
        seen=[Seen("r", effect.lane, effect.place, effect.id, effect.at) for effect in effects],
        held=[
            Held(P0, 1, "u1", "w1", None, True, 3.0),
            Held(P0, 1, "u1", "w1", 4, False, 4.0),
            Held(P0, 2, "u2", "w2", 4, True, 5.0),
            Held(P0, 2, "u2", "w2", 7, False, 6.0),
        ],
    )


def test_a_clean_history_has_no_anomaly() -> None:
    assert audit(clean()) == []


def _drop_effect(e: Evidence) -> None:
    e.effects = [effect for effect in e.effects if effect.id != name(4)]
    e.seen = [seen for seen in e.seen if seen.id != name(4)]


def _both(e: Evidence, effect: Effect) -> None:
    e.effects.append(effect)


def _swap(e: Evidence) -> None:
    first, second = e.effects[0], e.effects[1]
    e.effects[:2] = [first._replace(id=second.id), second._replace(id=first.id)]
    e.seen = []


def _split(e: Evidence) -> None:
    e.effects[1] = e.effects[1]._replace(lane="out-7")
    e.seen = []


def _tear(e: Evidence) -> None:
    e.effects = [effect for effect in e.effects if effect.id != name(10)]
    e.seen = []


def _not_dead(e: Evidence) -> None:
    e.dead = []


def _write_after_claim(e: Evidence) -> None:
    e.held.append(Held(P0, 2, "u2", "w1", 7, False, 7.0))


def _come_back(e: Evidence) -> None:
    e.effects[1] = e.effects[1]._replace(writer="w2")
    e.seen = []


def _set(field: str, value: object) -> Callable[[Evidence], None]:
    def plant(e: Evidence) -> None:
        setattr(e, field, value)

    return plant


def _decide(capture: str, decided: Decided) -> Callable[[Evidence], None]:
    def plant(e: Evidence) -> None:
        e.decisions[capture] = decided

    return plant


PLANTED: dict[str, list[Callable[[Evidence], None]]] = {
    "lost write": [_drop_effect],
    "lost dead letter": [_not_dead],
    "lost append": [_decide("c1", Decided(True, 1.0, ((P0, 3),)))],
    "needless dead letter": [lambda e: e.dead.append(name(4))],
    "dead and delivered": [lambda e: e.dead.append(name(4)), lambda e: _both(e, Effect("out-1", (20,), name(12), "w1", 30.0))],
    "duplicate": [lambda e: _both(e, Effect("out-0", (20,), name(4), "w1", 30.0))],
    "duplicate read": [lambda e: e.seen.append(e.seen[-1]._replace(place=(99,)))],
    "aborted read": [
        lambda e: _both(e, Effect("out-0", (20,), name(2), "w1", 30.0)),
        lambda e: _both(e, Effect("out-1", (20,), name(11), "w1", 30.0)),
        lambda e: e.seen.append(Seen("r", "out-0", (99,), name(2), 30.0)),
        lambda e: e.dead.append(name(2)),
    ],
    "phantom": [
        lambda e: _both(e, Effect("out-0", (20,), name(77), "w1", 30.0)),
        lambda e: e.seen.append(Seen("r", "out-0", (99,), name(77), 30.0)),
        lambda e: e.dead.append(name(77)),
    ],
    "early read": [
        _decide("c1", Decided(True, 10.5, ((P0, 2),))),
        lambda e: e.seen.insert(0, Seen("q", "out-0", (0,), name(0), 0.5)),
    ],
    "torn capture": [_tear],
    "torn unit": [_set("torn", ["commit 7 has an effect without its inbox row"])],
    "capture header left": [_set("leaks", ["out[0]@3"])],
    "inversion": [_swap],
    "inversion read": [lambda e: e.seen.__setitem__(slice(0, 2), [
        e.seen[0]._replace(id=e.seen[1].id), e.seen[1]._replace(id=e.seen[0].id),
    ])],
    "split lane": [_split],
    "nonmonotonic poll": [lambda e: e.seen.append(Seen("r", "out-0", (1,), name(4), 40.0))],
    "vanished read": [lambda e: e.seen.append(Seen("r", "out-0", (40,), name(2), 40.0))],
    "position beyond delivery": [
        lambda e: e.samples.append(Sample(16.0, {P1: 4}, frozenset({name(10)}))),
        lambda e: e.samples.insert(1, Sample(6.0, {P0: 2}, frozenset({name(0)}))),
        _drop_effect,
    ],
    "position fell": [lambda e: e.samples.append(Sample(16.0, {P0: 3}, e.samples[-1].effects))],
    "two writers": [_write_after_claim, _come_back],
    "epoch reused": [lambda e: e.held.append(Held(P0, 2, "u3", "w3", 7, True, 8.0))],
    "lost commit": [lambda e: e.told.update(c2=Told.COMMITTED), lambda e: e.told.update(c9=Told.COMMITTED)],
    "failed write is there": [lambda e: e.told.update(c1=Told.ABORTED)],
    "two states": [
        lambda e: e.marked.append(Marked(P0, 6, "c1", False, False)),
        lambda e: e.marked.append(Marked(P0, 6, "c2", True, True)),
        _decide("c3", Decided(False, 2.0)),
    ],
    "forged marker": [lambda e: e.marked.append(Marked(P0, 6, "c2", True, False))],
    "marker missing": [lambda e: e.marked.pop()],
    "marker not noted": [lambda e: e.unmarked.append("c1")],
    "undone append": [_set("undone", {name(2)})],
    "append out of commit order": [_set("conflicts", [["c3", "c1"]])],
    "sequence broken": [lambda e: e.log.append(Logged(P0, 6, name(9), sequence=4, incarnation="i"))],
    "stuck": [lambda e: e.positions.update({P0: 6})],
    "position beyond the log": [lambda e: e.positions.update({P0: 8})],
}  # fmt: skip


@pytest.mark.parametrize(
    ("anomaly", "plant"), [(anomaly, plant) for anomaly, plants in PLANTED.items() for plant in plants]
)
def test_a_planted_anomaly_is_named(anomaly: str, plant: Callable[[Evidence], None]) -> None:
    evidence = clean()
    plant(evidence)
    assert anomaly in {found.name for found in audit(evidence)}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_each_check_is_needed_for_something_that_is_planted(check: Check) -> None:
    others = [other for other in CHECKS if other is not check]
    unnamed = []
    for anomaly, plants in PLANTED.items():
        for plant in plants:
            evidence = clean()
            plant(evidence)
            if anomaly not in {found.name for found in audit(evidence, others)}:
                unnamed.append(anomaly)
    assert unnamed != []


def test_while_faults_go_on_nothing_is_lost_yet() -> None:
    evidence = clean()
    evidence.quiescent = False
    evidence.positions = {P0: 0, P1: 0}
    evidence.seen = []
    _drop_effect(evidence)
    assert audit(evidence) == []


def test_a_restored_destination_may_fall_back_and_repeat() -> None:
    evidence = clean()
    evidence.restored = True
    evidence.samples.append(Sample(16.0, {P0: 0}, frozenset()))
    assert audit(evidence) == []
