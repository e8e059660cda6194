"""Reading progress bars.

A bar looks like `DeepGEMM warmup:  12%|█▏        | 361/3000 [00:41<05:02,  8.73it/s]`, with or without the drawing
between the strokes; the weight loader writes `25% Completed | 41/163 [..]` instead, and in a terminal without a width
(`tty: true`) there are no strokes.
"""

import re
from collections.abc import Iterable
from datetime import datetime

from vllm_operator.catalog.startup import Bar
from vllm_operator.startup.state import Progress, Stage

_NUMBER = r"(\d{1,9}(?:\.\d{1,3})?)([kMGTP]?)i?B?"
_CLOCK = r"\d{1,9}(?::\d\d){1,2}"
_BAR = re.compile(
    rf"(\d{{1,3}})%(?: Completed)?\s{{0,2}}(?:\|(?:[^|\n]{{0,200}}\|)?)?\s{{0,20}}{_NUMBER}/{_NUMBER}\s{{0,4}}\[({_CLOCK})<(\?|{_CLOCK})"
)
_SCALE = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_FILE = re.compile(r"[\w.-]{1,120}\.(?:safetensors|bin|json|gguf|pt|model|txt)$")


class Bars:
    """Knows which stage a bar belongs to by its label."""

    def __init__(self, bars: Iterable[Bar]) -> None:
        """The bars of the catalog, the first that fits wins."""
        self._bars = tuple((bar.prefix, Stage(bar.stage), bar.label) for bar in bars)
        self._first = tuple({bar[0][:1] for bar in self._bars})

    def read(self, text: str) -> tuple[Stage, Progress | None, str] | None:
        """The stage that a bar belongs to, how far it is, and what follows it; None if the text is no such bar.

        A bar that is not finished ends without a newline, and the next line follows it directly.
        """
        percent = text.find("%")
        found = _BAR.search(text, max(0, percent - 3)) if percent > 0 else None
        if found is None:
            return None
        label = text[: found.start()].strip(" :\t(")
        kind = next(((stage, name) for prefix, stage, name in self._bars if label.startswith(prefix)), None)
        if kind is None:
            if not _FILE.search(label):
                return None
            kind = (Stage.WEIGHT_DOWNLOAD, "Downloading files")
        stage, name = kind
        rest = text[found.end() :].partition("]")[2]
        if stage is Stage.READY:
            return stage, None, rest
        completed = round(float(found[2]) * _SCALE[found[3]])
        total = round(float(found[4]) * _SCALE[found[5]])
        return stage, Progress(min(completed, total), total, name or label, seconds(found[7])), rest


class Rate:
    """Estimates the time left from when which count was seen, where the bar itself does not say."""

    def __init__(self) -> None:
        """Nothing seen."""
        self._label = ""
        self._first: tuple[datetime, int] | None = None

    def left(self, progress: Progress, now: datetime | None) -> int | None:
        """Seconds left, or None while unknown."""
        if now is None:
            return None
        if self._first is None or self._label != progress.label or progress.completed < self._first[1]:
            self._label, self._first = progress.label, (now, progress.completed)
            return None
        elapsed = (now - self._first[0]).total_seconds()
        done = progress.completed - self._first[1]
        if elapsed <= 0 or done <= 0:
            return None
        return round(elapsed / done * (progress.total - progress.completed))


def seconds(clock: str) -> int | None:
    """Read `05:02` or `1:05:02`."""
    if clock == "?":
        return None
    total = 0
    for part in clock.split(":"):
        total = total * 60 + int(part)
    return total
