"""Lets a container print what a real one once printed, at its own pace or faster.

A recording is the plain output of an engine. When each part of it came is taken from the output itself: log records carry
a clock to the second (`INFO 11-21 09:27:07 [...]`), progress bars the time since they began (`[00:45<02:10, 1.87it/s]`).
What carries no time came together with what is before it. The states of a bar that redraws itself with carriage returns
are parts of their own, so that the runtime's rule applies to them: nothing of such a line is seen before its newline.
"""

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from testenv.cri import LogWriter

SERVING = b"Application startup complete."
"""What an engine prints when it has started."""

_CLOCK = re.compile(rb"(?:\b|[A-Z])(?:\d{4}-)?(\d\d)-?(\d\d) (\d\d):(\d\d):(\d\d)")
_ELAPSED = re.compile(rb"\[(?:(\d+):)?(\d\d):(\d\d)<")
# at each newline, and before each carriage return that is not part of one
_PARTS = re.compile(rb"\r?[^\r\n]*\r*\n|\r?[^\r\n]+|\r")


@dataclass(frozen=True, slots=True)
class Output:
    """A part of a recording, and how many seconds after the first it came."""

    seconds: float
    data: bytes


def read_recording(path: Path, *, until: bytes = SERVING) -> list[Output]:
    """Reads a recording up to the line that holds `until`, or to its end if none does."""
    outputs: list[Output] = []
    reached = False
    for output in _timed(_PARTS.findall(path.read_bytes())):
        outputs.append(output)
        reached = reached or bool(until and until in output.data)
        if reached and output.data.endswith(b"\n"):
            break
    return outputs


def _timed(parts: Sequence[bytes]) -> Iterator[Output]:
    begin: datetime | None = None
    bar_began: float | None = None
    now = 0.0
    for part in parts:
        if clock := _CLOCK.search(part):
            # the year is not recorded; any leap year will do
            moment = datetime(2000, *(int(number) for number in clock.groups()))  # type: ignore[arg-type]  # five numbers, no time zone
            begin = begin or moment
            # several processes print, and each second counts once: time never goes back
            now, bar_began = max(now, (moment - begin).total_seconds()), None
        elif elapsed := _ELAPSED.search(part):
            hours, minutes, seconds = (int(number or 0) for number in elapsed.groups())
            since_it_began = hours * 3600.0 + minutes * 60.0 + seconds
            if bar_began is None or since_it_began == 0.0:
                bar_began = now
            now = max(now, bar_began + since_it_began)
        yield Output(now, part)


class Replay:
    """One run of a container that prints a recording into its log, so many times as fast."""

    def __init__(self, outputs: Sequence[Output], writer: LogWriter, *, speed: float = 20.0) -> None:
        self._outputs = outputs
        self._writer = writer
        self._speed = speed

    async def play(self, *, exits: bool) -> None:
        """Prints everything when it is due; the container then ends, if it `exits`, or runs on in silence."""
        clock = asyncio.get_running_loop().time
        began = clock()
        for output in self._outputs:
            wait = began + output.seconds / self._speed - clock()
            if wait > 0:
                await asyncio.sleep(wait)
            self._writer.write(output.data)
        if exits:
            self._writer.exit()
