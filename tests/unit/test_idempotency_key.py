"""The name of what a message is to have done elsewhere: frozen, since a receiver knows a repeat by it."""

from __future__ import annotations

from uuid import RFC_4122, UUID

import pytest

from relay.queue.message import Taken, Ticket
from relay.work.message import Message

FIRST = Taken(Ticket(7, 1), "/checkout", "42", b"k", b"v", (), None, b"lane", 4, 0, 1, (), "charge")


def key(queue: str = "payments", **over: object) -> str:
    return Message(FIRST._replace(**over), queue).idempotency_key  # type: ignore[arg-type]


def test_it_is_what_it_was_in_every_earlier_version() -> None:
    assert key() == "e5119965-824c-8803-a0ea-efbeaf34637a"


def test_it_has_the_form_of_a_uuid_that_one_has_made_oneself() -> None:
    found = UUID(key())

    assert (found.version, found.variant) == (8, RFC_4122)


@pytest.mark.parametrize(
    "over", [{"ticket": Ticket(9, 4)}, {"failures": 3}, {"value": b"w"}, {"put_at": 2}, {"headers": (("a", b"b"),)}, {"key": None}]
)
def test_it_does_not_alter_with_what_differs_between_two_tries(over: dict[str, object]) -> None:
    assert key(**over) == key()


@pytest.mark.parametrize("over", [{"publisher": "/checkout2"}, {"id": "43"}, {"group": "mail"}, {"publisher": "/checkout4", "id": "2"}])
def test_another_message_and_another_subscriber_have_another(over: dict[str, object]) -> None:
    assert key(**over) != key()


def test_another_queue_has_another() -> None:
    assert key("mail") != key()
