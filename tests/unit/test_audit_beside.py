"""What `relay verify` believes of whom: other routes, former ones, the inbox, persons and markers that anyone may write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.audit import neighbours
from relay.audit.captures import Asked, ended, sorted_out
from relay.audit.ledger import Outcome
from relay.audit.route_topics import ranges_since
from relay.audit.tables import open_store
from relay.kafka.topics import TopicFacts
from relay.message.identity import capture_id, cloudevents
from relay.message.record import LogPartition
from relay.monitor import redrive
from relay.monitor.entries import DEAD, SKIPPED, Page, Proof
from relay.monitor.resolution import (
    Answer,
    Kind,
    Resolution,
    Resolutions,
    Subject,
    Told,
    encode,
    encode_answer,
    of_capture,
    of_offsets,
)
from tests.integration.audit_site import wrong
from tests.routes import ce
from tests.unit.audited import BY_ID, BY_SOURCE, LOG, MORE, OWN_SQL, UPSERT, Make, Place, places

TO_TOPIC = 'to = { topic = "out" }'
INSTANCE = b"i" * 16


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with places(tmp_path) as lent:
        yield lent


def beside(to: str, name: str = "other") -> str:
    return f'[routes.{name}]\nfrom = ["{MORE}"]\n{to}\n'


def digest(identifier: str) -> bytes:
    return cloudevents(dict(ce("/a", identifier)), b"", None) or b""


@pytest.mark.parametrize("word", ["inbox", "monitor"])
@pytest.mark.parametrize("outcome", [DEAD, SKIPPED])
def test_a_row_of_what_another_route_did_not_deliver_is_a_phantom(make: Make, outcome: int, word: str) -> None:
    place = make(BY_SOURCE, more=beside(BY_SOURCE))
    place.cluster.logs |= {MORE: [], place.config.monitor_topic("other"): []}
    place.row("theirs")
    if word == "inbox":
        place.inbox(digest("theirs"), 0, outcome, route="other")
    else:
        place.enter(digest("theirs"), route="other", outcome=outcome)

    assert wrong(place.audit()) == {"phantoms": 1}


def test_a_row_of_what_another_route_put_into_a_namesake_elsewhere_is_a_phantom(make: Make, tmp_path: Path) -> None:
    elsewhere = BY_SOURCE.replace('"shop"', '"till"')
    place = make(BY_SOURCE, more=f'{beside(elsewhere)}[resources.till]\nurl = "sqlite:///{tmp_path}/till.db"\n')
    place.cluster.logs |= {MORE: [], place.config.monitor_topic("other"): []}
    place.row("theirs")
    place.enter(digest("theirs"), route="other")

    assert wrong(place.audit()) == {"phantoms": 1}


def test_rows_are_not_called_phantoms_where_the_log_that_would_tell_is_not_there(make: Make) -> None:
    place = make(BY_ID, more=beside(BY_ID))
    place.row("theirs")

    report = place.audit()

    assert wrong(report) == {}
    assert any("1 ids in ledger are of no message of this route" in note for note in report.findings.notes)
    place.cluster.logs[MORE] = []
    assert wrong(place.audit()) == {"phantoms": 1}
    place.write("older", topic=MORE)
    place.write("theirs", topic=MORE)
    place.row("nobody's")
    assert wrong(place.audit()) == {"phantoms": 1}
    place.cluster.low[MORE] = 1
    assert wrong(place.audit()) == {}, "it may have been of what has left that log"


def test_only_monitors_of_routes_that_are_gone_are_asked_what_these_delivered(make: Make) -> None:
    place = make(TO_TOPIC)
    place.cluster.logs |= {"shop.before.monitor": [], "bank.before.monitor": [], "shop.journal": [], "shop.decisions": []}

    assert neighbours.former_monitors(place.config, place.cluster) == ["shop.before.monitor"]  # type: ignore[arg-type]


def test_routes_into_topics_share_no_table_and_no_queue(make: Make) -> None:
    config = make(TO_TOPIC, more=beside('to = { topic = "elsewhere" }')).config

    assert neighbours.neighbours(config, config.routes["main"]) == []


@pytest.mark.parametrize(
    ("monitor", "outcome", "found"), [("before", 0, {}), ("before", DEAD, {"phantoms": 1}), ("other", 0, {"phantoms": 1})]
)
def test_only_what_a_former_route_delivered_excuses_an_output(make: Make, monitor: str, outcome: int, found: dict[str, int]) -> None:
    place = make(TO_TOPIC, more=beside('to = { topic = "elsewhere" }'))
    place.cluster.logs |= {MORE: [], "elsewhere": [], place.config.monitor_topic(monitor): []}
    place.cluster.append("out", b"k", b"x", ce("/a", "x"))
    place.enter(digest("x"), route=monitor, outcome=outcome)

    assert wrong(place.audit()) == found


def test_outputs_of_another_route_into_the_same_topic_are_left_out(make: Make) -> None:
    place = make(TO_TOPIC, more=beside(TO_TOPIC))
    place.cluster.logs |= {MORE: [], place.config.monitor_topic("other"): []}
    place.enter(place.write("mine"))
    place.output("mine", INSTANCE, 1)
    place.enter(digest("theirs"), route="other", instance=b"o" * 16)
    place.output("theirs", b"o" * 16, 1)
    place.stand_at(1)

    assert wrong(place.audit()) == {}
    place.output("nobody's", b"n" * 16, 1)
    assert wrong(place.audit()) == {"phantoms": 1}


def test_the_monitors_word_about_a_place_where_the_log_has_another_message_excuses_no_output(make: Make) -> None:
    place = make(TO_TOPIC)
    for name in "ab":
        place.write(name)
        place.output(name, INSTANCE, 1)
    place.output("ghost", INSTANCE, 1)
    place.enter(digest("ghost"), first=1)
    place.stand_at(2)

    for low in (0, 1):
        place.cluster.low[LOG] = low
        assert wrong(place.audit())["phantoms"] == 1 + low


def test_an_order_of_another_route_excuses_no_second_outcome(make: Make) -> None:
    place = make(TO_TOPIC)
    one = place.write("1")
    place.output("1", INSTANCE, 1)
    place.stand_at(1)
    place.letter(one)
    wanted = [redrive.Wanted(0, one, 1)]
    for route, found in (("other", {"duplicates": 1}), ("main", {"unseen": 1})):
        order = redrive.Order(route.ljust(16).encode(), route, LogPartition(LOG, 0), LOG.encode().ljust(16), wanted, "ann", 0)
        place.cluster.append(place.config.control_topic, *redrive.encode(order), [])
        assert wrong(place.audit()) == found


@pytest.mark.parametrize(("low", "meanwhile", "found"), [(1, 1, {"lost": 1}), (0, 1, {}), (0, 0, {"lost": 1})])
def test_a_death_needs_its_letter_unless_that_may_be_older_than_the_oldest_that_was_left(
    make: Make, low: int, meanwhile: int, found: dict[str, int]
) -> None:
    place = make(TO_TOPIC)
    letters = place.config.deadletter_topic
    for at in (1, 1_000, 10_000_000):
        place.letter(digest("another"))
        place.cluster.logs[letters][-1].time = (2, at)
    place.enter(place.write("1"), outcome=DEAD)
    place.cluster.logs[place.monitor][-1].time = (2, 5_000_000)
    place.stand_at(1)
    place.cluster.low[letters] = low
    place.cluster.meanwhile = (letters, lambda: place.cluster.low.update({letters: meanwhile}))

    assert wrong(place.audit()) == found


def test_a_letter_of_another_route_stands_for_nothing(make: Make) -> None:
    place = make(TO_TOPIC)
    one = place.write("1")
    place.stand_at(1)
    place.letter(one, route="other")

    assert wrong(place.audit()) == {"lost": 1}


def test_a_redriven_message_may_come_behind_those_that_followed_it(make: Make) -> None:
    place = make(TO_TOPIC)
    first = place.write("1")
    place.write("2")
    for name in "21":
        place.output(name, INSTANCE, 1)
    place.stand_at(2)
    assert wrong(place.audit()) == {"reordered": 1}

    place.letter(first)
    place.letter(first, "redriven", 1)

    assert wrong(place.audit()) == {}


def test_a_route_without_order_has_none_to_keep(make: Make) -> None:
    place = make(f'{TO_TOPIC}\norder = "none"')
    for name in "12":
        place.write(name)
    for name in "21":
        place.output(name, INSTANCE, 1)
    place.stand_at(2)

    assert wrong(place.audit()) == {}


def test_a_route_starts_where_its_own_record_says_of_this_very_topic(make: Make) -> None:
    place = make(TO_TOPIC)
    for name in "ab":
        place.write(name)
    place.stand_at(2)
    place.started(2, route="other")
    place.started(2, topic_id=b"a namesake".ljust(16))

    assert wrong(place.audit()) == {"lost": 2}


def test_a_partition_without_a_position_in_which_something_was_entered_does_not_stand_at_its_start(make: Make) -> None:
    place = make(TO_TOPIC)
    place.started(0)
    digests = [place.write(name) for name in "ab"]
    for name in "ab":
        place.output(name, INSTANCE, 1)
    place.enter(*digests)
    place.cluster.low[LOG] = 2

    assert wrong(place.audit()) == {}, "the position is lost, and not what was delivered"


@pytest.mark.parametrize("position", [0, 1])
def test_a_row_that_the_inbox_knows_and_the_table_lacks_is_lost_wherever_the_route_stands(make: Make, position: int) -> None:
    place = make(BY_SOURCE)
    place.inbox(place.write(""), 0)  # has no id, so the inbox alone tells of it
    place.inbox(place.write("1"), 1)
    place.stand_at(2 * position)

    assert wrong(place.audit()) == ({"lost": 2} if position else {"lost": 1, "unseen": 1})


def test_a_row_that_was_deleted_excuses_none_that_nobody_has_sent(make: Make) -> None:
    place = make(BY_SOURCE)
    place.enter(*[place.write(name) for name in "abc"])
    for name in ("who", "b", "c"):  # a has left the log, and its row the table
        place.row(name)
    place.cluster.low[LOG] = 2
    place.stand_at(3)

    report = place.audit()

    assert (wrong(report), report.findings.expired) == ({"phantoms": 1}, 1)


@pytest.mark.parametrize(("first", "outcome", "found"), [(0, 0, {}), (0, DEAD, {"phantoms": 1}), (1, 0, {"phantoms": 1})])
def test_only_deliveries_of_what_has_left_the_log_excuse_a_row_that_its_id_does_not_tell(
    make: Make, first: int, outcome: int, found: dict[str, int]
) -> None:
    place = make(BY_ID)
    place.write("old")
    place.enter(place.write("a"), first=1)
    place.enter(digest("ghost"), first=first, outcome=outcome)
    for name in ("a", "who"):
        place.row(name)
    place.cluster.low[LOG] = 1
    place.stand_at(2)

    assert wrong(place.audit()) == found


def test_a_row_of_an_aborted_message_is_left_to_no_other_route(make: Make) -> None:
    place = make(BY_ID, more=beside(BY_ID))  # whose log is not there, so that ids of others are believed to be its
    capture = b"c" * 16
    place.write("refused", ce_relaycapture=capture.hex(), ce_relayresource="elsewhere/u")
    place.mark(capture, None)
    for name in ("refused", "theirs"):
        place.row(name)

    assert wrong(place.audit()) == {"phantoms": 1}


def test_rows_that_may_be_older_than_the_own_log_are_not_called_phantoms_beside_another_route(make: Make) -> None:
    place = make(BY_ID, more=beside(BY_ID))
    place.cluster.logs |= {MORE: [], place.config.monitor_topic("other"): []}
    place.row("old")
    assert wrong(place.audit()) == {"phantoms": 1}
    place.stand_at(0, "a log of before")
    assert wrong(place.audit()) == {}
    place.database.execute("delete from relay_position")
    place.write("old")
    place.cluster.low[LOG] = 1
    place.stand_at(1)

    assert wrong(place.audit()) == {}


def test_a_database_is_read_as_it_was_when_the_audit_opened_it(make: Make) -> None:
    place = make(BY_SOURCE)
    place.row("1")
    store = open_store("shop", place.config.resources["shop"])
    place.row("2")
    place.stand_at(1)

    assert list(store.rows("ledger", ["id"])) == [("1",)]
    assert store.positions("shop", "main") == {}
    store.close()


def test_what_a_recovery_entered_of_a_table_hides_no_inversion_between_living_workers_transactions(make: Make) -> None:
    place = make(BY_SOURCE)
    digests = [place.write(name) for name in "abcd"]
    for name in "abcd":
        place.row(name)
    for n, recovery, offsets, applied in ((1, None, [2], [11]), (2, None, [1], [12]), (3, "w2", [0, 3], [10, 13])):
        rows = len(offsets)
        made = Page("w", INSTANCE, n, Proof.PROVEN, recovery, LOG, 0, b"".join(digests[one] for one in offsets), bytes(8 * rows),
                    offsets, bytes(rows), b"", applied)  # fmt: skip
        place.record(made)
    place.stand_at(4)

    assert wrong(place.audit()) == {"reordered": 1}


def test_what_the_monitor_and_what_the_inbox_tells_of_are_no_one_transaction_by_a_number_that_they_share(make: Make) -> None:
    place = make(BY_SOURCE)
    digests = {name: place.write(name, "/a" if name in "bc" else f"/{name}") for name in "bcxyz"}
    for name in "bcxyz":
        place.row(name, "/a" if name in "bc" else f"/{name}")
    for n, (name, applied) in enumerate((("x", 10), ("y", 11), ("c", 1))):
        made = Page("w", INSTANCE, n, Proof.PROVEN, None, LOG, 0, digests[name], bytes(8), ["bcxyz".index(name)], bytes(1), b"", [applied])
        place.record(made)
    place.inbox(digests["z"], 4)
    place.inbox(digests["b"], 0)  # the second row there, and the second but one transaction here
    place.stand_at(5)

    assert wrong(place.audit()) == {"reordered": 1}


def test_own_sql_is_not_said_to_have_delivered_what_died(make: Make) -> None:
    place = make(OWN_SQL)
    place.inbox(place.write("1"), 0, DEAD)
    place.stand_at(1)

    report = place.audit()

    assert (wrong(report), report.findings.delivered) == ({"unseen": 1}, 0), "its letter is still to come"


def test_the_stores_position_counts_and_not_the_groups(make: Make) -> None:
    place = make(BY_SOURCE)
    place.write("1")
    place.cluster.positions[LogPartition(LOG, 0)] = 1

    assert wrong(place.audit()) == {"unseen": 1}


BOTH = UPSERT.replace('key = ["id"]', 'key = ["id", "source"]')


def test_an_upsert_by_id_and_source_has_a_row_of_each_message(make: Make) -> None:
    place = make(BOTH)
    place.enter(place.write("1", "/a"), place.write("1", "/b"))
    place.row("1", "/a")
    place.stand_at(2)

    report = place.audit()

    assert (wrong(report), report.findings.recorded) == ({"lost": 1}, 0)


@pytest.mark.parametrize("key", ['["source"]', '["customer"]', '["id", "customer"]'])
def test_rows_that_replace_each_other_are_counted_by_what_was_recorded(make: Make, key: str) -> None:
    place = make(UPSERT.replace('["id"]', key).replace('"ce:source" }', '"ce:source", customer = "ce:subject" }'))
    place.enter(place.write("1"), place.write("2"))
    place.stand_at(2)

    report = place.audit()

    assert (wrong(report), report.findings.recorded) == ({}, 2)


class TestCaptures:
    """Markers and rows may be written by others; a person's word counts when an owner has obeyed it."""

    NONCE = b"n" * 16
    CAPTURE = capture_id(NONCE)

    def held(self, make: Make, resource: str) -> Place:
        place = make(TO_TOPIC)
        place.write("1", ce_relaycapture=self.CAPTURE.hex(), ce_relayresource=resource)
        place.stand_at(1)
        return place

    def test_a_capture_of_a_database_that_nobody_here_knows_is_undecided_without_a_marker(self, make: Make) -> None:
        place = self.held(make, "elsewhere/u")
        assert wrong(place.audit()) == {"in_doubt": 1}
        place.mark(self.CAPTURE, b"x" * 16)
        assert wrong(place.audit()) == {"in_doubt": 1}, "that is not its nonce"
        place.mark(self.CAPTURE, None)
        assert (wrong(report := place.audit()), report.findings.aborted) == ({}, 1)
        place.mark(self.CAPTURE, self.NONCE)
        assert wrong(place.audit()) == {"lost": 1}, "proved, whatever a hint says"

    def test_an_aborted_marker_says_nothing_where_the_database_can_be_asked(self, make: Make) -> None:
        place = self.held(make, "shop/another")
        place.mark(self.CAPTURE, None)

        assert wrong(place.audit()) == {"in_doubt": 1}

    def test_a_row_of_another_database_under_the_name_says_nothing(self, make: Make) -> None:
        place = make(TO_TOPIC)
        ((uuid,),) = place.database.execute("select uuid from relay_resource").fetchall()
        asked = sorted_out(place.config, {"shop": uuid}, [(self.CAPTURE, b"shop/another", True)])
        assert asked == Asked({}, {}, set())
        asked = sorted_out(place.config, {"shop": uuid}, [(self.CAPTURE, f"shop/{uuid}".encode(), True)])
        assert asked == Asked({"shop": [self.CAPTURE]}, {}, set())

    def told(self, subject: Subject, told: Told, *, is_obeyed: bool) -> list[tuple[bytes, bytes]]:
        made = Resolution(b"r" * 16, subject, told, "ann", "looked", 1, "nothing")
        return [encode(made), *([encode_answer(Answer(made.id, "w", 2, "done"))] if is_obeyed else [])]

    @pytest.mark.parametrize(("told", "outcome"), [(Told.COMMIT, Outcome.COMMITTED), (Told.ABORT, Outcome.ABORTED)])
    def test_a_row_counts_before_a_person_and_a_person_before_a_hint(self, told: Told, outcome: Outcome) -> None:
        hinted, silent = Asked({}, {}, {self.CAPTURE}), Asked({}, {}, set())
        obeyed, waiting = Resolutions(), Resolutions()
        for key, value in self.told(of_capture(self.CAPTURE), told, is_obeyed=True):
            obeyed.add(key, value)
        waiting.add(*self.told(of_capture(self.CAPTURE), told, is_obeyed=False)[0])

        for row in Outcome:
            assert ended(self.CAPTURE, {self.CAPTURE: row}, obeyed, hinted) is row
        assert ended(self.CAPTURE, {}, obeyed, hinted) is outcome
        assert ended(self.CAPTURE, {}, waiting, hinted) is Outcome.ABORTED
        assert ended(self.CAPTURE, {}, waiting, silent) is None

    @pytest.mark.parametrize(
        ("told", "is_obeyed", "found"), [(Told.COMMIT, True, {}), (Told.COMMIT, False, {"lost": 1}), (Told.ABORT, True, {"lost": 1})]
    )
    def test_what_a_person_said_was_delivered_counts_when_it_was_obeyed(
        self, make: Make, told: Told, is_obeyed: bool, found: dict[str, int]
    ) -> None:
        place = make(TO_TOPIC)
        place.enter(place.write("1"))
        place.stand_at(1)
        subject = of_offsets(Kind.DELIVERY, "main", LogPartition(LOG, 0), 0, 1)
        for key, value in self.told(subject, told, is_obeyed=is_obeyed):
            place.cluster.append(place.config.control_topic, key, value, [])

        assert wrong(place.audit()) == found


