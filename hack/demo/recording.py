"""When each line of a recorded start was written, from what the lines themselves tell.

Most lines carry a clock (`INFO 11-21 09:06:04 [...]`). A progress bar carries the time since it began
(`436/1735 [01:07<02:03, 2.43it/s]`), counted from the line before its first one. All others came together with the
line before them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

BEFORE_FIRST_LINE = 10.0
"""Seconds in which an engine imports its modules and prints nothing: 458.8 s from the start of the process to its first
answer, 448 s of them in the log."""
SERVES = b"Application startup complete."
"""The last line of a start that is replayed: recorders went on to shut their engine down."""

_CLOCK = re.compile(rb"(?:\b|[A-Z])(?:\d{4}-)?(\d\d)-?(\d\d) (\d\d):(\d\d):(\d\d)")
_BAR = re.compile(rb"\[(?:(\d+):)?(\d\d):(\d\d)<")


@dataclass(frozen=True)
class TimedLine:
    """A line with its newline, and the seconds between the start of the process and it."""

    seconds: float
    text: bytes


def read_recording(path: Path) -> list[TimedLine]:
    """Read a recorded start, up to the moment from which the engine serves, or to its end if it never does."""
    timed = []
    for line in _with_times(_split(path.read_bytes())):
        timed.append(line)
        if SERVES in line.text:
            break
    return timed


def _split(content: bytes) -> list[bytes]:
    """Split at newlines only: a bar that redraws itself with carriage returns is one line."""
    return [line + b"\n" for line in content.rstrip(b"\n").split(b"\n")]


def _with_times(lines: list[bytes]) -> Iterator[TimedLine]:
    begin: float | None = None
    now, bar_began = 0.0, None
    for line in lines:
        if found := _CLOCK.search(line):
            month, day, hour, minute, second = (int(part) for part in found.groups())
            moment = datetime(2000, month, day, hour, minute, second).timestamp()
            begin = moment if begin is None else begin
            # clocks have whole seconds and lines of several processes mix: never step back
            now, bar_began = max(now, moment - begin), None
        elif bars := _BAR.findall(line):
            hours, minutes, seconds = (int(part or 0) for part in bars[-1])
            elapsed = hours * 3600 + minutes * 60 + seconds
            if bar_began is None or elapsed == 0:
                bar_began = now
            now = max(now, bar_began + elapsed)
        yield TimedLine(BEFORE_FIRST_LINE + now, line)
