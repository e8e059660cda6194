r"""Split the bytes of a log stream into lines with their times, across reconnects, without losing or repeating lines.

The API server prefixes each line with an RFC 3339 time and a space. Observed behavior of a kubelet (v1.35.4):

* `sinceTime` is inclusive and cut to whole seconds, so a resumed stream begins with lines that were read before. They come first, in the
  order of the file, so counting them is enough. Their times are not, because two lines may have the same time, and stdout and stderr may
  be out of order by milliseconds.
* The last text of a container may have no newline. A stream may also end within a line because the kubelet restarts. The resumed stream
  then has the whole line. Call `flush` only in the first case.
* A line of 300 KB arrives in pieces with one time. It is returned in bounded pieces.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from vllm_operator.logs.lines import YEARS

TIME = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d) ?")
TENTH = len("2026-11-21T12:00:00.1")
STAMP = len("2026-11-21T12:00:00.123456789+00:00")
"""Length of a time up to tenths of a second, and maximum length of a time."""
UNAVAILABLE = b"unable to retrieve container logs"
"""The kubelet returns this with status 200 if the container no longer exists."""


class LogUnavailableError(Exception):
    """The kubelet returned an error text instead of the log."""


class LogLines:
    """The lines of one run of a container."""

    def __init__(self, *, line_bytes: int) -> None:
        """Initialize. Longer lines are returned in pieces of `line_bytes`."""
        self._line_bytes = line_bytes
        self._tail = b""
        self._head: re.Match[bytes] | None = None  # time of a long line of which pieces were returned
        self._inside = False
        self._first = True
        self._second = b""  # the latest second, and the number of lines in it
        self._zone = b"Z"
        self._seen = 0
        self._latest = b""
        self._skip = 0
        self.continues = True
        """Whether the resumed stream began with the lines that were read last. If not, the log was rotated or belongs to another run."""
        self._tenth = b"\n"  # time of the previous line up to the tenth; initially a value that starts no line

    @property
    def since(self) -> str | None:
        """The `sinceTime` for the resumed stream; None for all lines."""
        return (self._second + self._zone).decode("ascii") if self._second else None

    def reopen(self) -> None:
        """Prepare for a stream that is resumed with `since` and therefore repeats lines."""
        self._tail = b""
        self._inside = False
        self._first = True
        self._tenth = b"\n"
        self._skip = self._seen
        self.continues = not self._seen

    def feed(self, data: bytes) -> Iterator[tuple[bytes, datetime | None]]:
        """Read bytes. Yield lines with their newlines and their time (None if it is invalid).

        Lines of the same tenth of a second are yielded together, with the time of the first, because parsing a time is the most expensive
        step.

        Raises:
            LogUnavailableError: The kubelet returned an error text.
        """
        *lines, self._tail = (self._tail + data).split(b"\n")
        run: list[bytes] = []
        moment: datetime | None = None
        for line in lines:
            if line.startswith(self._tenth) and (end := line.find(b" ", TENTH, STAMP + 1)) > 0:
                self._seen += 1
                run.append(line[end + 1 :])
                continue
            if run:
                yield b"\n".join(run) + b"\n", moment
                run = []
            found = self._line(line)
            if found is not None:
                text, moment = found
                run.append(text)
        if run:
            yield b"\n".join(run) + b"\n", moment
        if len(self._tail) > self._line_bytes:
            piece, self._tail = self._tail, b""
            if not self._inside:
                self._inside, self._head = True, TIME.match(piece)
                piece = piece[self._head.end() :] if self._head else piece
            self._tenth = b"\n"
            if not self._skip:
                yield piece, _time(self._head)

    def check(self) -> None:
        """End the stream. Raises LogUnavailableError if it was only an error text without a newline."""
        if self._first and self._tail.startswith(UNAVAILABLE):
            text, self._tail = self._tail, b""
            raise LogUnavailableError(text[:200].decode("utf-8", "replace"))

    def flush(self) -> tuple[bytes, datetime | None] | None:
        """Return the last line of an ended container, if it has no newline; else None."""
        rest, self._tail = self._tail, b""
        found = self._line(rest) if rest else None
        return (found[0] + b"\n", found[1]) if found is not None else None

    def _line(self, line: bytes) -> tuple[bytes, datetime | None] | None:
        if self._first and line.startswith(UNAVAILABLE):
            raise LogUnavailableError(line[:200].decode("utf-8", "replace"))
        self._first = False
        if self._inside:  # the end of a long line
            self._inside = False
            return self._counted(self._head, line)
        match = TIME.match(line)
        return self._counted(match, line[match.end() :] if match else line)

    def _counted(self, match: re.Match[bytes] | None, text: bytes) -> tuple[bytes, datetime | None] | None:
        """Return the line; None if it was read before the stream was resumed."""
        self._tenth = b"\n"
        if match is None:
            return text, None
        time = _comparable(match)
        if self._skipped(time):
            return None
        if match[1] > self._second:
            self._second, self._zone, self._seen = match[1], match[3], 0
        if match[1] == self._second:
            self._seen += 1
        self._latest = max(self._latest, time)
        if match[1] == self._second and match[2] and not self._skip:
            # upper bound for the lines of this tenth, whose times `feed` does not parse
            self._tenth = match[1] + match[2][:2]
            self._latest = max(self._latest, self._tenth.ljust(STAMP, b"9"))
        return text, _time(match)

    def _skipped(self, time: bytes) -> bool:
        if not self._skip:
            return False
        if time > self._latest:  # the log was rotated, so the lines to skip no longer exist
            self._skip = 0
            return False
        self._skip -= 1
        self.continues = True
        return True


def _comparable(match: re.Match[bytes]) -> bytes:
    """Return the time with a fraction of fixed width, because the kubelet removes trailing zeros."""
    return match[1] + (match[2] or b".").ljust(10, b"0")


def _time(match: re.Match[bytes] | None) -> datetime | None:
    if match is None:
        return None
    try:
        time = datetime.fromisoformat((match[1] + (match[2] or b"")[:7] + match[3]).decode("ascii")).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return time if time.year in YEARS else None
