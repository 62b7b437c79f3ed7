"""`relay verify` on a log in memory: what it reads, in which order, and what a living route does meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from relay.kafka.scan import Scanned
from relay.message.record import LogPartition
from relay.monitor.entries import DEAD, Begin, InputRange, Page, Proof, Seal
from tests.integration.audit_site import wrong
from tests.routes import ce
from tests.unit.audited import BY_ID, BY_SOURCE, LOG, MORE, OWN_SQL, UPSERT, Make, places

TO_TOPIC = 'to = { topic = "out" }'


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with places(tmp_path) as lent:
        yield lent


def test_what_a_worker_enters_and_trims_while_the_audit_begins_is_not_lost(make: Make) -> None:
    place = make(OWN_SQL)
    digest = place.write("1")
    place.inbox(digest, 0)
    place.stand_at(1)

    def trimmed() -> None:
        place.enter(digest)
        place.database.execute("delete from relay_inbox")

    place.cluster.meanwhile = (place.monitor, trimmed)

    assert wrong(place.audit()) == {}


def test_what_leaves_the_log_once_it_is_delivered_while_the_audit_reads_is_not_lost(make: Make) -> None:
    place = make('to = { topic = "out" }')
    delivered = [place.write("1"), place.write("2")]
    place.cluster.append("out", b"k", b"1", ce("/a", "1"))
    place.enter(delivered[0])
    place.stand_at(1)

    def goes_on() -> None:
        place.cluster.append("out", b"k", b"2", ce("/a", "2"))
        place.enter(delivered[1], first=1)
        place.cluster.low[LOG] = 2

    place.cluster.meanwhile = (place.config.deadletter_topic, goes_on)

    assert wrong(place.audit()) == {}


def test_what_a_living_route_does_behind_what_was_read_is_unseen(make: Make) -> None:
    place = make('to = { topic = "out" }')
    digests = [place.write("1"), place.write("2")]

    def goes_on() -> None:
        place.cluster.append("out", b"k", b"1", ce("/a", "1"))
        place.enter(digests[0])
        place.record(Begin("w", "t", bytes(16), 2, 1, [InputRange(LOG, 0, 1, 2)], []))

    place.cluster.meanwhile = (place.config.deadletter_topic, goes_on)

    assert wrong(place.audit()) == {"unseen": 2}
    assert wrong(place.audit()) == {"in_doubt": 1}
    place.record(Seal("w", bytes(16), 2))
    assert wrong(place.audit()) == {"unseen": 1}


def test_what_leaves_the_log_while_it_is_read_is_expired_not_a_phantom(make: Make) -> None:
    place = make('to = { topic = "out" }')
    digest = place.write("1")
    place.cluster.append("out", b"k", b"1", ce("/a", "1"))
    place.enter(digest)
    place.stand_at(1)
    read = place.cluster.read

    def trimmed(ranges: Mapping[LogPartition, tuple[int, int]], *more: object) -> Iterator[list[Scanned]]:
        if LogPartition(LOG, 0) in ranges:
            place.cluster.low[LOG] = 1
        return read(ranges, *more)

    place.cluster.read = trimmed  # type: ignore[method-assign]

    report = place.audit()

    assert wrong(report) == {}
    assert report.findings.expired == 1


def test_messages_of_one_id_and_an_empty_source_are_two_where_they_come_from_two_topics(make: Make) -> None:
    place = make('to = { topic = "out" }', (LOG, MORE))
    for topic in (LOG, MORE):
        digest = place.write("1", "", topic=topic)
        own = [("relay_digest", digest.hex().encode())]
        place.cluster.append("out", b"k", b"1", ce("", "1") + own)
        place.stand_at(1, topic)

    report = place.audit()

    assert wrong(report) == {}
    assert (report.findings.captured, report.findings.delivered) == (2, 2)


def test_rows_of_one_id_and_no_source_are_two_where_they_come_from_two_topics(make: Make) -> None:
    place = make(BY_SOURCE, (LOG, MORE))
    for topic in (LOG, MORE):
        place.write("1", "", topic=topic)
        place.row("1", "")
        place.stand_at(1, topic)

    assert wrong(place.audit()) == {}


def test_of_two_sources_with_one_id_the_one_with_a_dead_letter_needs_no_row(make: Make) -> None:
    place = make(BY_ID)
    dead = place.write("1", "/a")
    place.write("1", "/b")
    place.row("1")
    place.letter(dead)
    place.stand_at(2)

    report = place.audit()

    assert wrong(report) == {}
    assert report.findings.delivered == 1


@pytest.mark.parametrize("to", [UPSERT, UPSERT.replace(', source = "ce:source"', "")], ids=["sourced", "by id"])
def test_an_upsert_by_the_id_alone_keeps_one_row_of_two_sources_and_that_is_said(make: Make, to: str) -> None:
    place = make(to)
    digests = [place.write("1", "/a"), place.write("1", "/b"), place.write("2", "/a"), place.write("3", "/a")]
    place.row("1", "/b")
    place.row("2", "/a")
    place.enter(*digests)
    place.stand_at(4)

    report = place.audit()

    assert wrong(report) == {"lost": 1}, "only message 3 has no row of its id"
    assert report.findings.delivered == 3
    assert any("one row" in note for note in report.findings.notes)
    place.write("1", "/c")
    assert wrong(place.audit()) == {"lost": 1, "unseen": 1}, "the row says nothing of what is still to come"


def test_rows_without_an_id_that_are_older_than_the_log_are_no_duplicates(make: Make) -> None:
    place = make(BY_SOURCE)
    digests = [place.write(identifier) for identifier in ("", "1", "", "")]
    for identifier in (None, "1", "", ""):
        place.row(identifier)
    place.enter(*digests)
    place.stand_at(4)
    place.cluster.low[LOG] = 2

    report = place.audit()

    assert wrong(report) == {}
    assert report.findings.expired == 2
    place.row("")
    assert wrong(place.audit()) == {"duplicates": 1}


def test_rows_without_an_id_of_another_route_are_no_duplicates(make: Make) -> None:
    place = make(BY_SOURCE, more=f'[routes.other]\nfrom = ["{MORE}"]\n{BY_SOURCE}\n')
    place.cluster.logs[MORE] = []
    place.enter(place.write(""))
    place.row("")
    place.row("")
    place.stand_at(1)

    report = place.audit()

    assert wrong(report) == {}
    assert any("other" in note for note in report.findings.notes)


def test_a_second_row_of_an_id_is_no_duplicate_where_another_routes_log_has_that_id(make: Make) -> None:
    place = make(BY_ID, more=f'[routes.other]\nfrom = ["{MORE}"]\n{BY_ID}')
    place.cluster.logs |= {MORE: [], place.config.monitor_topic("other"): []}
    for name in "12":
        place.write(name)
        place.row(name)
    place.write("1", "/b", topic=MORE)
    place.row("1")
    place.stand_at(2)

    report = place.audit()

    assert wrong(report) == {}
    assert any("1 ids in ledger have more rows" in note for note in report.findings.notes)
    place.row("2")
    assert wrong(place.audit()) == {"duplicates": 1}, "that log lacks it"


def test_a_redrive_that_ends_while_the_audit_reads_leaves_no_second_outcome(make: Make) -> None:
    place = make('to = { topic = "out" }')
    digest = place.write("1")
    place.cluster.append("out", b"k", b"1", ce("/a", "1"))  # of a transaction that is still open
    place.stand_at(1)

    place.letter(digest)
    place.cluster.meanwhile = (place.config.deadletter_topic, lambda: place.letter(digest, "redriven", 1))

    assert wrong(place.audit()) == {}


def test_outputs_from_before_anything_that_log_and_monitor_remember_are_no_phantoms(make: Make) -> None:
    place = make('to = { topic = "out" }')
    one, two = bytes(16), b"\1" * 16
    digests = [place.write(name) for name in "abcd"]
    place.entered_at(1_000, digests[0], n=1, instance=one)
    place.entered_at(200_000, digests[1], n=2, instance=one, first=1)  # at the edge of what is left
    place.entered_at(210_000, digests[2], n=7, instance=two, first=2)
    place.entered_at(900_000, digests[3], n=3, instance=one, first=3)
    for name, instance, n in (("a", one, 1), ("old", bytes(range(16)), 9), ("b", one, 2), ("c", two, 7),
                              ("late", bytes(range(16)), 10), ("d", one, 3)):  # fmt: skip
        place.output(name, instance, n)
    place.cluster.low.update({LOG: 2, place.monitor: 1})
    place.stand_at(4)

    report = place.audit()

    assert wrong(report) == {}
    assert (report.findings.captured, report.findings.expired, report.findings.forgotten) == (2, 1, 3)
    assert any("3 effects may be older" in note for note in report.findings.notes)
    place.output("new", one, 1)
    assert wrong(place.audit()) == {"phantoms": 1}, "it follows what the monitor must remember"
    place.cluster.low.update({LOG: 0})
    assert wrong(place.audit()) == {"phantoms": 3}, "a log that is whole has all messages"


def test_without_the_brokers_times_no_output_is_known_to_be_young(make: Make) -> None:
    place = make('to = { topic = "out" }')
    digests = [place.write(name) for name in "ab"]
    place.enter(digests[0])
    place.enter(digests[1], first=1)
    for name in ("a", "b", "who"):
        place.output(name, bytes(16), 1)
    place.cluster.low.update({LOG: 1, place.monitor: 1})
    place.stand_at(2)

    report = place.audit()

    assert (wrong(report), report.findings.forgotten) == ({}, 2)


def test_what_the_monitor_calls_dead_is_never_forgotten(make: Make) -> None:
    place = make('to = { topic = "out" }')
    digests = [place.write(name) for name in "abc"]
    place.enter(digests[0])
    place.enter(digests[1], first=1, outcome=DEAD)
    place.output("b", bytes(16), 1)
    place.output("c", bytes(16), 1)
    place.cluster.low.update({LOG: 2, place.monitor: 1})
    place.stand_at(3)

    assert wrong(place.audit()) == {"phantoms": 1}


@pytest.mark.parametrize("to", [BY_ID, BY_SOURCE])
def test_rows_from_before_anything_that_log_and_monitor_remember_are_no_phantoms(make: Make, to: str) -> None:
    place = make(to)
    digests = [place.write(name) for name in "abcd"]
    for name in ("", "", *"abcd"):
        place.row(name)
    place.enter(digests[0])
    place.enter(*digests[1:], first=1)
    place.cluster.low.update({LOG: 2, place.monitor: 1})
    place.stand_at(4)

    report = place.audit()

    assert wrong(report) == {}
    assert (report.findings.expired, report.findings.forgotten) == (1, 3), "b; a and the two without an id"


@pytest.mark.parametrize("word", ["inbox", "monitor"])
def test_rows_that_another_route_tells_of_are_its_own_however_old(make: Make, word: str) -> None:
    place = make(BY_SOURCE, more=f'[routes.other]\nfrom = ["{MORE}"]\n{BY_SOURCE}\n')
    place.cluster.logs |= {MORE: [], place.config.monitor_topic("other"): []}
    place.enter(place.write("a"))
    place.enter(place.write("b"), first=1)
    theirs = place.write("theirs", topic=MORE)
    if word == "inbox":
        place.inbox(theirs, 0, topic=MORE, route="other")
    else:
        place.enter(theirs, topic=MORE, route="other")
    for name in ("a", "b", "theirs"):
        place.row(name)
    place.cluster.low.update({LOG: 1, place.monitor: 1})
    place.stand_at(2)

    report = place.audit()

    assert (wrong(report), report.findings.forgotten) == ({}, 1), "a"
    assert any("1 rows of ledger are those of other" in note for note in report.findings.notes)


def test_an_aborted_message_with_a_row_is_a_phantom_whatever_was_forgotten(make: Make) -> None:
    place = make(BY_SOURCE)
    place.enter(place.write("a"))
    place.enter(place.write("b"), first=1)
    capture = b"c" * 16
    place.write("refused", ce_relaycapture=capture.hex(), ce_relayresource="elsewhere/u")
    place.mark_aborted(capture)
    for name in ("a", "b", "refused"):
        place.row(name)
    place.cluster.low.update({LOG: 1, place.monitor: 1})
    place.stand_at(4)

    report = place.audit()

    assert (wrong(report), report.findings.forgotten) == ({"phantoms": 1}, 1)


@pytest.mark.parametrize("to", [BY_ID, BY_SOURCE])
def test_rows_beyond_what_a_whole_monitor_has_of_messages_that_left_the_log_are_phantoms(make: Make, to: str) -> None:
    place = make(to)
    digests = [place.write(name) for name in "abc"]
    for name in (*"abc", "who"):
        place.row(name)
    place.enter(*digests)
    place.cluster.low[LOG] = 2
    place.stand_at(3)

    report = place.audit()

    assert (wrong(report), report.findings.expired) == ({"phantoms": 1}, 2)


def test_a_log_that_begins_where_the_route_started_has_lost_nothing_of_it(make: Make) -> None:
    place = make(BY_SOURCE)
    digests = [place.write(name) for name in "ab"]
    place.started(1)
    for name in ("b", "who"):
        place.row(name)
    place.enter(digests[0])
    place.enter(digests[1], first=1)
    place.cluster.low.update({LOG: 1, place.monitor: 1})
    place.stand_at(2)

    assert wrong(place.audit()) == {"phantoms": 1}


@pytest.mark.parametrize("to", [TO_TOPIC, BY_SOURCE], ids=["topic", "table"])
def test_a_repeat_whose_first_has_left_the_log_is_neither_reordered_nor_altered(make: Make, to: str) -> None:
    place = make(to)
    digests = [place.write(name) for name in "abc"]
    for number, (name, digest) in enumerate(zip("abc", digests, strict=True)):
        applied = [] if to == TO_TOPIC else [number]
        place.record(Page("w", bytes(16), number, Proof.PROVEN, None, LOG, 0, digest, bytes(8), [number], bytes(1), b"", applied))
        if to == TO_TOPIC:
            place.output(name, bytes(16), number)
        else:
            place.row(name)
    place.cluster.append(LOG, b"k", b"of another content", ce("/a", "a"))
    place.stand_at(4)

    for low in (0, 1):
        place.cluster.low[LOG] = low
        assert wrong(place.audit()) == {}
    place.cluster.low["out"] = 1
    report = place.audit()
    assert (wrong(report), report.findings.expired) == ({}, int(to == TO_TOPIC)), "what was delivered has left the output as well"


def test_what_the_log_still_has_is_judged_although_it_has_a_repeat(make: Make) -> None:
    place = make(TO_TOPIC)
    place.write("old")
    place.enter(*[place.write(name) for name in "ab"], first=1)
    place.write("a")
    for name in "ba":
        place.output(name, bytes(16), 1)
    place.stand_at(4)
    place.cluster.low[LOG] = place.cluster.low["out"] = 1

    assert wrong(place.audit()) == {"lost": 1}
    place.cluster.low["out"] = 0
    assert wrong(place.audit()) == {"reordered": 1}
