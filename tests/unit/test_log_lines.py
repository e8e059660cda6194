"""Lines out of a log stream: pieces, times, and streams that are opened again."""

from datetime import UTC, datetime

import pytest

from vllm_operator.controller.log_follower import LogLines, LogUnavailableError


def stamped(second: int, nanos: str, text: str) -> bytes:
    return f"2026-11-21T12:00:{second:02d}{nanos}Z {text}\n".encode()


def read(lines: LogLines, data: bytes) -> list[str]:
    return [line for text, _ in lines.feed(data) for line in text.decode().splitlines()]


def test_lines_come_without_their_times() -> None:
    lines = LogLines(line_bytes=100)
    found = list(lines.feed(stamped(1, ".5", "hello") + stamped(2, "", "world")))
    assert found == [
        (b"hello\n", datetime(2026, 11, 21, 12, 0, 1, 500000, tzinfo=UTC)),
        (b"world\n", datetime(2026, 11, 21, 12, 0, 2, tzinfo=UTC)),
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 30, 1000])
def test_it_does_not_matter_how_the_bytes_are_cut(size: int) -> None:
    data = b"".join(stamped(1, f".{number:03d}", f"line {number}") for number in range(20))
    lines = LogLines(line_bytes=100)
    assert [text for at in range(0, len(data), size) for text in read(lines, data[at : at + size])] == [f"line {n}" for n in range(20)]


@pytest.mark.parametrize(
    ("line", "want"),
    [
        (b"no time at all\n", (b"no time at all\n", None)),
        (b"\n", (b"\n", None)),
        (b"\xff\xfe\x00binary\n", (b"\xff\xfe\x00binary\n", None)),
        (b"2026-13-45T99:99:99Z nonsense\n", (b"nonsense\n", None)),
        (b"2026-11-21T12:00:00.123456789Z \n", (b"\n", datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC))),
        (b"2026-11-21T14:00:00.1+02:00 x\n", (b"x\n", datetime.fromisoformat("2026-11-21T14:00:00.1+02:00"))),
    ],
)
def test_any_line_is_read_somehow(line: bytes, want: tuple[bytes, datetime | None]) -> None:
    assert list(LogLines(line_bytes=100).feed(line)) == [want]


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00", "9999-12-31T23:59:59Z", "1970-01-01T00:00:00Z"])
def test_a_time_at_the_edge_of_the_calendar_is_no_time(time: str) -> None:
    assert list(LogLines(line_bytes=100).feed(f"{time} hello\n".encode())) == [(b"hello\n", None)]


def test_a_stream_that_is_opened_again_repeats_nothing() -> None:
    lines = LogLines(line_bytes=100)
    log = [stamped(1, ".1", "a"), stamped(2, ".1", "b"), stamped(2, ".2", "c"), stamped(2, ".9", "d"), stamped(3, ".1", "e")]
    assert read(lines, b"".join(log[:3])) == ["a", "b", "c"]
    assert lines.since == "2026-11-21T12:00:02Z"
    lines.reopen()
    assert read(lines, b"".join(log[1:])) == ["d", "e"]
    assert lines.since == "2026-11-21T12:00:03Z"


def test_lines_of_the_same_time_are_distinguished_by_counting() -> None:
    lines = LogLines(line_bytes=100)
    log = [stamped(2, ".5", text) for text in "abcd"]
    assert read(lines, b"".join(log[:2])) == ["a", "b"]
    lines.reopen()
    assert read(lines, b"".join(log)) == ["c", "d"]
    lines.reopen()
    assert read(lines, b"".join(log) + stamped(2, ".5", "e")) == ["e"]


def test_two_streams_of_a_container_may_swap_lines_by_milliseconds() -> None:
    lines = LogLines(line_bytes=100)
    log = [stamped(1, ".9", "a"), stamped(2, ".1", "b"), stamped(1, ".95", "late"), stamped(2, ".2", "c")]
    assert read(lines, b"".join(log[:3])) == ["a", "b", "late"]
    lines.reopen()
    # the server leaves out what is older than the second asked for
    assert read(lines, b"".join(line for line in log if b":02" in line)) == ["c"]


def test_a_line_cut_by_the_end_of_a_stream_comes_whole_from_the_next() -> None:
    lines = LogLines(line_bytes=100)
    whole = stamped(2, ".2", "a whole line")
    assert read(lines, stamped(2, ".1", "a") + whole[:-5]) == ["a"]
    lines.reopen()
    assert read(lines, stamped(2, ".1", "a") + whole) == ["a whole line"]


def test_after_a_rotation_nothing_new_is_skipped() -> None:
    lines = LogLines(line_bytes=100)
    assert read(lines, b"".join(stamped(2, f".{n}", f"old {n}") for n in range(1, 6))) == [f"old {n}" for n in range(1, 6)]
    lines.reopen()
    # the file with the old lines is out of reach; the new one begins later
    assert read(lines, stamped(3, ".1", "new 1") + stamped(3, ".2", "new 2")) == ["new 1", "new 2"]


def test_the_rest_without_a_newline_is_there_at_the_end() -> None:
    lines = LogLines(line_bytes=100)
    assert read(lines, stamped(1, ".1", "a") + stamped(1, ".2", "dying-unterminated")[:-1]) == ["a"]
    rest = lines.flush()
    assert rest is not None
    assert rest[0] == b"dying-unterminated\n"
    assert lines.flush() is None


def test_an_endless_line_comes_in_bounded_pieces_with_its_time() -> None:
    lines = LogLines(line_bytes=1000)
    found = list(lines.feed(b"2026-11-21T12:00:01.5Z "))
    for _ in range(10):
        found += lines.feed(b"x" * 600)
    found += lines.feed(b"end\n" + stamped(2, "", "next"))
    assert b"".join(piece for piece, _ in found) == b"x" * 6000 + b"end\nnext\n"
    assert max(len(piece) for piece, _ in found) <= 1700
    assert {moment for _, moment in found[:-1]} == {datetime(2026, 11, 21, 12, 0, 1, 500000, tzinfo=UTC)}
    lines.reopen()
    assert read(lines, stamped(2, "", "next") + stamped(2, ".1", "new")) == ["new"]


def test_an_apology_of_the_kubelet_is_no_log() -> None:
    with pytest.raises(LogUnavailableError, match="unable to retrieve"):
        list(LogLines(line_bytes=100).feed(b"unable to retrieve container logs for containerd://4f6b\n"))


def test_an_apology_without_a_newline_is_no_log_either() -> None:
    lines = LogLines(line_bytes=100)
    assert list(lines.feed(b"unable to retrieve container logs for containerd://4f6b")) == []
    with pytest.raises(LogUnavailableError):
        lines.check()
    assert lines.flush() is None


def test_a_log_that_ends_is_no_apology() -> None:
    lines = LogLines(line_bytes=100)
    assert read(lines, stamped(1, "", "unable to retrieve container logs, says the engine")) == [
        "unable to retrieve container logs, says the engine"
    ]
    lines.check()
