"""How handlers are declared and found, and what is said when they are not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

import relay
from relay.message.errors import ConfigError
from relay.work.loading import load_handler
from relay.work.subscriber import BATCH_DEFAULT, Handler

TWO = """
from relay import subscriber

@subscriber("credit", resource="shop")
def approve(message, db):
    return None

@subscriber("credit", batch=True)
def count(messages):
    return None

@subscriber("orders", batch=7, order="none")
def look(messages):
    return None
"""


@pytest.fixture
def app(tmp_path: Path) -> str:
    path = tmp_path / "handlers_of_a_test.py"
    path.write_text(TWO)
    return str(path)


def test_a_file_gives_the_handler_of_the_queue(app: str) -> None:
    found = load_handler(app, "orders")

    assert (found.name, found.batch, found.order, found.resource) == ("look", 7, "none", None)


def test_a_slip_in_the_file_is_told_with_its_own_place_only(tmp_path: Path) -> None:
    path = tmp_path / "slip_of_a_test.py"
    path.write_text("one = 1\ndef handle(:\n")

    with pytest.raises(ConfigError) as raised:
        load_handler(str(path), "credit")

    assert str(raised.value).endswith("cannot be loaded: SyntaxError: invalid syntax (slip_of_a_test.py, line 2); correct it there")


def test_a_name_chooses_among_several(app: str) -> None:
    assert load_handler(f"{app}:approve", "credit").resource == "shop"
    assert load_handler(f"{app}:count", "credit").batch == BATCH_DEFAULT


@pytest.mark.parametrize(
    ("suffix", "queue", "said"),
    [
        ("", "credit", "2 handlers of 'credit': add :name"),
        ("", "other", "handles credit, orders, not 'other'"),
        (":nobody", "credit", "no handler called 'nobody'; there is approve, count, look"),
        (":look", "credit", "handles orders, not 'credit'"),
    ],
)
def test_what_cannot_be_chosen_is_said_with_the_remedy(app: str, suffix: str, queue: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace(":", ".")):
        load_handler(f"{app}{suffix}", queue)


@pytest.mark.parametrize("where", ["no/such/file.py", "no_such_module_at_all"])
def test_an_application_that_is_not_there_is_said(where: str) -> None:
    with pytest.raises(ConfigError, match="there is no such"):
        load_handler(where, "credit")


def test_a_handler_is_still_the_function() -> None:
    seen: list[int] = []

    @relay.subscriber("credit")
    def note(message: int) -> None:
        seen.append(message)

    assert isinstance(note, Handler)
    note(3)
    assert seen == [3]


def test_a_batch_of_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch=0"):
        relay.subscriber("credit", batch=0)


def test_a_coroutine_function_is_a_handler_for_the_event_loop() -> None:
    @relay.subscriber("credit")
    async def look(message: int) -> None:
        """Wait for nothing."""

    @relay.subscriber("credit")
    def note(message: int) -> None:
        """Note nothing."""

    assert (look.is_async, note.is_async) == (True, False)


def test_a_function_that_runs_nothing_when_it_is_called_is_refused() -> None:
    def some(message: int) -> Iterator[int]:
        yield message

    async def others(message: int) -> AsyncIterator[int]:
        yield message

    for function in (some, others):
        with pytest.raises(ConfigError, match="has a yield"):
            relay.subscriber("credit")(function)


def test_a_function_that_cannot_take_what_it_will_be_given_is_refused() -> None:
    """Else every message of the queue would become UNUSABLE, one after the other, with a TypeError for a cause."""

    def one(message: object) -> None:
        """Take a message."""

    def two(message: object, db: object) -> None:
        """Take a message and a database."""

    with pytest.raises(ConfigError, match=r"one is called with \(message, db\), which it cannot take"):
        relay.subscriber("credit", resource="shop")(one)
    with pytest.raises(ConfigError, match=r"two is called with \(message\).*missing.*'db'"):
        relay.subscriber("credit")(two)
    with pytest.raises(ConfigError, match=r"\(messages, db, ledger\)"):
        relay.subscriber("credit", resource="shop", batch=True, also=["ledger"])(two)
    assert relay.subscriber("credit")(lambda *all_of_them: None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:\n", "SyntaxError"),
        ("import no_such_package\n", "No module named 'no_such_package'"),
        ("x = 1\nraise RuntimeError('boo')\n", "RuntimeError: boo \\(broken.py, line 2\\)"),
        ("import sys\nsys.exit(0)\n", "SystemExit: 0 \\(broken.py, line 2\\)"),
        ("raise SystemExit('no SHOP_URL')\n", "SystemExit: no SHOP_URL \\(broken.py, line 1\\)"),
    ],
)
def test_an_application_that_fails_as_it_is_loaded_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "broken.py").write_text(text)

    with pytest.raises(ConfigError, match=said):
        load_handler(str(tmp_path / "broken.py"), "credit")


def test_a_package_that_is_missing_is_not_taken_for_the_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "absent_and_more").mkdir()
    (tmp_path / "absent_and_more" / "handlers.py").write_text("import absent\n")

    with pytest.raises(ConfigError, match=r"No module named 'absent' \(handlers.py, line 1\)"):
        load_handler("absent_and_more.handlers", "credit")
    with pytest.raises(ConfigError, match=r"'absent_and_less\.handlers': there is no such module"):
        load_handler("absent_and_less.handlers", "credit")


def test_a_handler_with_two_names_is_one(app: str) -> None:
    path = Path(app)
    path.write_text(path.read_text() + "\napprove_orders = look\n")

    assert load_handler(app, "orders").name == "look"


class _Approving:
    def __call__(self, message: object) -> None:
        """Take a message."""


class _Waiting:
    async def __call__(self, message: object) -> None:
        """Take a message, and wait for nothing."""


class _Yielding:
    def __call__(self, message: object) -> Iterator[object]:
        yield message


def test_what_can_be_called_is_declared_as_its_call() -> None:
    def two(first: object, message: object) -> None:
        """Take a number and a message."""

    assert not relay.subscriber("credit")(_Approving()).is_async
    assert relay.subscriber("credit")(_Waiting()).is_async
    assert relay.subscriber("credit")(partial(_Waiting())).is_async
    assert relay.subscriber("credit")(partial(two, 1)).name == "two"
    assert relay.subscriber("credit")(_Approving()).name == "_Approving"
    assert relay.subscriber("credit")(_Approving()).file == relay.subscriber("credit")(partial(two, 1)).file == __file__


def test_what_can_be_called_is_refused_with_its_name() -> None:
    with pytest.raises(ConfigError, match="_Yielding has a yield"):
        relay.subscriber("credit")(_Yielding())
    with pytest.raises(ConfigError, match=r"_Approving is called with \(message, db\), which it cannot take"):
        relay.subscriber("credit", resource="shop")(_Approving())
    with pytest.raises(ConfigError, match=r"<lambda> is called with \(message\), which it cannot take"):
        relay.subscriber("credit")(partial(lambda *, some: some))
