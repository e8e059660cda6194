"""Python tracebacks in a log to which several processes write at once.

A traceback is the line `Traceback (most recent call last):`, frames with their source lines (indented), and the line of the exception. The
lines of a logged traceback have the header of a record, which is removed before. Raw tracebacks were printed by Python: if the first frame
is that of a process, the process has ended.

Most lines of a crash are frames, so they are not read when they arrive. The latest lines are kept, and when an exception ends a traceback,
its frames are collected backwards.
"""

import re
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice

from vllm_operator.catalog.error_forms import load_error_forms
from vllm_operator.logs.lines import WARNING, Line

NATIVE_FRAME = '  File "<unknown>"'  # Beginning of a frame of a process that died in native code. No exception follows.
_EXPLAINING = ("raise ", "assert ")
"""Starts of source lines that may explain a crash. Other source lines are only read if an exception ends their traceback."""
LINES_KEPT = 120
CHARACTERS_KEPT = 300
"""Numbers of lines, and of characters of each, that are kept to look back at."""
_PROCESSES_KEPT = 8
_SOURCE_LINES = 8  # maximum number of source lines of a frame
_NAME = re.compile(r"(?=[\w.]{0,240}[A-Z.])(?=[\w.]{0,240}[a-z])[A-Za-z_][\w.]{0,240}(?:\(\w{1,80}\))?(?:: |:?$)")
BEGINNING = "Traceback (most recent call last)"
_HEADINGS = (BEGINNING, f"{BEGINNING}:")
_NOTEBOOK = re.compile(r"[A-Za-z_][\w.]{0,80} {2,200}Traceback ")
"""Heading of the traceback of a cell in a notebook. The message follows the frames."""
_EMITTING = re.compile(r"/logging/__init__\.py\"|, in (?:emit|handle)$")  # first frame of the failure to log, which the handler caught
_NEAR, _MANY = 50, 1000
"""Number of lines within which the announced traceback begins, and within which all tracebacks of a report begin."""
_GROUPS = ("  | ", "    | ", "      | ", "  + Exception Group Traceback")  # prefixes of the lines of an exception group
_GROUPED = re.compile(r" {2,6}[|+] (?:Exception Group )?")
CHAINED = ("The above exception was the direct cause", "During handling of the above exception")


class Part(Enum):
    """Part of a traceback."""

    FRAME = auto()
    CODE = auto()
    EXCEPTION = auto()
    OTHER = auto()


@dataclass(slots=True)
class Traceback:
    """A traceback that has begun."""

    raw: bool  # printed by Python, not logged
    harmless: bool = False  # Python reported before it that the process continues
    uncaught: bool = False  # its first frame is that of a process
    has_top: bool = False
    title: str = ""  # message of the record that it belongs to, which often quotes the exception
    number: int = 0  # its line
    ends_engine: bool = False  # a process of the engine ends with it
    is_of_a_cell: bool = False  # a notebook shows it
    is_of_logging: bool = False  # part of the report that a record could not be logged


