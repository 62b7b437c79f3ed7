"""What a worker process says is cut into lines, and no line grows without end."""

from relay.run.child import LineBuffer, log_fields


def test_lines_are_put_together_from_pieces() -> None:
    buffer = LineBuffer()

    assert buffer.feed(b"fir") == []
    assert buffer.feed(b"st\r\n\nsecond\nthi") == [b"first", b"second"]
    assert list(buffer.rest()) == [b"thi"]
    assert list(buffer.rest()) == []


def test_a_line_without_end_is_cut_and_the_next_one_is_whole() -> None:
    buffer = LineBuffer(most=10)
    for _ in range(1000):
        assert buffer.feed(b"x" * 100) == []

    assert buffer.feed(b"\nnext\n" + b"y" * 50 + b"\n") == [b"x" * 10, b"next", b"y" * 10]


def test_only_an_object_with_an_event_is_a_log_line() -> None:
    assert log_fields(b'{"event": "started", "pid": 7}') == {"event": "started", "pid": 7}
    for line in (b"text", b"{broken", b"{}", b'{"event": 7}', b"[1]", b"\xff"):
        assert log_fields(line) is None
