"""A handler's children in other queues, and effects in another database: all of an attempt, or nothing, wherever it dies."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from relay.queue.port import Filter
from relay.queue.states import PublisherState, SubscriberState
from tests.integration.work_site import Site, lent_site
from tests.routes import wait_for

QUEUES = """
[queues.credit]
store = "sqlite:///{folder}/credit.db"
subscribers = {{ approval = {{}} }}
order = "key"

[queues.audit]
store = "{beside}"
subscribers = {{ auditor = {{}} }}
"""
APP = """
from relay import subscriber

@subscriber("orders"{resource})
def look_up(message{db}):
    {write}
    message.publish("credit", {{"customer": int(message.value)}}, key="k")
    message.publish("audit", b"seen " + message.value)
"""
WRITE = """db.execute("insert into effect (lane, number, attempt) values ({p}, {p}, {p})",
               (message.lane.decode(), int(message.value), message.taken.ticket.attempt))"""
NUMBERS = 12

# How the parents' queue, the handler's database and the children's queues lie to each other.
BESIDE = {"same": "shop", "none": "shop", "other": "orders.db"}


@pytest.fixture
def site(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, kafka: str, kafka_admin: AdminClient
) -> Iterator[Site]:
    postgres = request.getfixturevalue("postgres")
    own = f"sqlite:///{tmp_path}/orders.db" if kind == "other" else "shop"
    extra = QUEUES.format(folder=tmp_path, beside=own)
    with lent_site(tmp_path, kafka, kafka_admin, postgres, store=own, extra=extra) as made:
        yield made


def app_of(site: Site, kind: str) -> Path:
    if kind == "none":
        return site.app(APP.format(resource="", db="", write="pass"))
    return site.app(APP.format(resource=', resource="shop"', db=", db", write=WRITE))


def check(site: Site, kind: str) -> None:
    assert site.states() == {SubscriberState.JOURNALLED: NUMBERS}
    for queue, subscriber in (("credit", "approval"), ("audit", "auditor")):
        assert site.states(queue, subscriber)[SubscriberState.AVAILABLE] >= NUMBERS
        store = site.store(queue)
        shown = store.find(Filter(state=PublisherState.REVEALED), limit=100)
        hidden = store.find(Filter(state=PublisherState.PUT), limit=100)
        store.close()
        parents = sorted(parent.handle for child in shown for parent in child.parents)
        assert parents == sorted(set(parents)), f"{queue}: a parent has its child twice"
        assert len(parents) == NUMBERS
        assert hidden == []
    if kind != "none":
        assert sorted(number for _, number in site.effects()) == list(range(NUMBERS))


@pytest.mark.parametrize("kind", ["same", "other", "none"])
def test_a_message_its_effect_and_its_children_come_together(site: Site, kind: str) -> None:
    site.put(range(NUMBERS))

    assert site.finish(app_of(site, kind), "--concurrency", "3") == 0

    check(site, kind)


@pytest.mark.parametrize("kind", ["same", "other", "none"])
@pytest.mark.parametrize(
    "point", ["attempt.child:3", "work.deciding:3", "work.decided:3", "attempt.accepted:3"]
)
@pytest.mark.slow
def test_killed_at_any_step_children_follow_their_parents_outcome(site: Site, kind: str, point: str) -> None:
    site.put(range(NUMBERS))
    app = app_of(site, kind)

    assert site.finish(app, env={"RELAY_CRASH_AT": point}) == 137
    assert site.finish(app) == 0
    # Children are recovered by whoever works on their queue.
    for queue, subscriber in (("credit", "approval"), ("audit", "auditor")):
        nothing = site.folder / f"{queue}.py"
        nothing.write_text(
            f'from relay import subscriber\n@subscriber("{queue}")\ndef wait(message):\n    raise ValueError\n'
        )
        recover(site, nothing, queue, subscriber)

    check(site, kind)


def recover(site: Site, app: Path, queue: str, subscriber: str) -> None:
    """Let a worker of the queue live until no child waits there, then end it."""
    process = site.work(app, "--subscriber", subscriber, queue=queue)

    def settled() -> bool:
        store = site.store(queue)
        waiting = store.children(1)
        store.close()
        return not waiting

    wait_for(settled, what=f"children of {queue} to be settled")
    process.terminate()
    assert process.wait(30) in {0, -signal.SIGTERM}