class Tracebacks:
    """The tracebacks that have begun and not ended. `recent`: the latest lines of the log, which contain their frames."""

    def __init__(self, recent: deque[Line]) -> None:
        self.recent = recent
        self._forms = load_error_forms().tracebacks
        self._open: OrderedDict[str, Traceback] = OrderedDict()
        self._harmless_before = False
        self._announced: dict[tuple[bool, str], int] = {}  # lines that announce a traceback, by whether logging failed, and process
        self._backward: Iterator[str] | None = None
        self._collected: list[str] = []
        self._follows_frame = False

    def take(self, process: str, text: str, number: int, *, raw: bool) -> Part:
        """Return which part of a traceback the line is. It is the latest of the log."""
        self._backward = None
        follows, self._follows_frame = self._follows_frame, False
        if text[:1] == " ":
            if text.startswith('  File "'):
                self._follows_frame = True
                self._frame(process, text)
                return Part.FRAME
            if text[:4] == "    " and (text[-1] in "^~" or not text.strip(" ^~")):
                self._follows_frame = follows
                return Part.FRAME
            if follows and text[:4] == "    " and not text.startswith(_EXPLAINING, 4):
                return Part.FRAME
            return Part.CODE if text[:4] == "    " and text[4:].startswith(("raise ", "assert ", "self.", "super()")) else Part.OTHER
        if text.startswith(BEGINNING):
            title = "" if raw else self._line_before(process)
            self._start(process, raw, title, number - 1 if title else number)
            return Part.FRAME
        if text.endswith(_HEADINGS):
            return self._headed(process, text, number, raw=raw)
        if text.startswith(self._forms.marks) or (self._harmless_before and text.startswith(CHAINED)):
            self._mark(process, text, number)
            return Part.OTHER
        # The line of an exception has one word before its colon. Few others do, and the test is cheap.
        word = text.partition(" ")[0]
        is_name = ":" in word or len(word) == len(text) or text.startswith(" [repeated", len(word))
        if is_name and (self._forms.exception.match(text) or (_NAME.match(text) and self.follows_frames(process))):
            return Part.EXCEPTION
        return Part.OTHER

    def _mark(self, process: str, text: str, number: int) -> None:
        if text.startswith(self._forms.logged):
            self._announced.pop((True, process), None)
            return
        if len(self._announced) >= 2 * _PROCESSES_KEPT:
            self._announced.clear()
        self._announced[text.startswith(self._forms.logging), process] = number

    def _headed(self, process: str, text: str, number: int, *, raw: bool) -> Part:
        if text[-1] == ":":
            self._start(process, raw, text[: -len(BEGINNING) - 1], number)
        elif raw and _NOTEBOOK.match(text):
            self._start(process, raw, "", number)
            self._open[process].has_top = self._open[process].is_of_a_cell = True
            return Part.FRAME
        return Part.OTHER

    def follows_frames(self, process: str) -> bool:
        """Whether the process wrote frames right before the latest line. Output of `kubectl describe` is indented too."""
        return any(line.startswith('  File "') for line in self.frames(process, _SOURCE_LINES))

    def close(self, process: str) -> Traceback | None:
        """Remove and return the traceback that the exception of the process ends."""
        closed = self._open.pop(process, None)
        self._harmless_before = closed is not None and closed.harmless
        return closed

    def is_harmless(self, process: str) -> bool:
        """Whether the process continues after its current traceback."""
        traceback = self._open.get(process)
        return traceback is not None and traceback.harmless

    def frames(self, process: str, most: int = LINES_KEPT) -> tuple[str, ...]:
        """Return the last frames and source lines that the process wrote before the latest line, as far as they are kept."""
        if self._backward is None:
            self._backward, self._collected = _backwards(self.recent, process), []
        self._collected += islice(self._backward, max(0, most - len(self._collected)))
        return tuple(self._collected[:most][::-1])

    def mention(self, places: tuple[str, ...]) -> bool:
        """Whether the latest lines contain one of these strings. If not, no frame does, and this is cheaper to find out."""
        text = "\n".join(line.text for line in self.recent)
        return any(place in text for place in places)

    def forget(self) -> None:
        """Forget all tracebacks."""
        self._open.clear()
        self._harmless_before = False
        self._announced.clear()

    def broken_off(self) -> Iterator[tuple[str, Traceback]]:
        """Return tracebacks that end a process and whose exception is not in the log, with the process."""
        of_vllm = self.mention(self._forms.of_cell)
        for process, each in self.unfinished():
            if (each.uncaught or each.ends_engine or (each.is_of_a_cell and of_vllm)) and not each.harmless:
                yield process, each

    def unfinished(self) -> Iterator[tuple[str, Traceback]]:
        """Return tracebacks whose exception is not in the log, with the process."""
        yield from self._open.items()

    def _line_before(self, process: str) -> str:
        before = self.recent[-2] if len(self.recent) > 1 else None
        is_title = before is not None and before.process == process and before.text[:1] != " " and (before.level or WARNING) > WARNING
        return before.text if before is not None and is_title else ""

    def _start(self, process: str, raw: bool, title: str, number: int) -> None:
        self._open[process] = Traceback(
            raw,
            harmless=number - self._announced.pop((False, process), -_NEAR) < _NEAR,
            title=title.strip(" ,"),
            number=number,
            is_of_logging=raw and number - self._announced.get((True, process), -_MANY) < _MANY,
        )
        self._open.move_to_end(process)
        if len(self._open) > _PROCESSES_KEPT:
            self._open.popitem(last=False)

    def _frame(self, process: str, text: str) -> None:
        traceback = self._open.get(process)
        if traceback is not None and not traceback.has_top:
            traceback.has_top = True
            if traceback.is_of_logging:
                # The exception of the record comes first. That it could not be logged does not make it harmless.
                traceback.harmless = _EMITTING.search(text) is not None
            traceback.uncaught = traceback.raw and not traceback.is_of_logging and self._forms.process_frame.search(text) is not None
            traceback.ends_engine = self._forms.engine_frame.search(text) is not None


def ungrouped(text: str) -> str:
    """Remove the prefix of an exception group from a line."""
    return _GROUPED.sub("", text, count=1) if text.startswith(_GROUPS) else text


def _backwards(recent: deque[Line], process: str) -> Iterator[str]:
    """Return frames and source lines of a process, the latest first, without the latest line of the log."""
    source = ""
    for line in islice(reversed(recent), 1, None):
        text = ungrouped(line.text)
        if line.process != process or not text.strip(" ^~"):
            continue
        if text.startswith(('  File "', "    ")):
            if source:
                return
            yield text
        elif text.startswith('File "'):
            # The indentation of a copied log was lost. Only a frame of code without a file has no source line.
            if source:
                yield f"    {source}"
            elif not text.startswith('File "<'):
                return
            yield f"  {text}"
            source = ""
        elif source:
            return
        else:
            source = text


def is_of_a_request(frames: Iterable[str]) -> bool:
    """Whether a traceback belongs to an answered request or to a client."""
    forms = load_error_forms().tracebacks
    return any(forms.answers.search(frame) or any(place in frame for place in forms.of_requests) for frame in frames)