def test_of_a_topic_read_once_only_what_came_since_is_read_again(make: Make) -> None:
    cluster = make(OWN_SQL).cluster
    facts = TopicFacts(LOG, LOG.encode().ljust(16), 1, 1)
    cluster.logs[LOG] = [None] * 9  # type: ignore[list-item]
    place = LogPartition(LOG, 0)

    assert ranges_since(cluster, facts, {place: (0, 5)}) == {place: (5, 9)}  # type: ignore[arg-type]
    assert ranges_since(cluster, facts, {}) == {place: (0, 9)}  # type: ignore[arg-type]
    cluster.low[LOG] = 7
    assert ranges_since(cluster, facts, {place: (0, 5)}) == {place: (7, 9)}, "retention took the rest"  # type: ignore[arg-type]


@pytest.mark.parametrize("low", [0, 2])
def test_what_was_redriven_is_not_reordered_whatever_is_left_of_its_letters(make: Make, low: int) -> None:
    place = make(TO_TOPIC)
    late, other = place.write("a"), place.write("b")
    place.enter(late, outcome=DEAD)
    place.letter(late)
    place.output("b", INSTANCE, 1)
    place.enter(other, first=1)
    place.output("a", INSTANCE, 2)
    place.record(Page("w", INSTANCE, 2, Proof.PROVEN, None, LOG, 0, late, bytes(8), [0], b"\0", b"\1"))
    place.letter(late, "redriven", 1)
    place.stand_at(2)
    place.cluster.low[place.config.deadletter_topic] = low

    assert wrong(place.audit()) == {}
