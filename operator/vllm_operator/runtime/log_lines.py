r"""From the bytes of a log stream to lines with their times, across reconnects, without loss or double counting.

The API server prefixes each line with an RFC 3339 time and a space. What a kubelet (v1.35.4) is known to do:

* `sinceTime` is cut to whole seconds and inclusive, so a resumed stream begins with lines that were seen
  before. They are a prefix in the order of the file, so counting them is enough; times alone are not, as
  two lines may have one time, and stdout and stderr may swap by milliseconds.
* The last text of a container may lack its newline. A stream may also end in the middle of a line because
  the kubelet restarts, and the line comes whole when the stream is resumed. Only whoever knows which of both
  it was may take the rest (`flush`).
* A line of 300 KB comes in pieces with one time. It is handed on in bounded pieces.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from vllm_operator.startup.times import YEARS

TIME = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d) ?")
TENTH = len("2026-11-21T12:00:00.1")
STAMP = len("2026-11-21T12:00:00.123456789+00:00")
"""Characters of a time up to the tenths of a second, and of a whole one at most."""
UNAVAILABLE = b"unable to retrieve container logs"
"""The kubelet says this with status 200 when the container is already gone."""


class LogUnavailableError(Exception):
    """The kubelet answered with an apology instead of the log."""


class LogLines:
    """The lines of one run of a container."""

    def __init__(self, *, line_bytes: int) -> None:
        """A longer line is handed on in pieces of `line_bytes`."""
        self._line_bytes = line_bytes
        self._tail = b""
        self._head: re.Match[bytes] | None = None  # the time of a long line of which pieces were handed on
        self._inside = False
        self._first = True
        self._second = b""  # the latest second seen, and how many lines of the file lie in it or after it
        self._zone = b"Z"
        self._seen = 0
        self._latest = b""
        self._skip = 0
        self.continues = True
        """Whether the stream has begun with the lines that were seen last. If not, the log was rotated, or it is that of another run."""
        self._tenth = b"\n"  # that of the line before, up to which lines are alike; a line never begins with this

    @property
    def since(self) -> str | None:
        """From when on to ask for lines when the stream is opened again; None for all."""
        return (self._second + self._zone).decode("ascii") if self._second else None

    def reopen(self) -> None:
        """The stream is opened again with `since`; what comes first was seen already."""
        self._tail = b""
        self._inside = False
        self._first = True
        self._tenth = b"\n"
        self._skip = self._seen
        self.continues = not self._seen

    def feed(self, data: bytes) -> Iterator[tuple[bytes, datetime | None]]:
        """Take bytes; yield lines, newlines included, with their time (None where it cannot be read).

        Lines of one tenth of a second come together, with the time of the first: reading a time takes longer than
        all else, and a flood has thousands of lines in each.

        Raises:
            LogUnavailableError: This is no log.
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
        """The stream has ended. Raises LogUnavailableError if all of it was an apology without a newline."""
        if self._first and self._tail.startswith(UNAVAILABLE):
            apology, self._tail = self._tail, b""
            raise LogUnavailableError(apology[:200].decode("utf-8", "replace"))

    def flush(self) -> tuple[bytes, datetime | None] | None:
        """The rest without a newline, when the container has ended; None if there is none."""
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
        """The line, unless it was seen before the stream was opened again."""
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
            # further lines of this tenth are not looked at closely: none of them is later than this
            self._tenth = match[1] + match[2][:2]
            self._latest = max(self._latest, self._tenth.ljust(STAMP, b"9"))
        return text, _time(match)

    def _skipped(self, time: bytes) -> bool:
        if not self._skip:
            return False
        if time > self._latest:  # the log was rotated meanwhile: what would have been skipped is gone
            self._skip = 0
            return False
        self._skip -= 1
        self.continues = True
        return True


def _comparable(match: re.Match[bytes]) -> bytes:
    """The time with a fraction of fixed width: the kubelet cuts trailing zeros."""
    return match[1] + (match[2] or b".").ljust(10, b"0")


def _time(match: re.Match[bytes] | None) -> datetime | None:
    if match is None:
        return None
    try:
        time = datetime.fromisoformat((match[1] + (match[2] or b"")[:7] + match[3]).decode("ascii")).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return time if time.year in YEARS else None
