"""Following Python tracebacks through a log in which several processes write at once.

A traceback is the line `Traceback (most recent call last):`, frames and their source lines (indented), and the
exception's own line. Logged tracebacks carry the prefix of a log record on every line, which is taken off before;
raw ones were printed by Python itself: if they begin at the top of a process, it has ended with them.

Most lines of the log of a crash are frames, so they are not looked at when they come. The latest lines are kept, and
when an exception ends a traceback its frames are collected backwards.
"""

import re
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from itertools import islice

from vllm_operator.startup.lines.framing import plain
from vllm_operator.startup.literals import Literals

NATIVE_FRAME = '  File "<unknown>"'
"""Begins a frame of a process that died in native code. No exception follows: its functions are all that is known."""
LINES_KEPT = 120
CHARACTERS_KEPT = 300
_PROCESSES_KEPT = 8
_SOURCE_LINES = 8
"""Source lines that a frame may have."""
_EXCEPTION = re.compile(
    r"(?:[\w.]{0,160}\.)?[A-Za-z_]\w{0,80}(?:Error|Exception|Interrupt|Exit|Timeout|Failure|NotFound|Expired|Killed|IsEnabled)"
    r"(?:\(\w{1,80}\))?(?::|$| \[repeated)"
)
_NAME = re.compile(r"(?=[\w.]{0,240}[A-Z.])(?=[\w.]{0,240}[a-z])[A-Za-z_][\w.]{0,240}(?:\(\w{1,80}\))?(?:: |:?$)")
_TOP_FRAME = re.compile(
    r"in <module>|multiprocessing/(?:process|spawn|popen_\w+)\.py|in _run_module_as_main|in run_engine_core|in worker_main"
)
_ENGINE_FRAME = re.compile(
    r'engine/multiprocessing/engine\.py", line \d+, in (?:start|run_mp_engine)\b|in (?:run_engine_core|worker_main|_run_worker_process)\b'
)
"""The first frame of a traceback that a process of the engine logs when it ends."""
BEGINNING = "Traceback (most recent call last)"
_HEADINGS = (BEGINNING, f"{BEGINNING}:")
_NOTEBOOK = re.compile(r"[A-Za-z_][\w.]{0,80} {2,200}Traceback ")
"""How a notebook heads the traceback of a cell, which ends with it; the message follows the frames."""
_CALM = re.compile(r"\b(?:DEBUG|INFO|WARNING)\b")
"""What stands at the head of a record that announces no error."""
_OF_VLLM = (" LLM(", "-packages/vllm/")
"""What stands in the traceback of a cell in which an engine is started."""
_HARMLESS = (
    "Exception ignored in",
    "Task exception was never retrieved",
    "Future exception was never retrieved",
    "Exception in thread",
    "Exception in ASGI application",
    "Error in atexit",
    "Error in sys.excepthook",
)
_LOGGING = ("--- Logging error ---", "--- Logging error in Loguru")
"""How Python reports that a record could not be logged. Then come the traceback of that, after the exception that the record is
about, if there is one, the call stack, and what was to be logged."""
_LOGGED = (
    "Call stack:",
    "Message: ",
    "Arguments: ",
    "Logged from file ",
    "Unable to print the message and arguments",
    "--- End of logging",
)
_MARKS = (*_HARMLESS, *_LOGGING, *_LOGGED)
_EMITTING = re.compile(r"/logging/__init__\.py\"|, in (?:emit|handle)$")
"""The first frame of a record that could not be logged: a handler caught it."""
_NEAR, _MANY = 50, 1000
"""Lines, of all processes, in which the traceback begins that such a line announces; those in which all of them do."""
GROUPED = ("  | ", "    | ", "      | ", "  + Exception Group Traceback")
"""What Python puts before each line of the traceback of an exception group, and of those of its exceptions."""
_GROUPED = re.compile(r" {2,6}[|+] (?:Exception Group )?")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


class Part(Enum):
    """What a line is to a traceback."""

    FRAME = auto()
    CODE = auto()
    EXCEPTION = auto()
    OTHER = auto()


@dataclass(slots=True)
class Traceback:
    """A traceback that has begun.

    `raw`: printed by Python, not logged. `uncaught`: it reaches from the top of the process. `harmless`: Python
    says that the process goes on. `title`: the message of the record that it belongs to; who logs an exception
    writes its message there. `number` is its line. `ends_engine`: a process of the engine ends with it. `is_of_a_cell`: a
    notebook shows it. `is_of_logging`: it stands where Python says that a record could not be logged.
    """

    raw: bool
    harmless: bool = False
    uncaught: bool = False
    has_top: bool = False
    title: str = ""
    number: int = 0
    ends_engine: bool = False
    is_of_a_cell: bool = False
    is_of_logging: bool = False


class Tracebacks:
    """The tracebacks that are being written. `recent`: the latest lines of the log, in which their frames are found."""

    def __init__(self, recent: deque[str]) -> None:
        """Nothing so far."""
        self.recent = recent
        self._open: OrderedDict[str, Traceback] = OrderedDict()
        self._harmless_before = False
        self._harmless_since: dict[str, int] = {}
        self._logging_since: dict[str, int] = {}
        self._backward: Iterator[str] | None = None
        self._collected: list[str] = []
        self._has_groups = False
        self.wants_top = False
        """Whether the next frame has to be looked at: it tells where the traceback begins."""

    def ungrouped(self, text: str) -> str:
        """A line that begins as one of an exception group does, as it would be outside of it."""
        self._has_groups = True
        return _GROUPED.sub("", text, count=1)

    def take(self, process: str, text: str, number: int, *, raw: bool) -> Part:
        """Say what the line, the latest of the log, is to the tracebacks."""
        self._backward = None
        if text[:1] == " ":
            if text.startswith('  File "'):
                self._frame(process, text)
                return Part.FRAME
            if text[:4] == "    " and not text.strip(" ^~"):
                return Part.FRAME
            return Part.CODE if text[:4] == "    " and text[4:].startswith(("raise ", "assert ", "self.", "super()")) else Part.OTHER
        if text.startswith(BEGINNING):
            title = "" if raw else self._line_before(process)
            self._start(process, raw, title, number - 1 if title else number)
            return Part.FRAME
        if text.endswith(_HEADINGS):
            return self._headed(process, text, number, raw=raw)
        if text.startswith(_MARKS) or (self._harmless_before and text.startswith(_CHAINED)):
            self._mark(process, text, number)
            return Part.OTHER
        if _begins_with_name(text) and (_EXCEPTION.match(text) or (_NAME.match(text) and self.follows_frames(process))):
            return Part.EXCEPTION
        return Part.OTHER

    def _mark(self, process: str, text: str, number: int) -> None:
        if text.startswith(_LOGGED):
            self._logging_since.pop(process, None)
        else:
            _remember(self._logging_since if text.startswith(_LOGGING) else self._harmless_since, process, number)

    def _headed(self, process: str, text: str, number: int, *, raw: bool) -> Part:
        if text[-1] == ":":
            self._start(process, raw, text[: -len(BEGINNING) - 1], number)
        elif raw and _NOTEBOOK.match(text):
            self._start(process, raw, "", number)
            self._open[process].has_top = self._open[process].is_of_a_cell = True
            return Part.FRAME
        return Part.OTHER

    def follows_frames(self, process: str) -> bool:
        """Whether the process wrote frames right before the latest line. What `kubectl describe` prints is indented as well."""
        return any(line.startswith('  File "') for line in self.frames(process, _SOURCE_LINES))

    def close(self, process: str) -> Traceback | None:
        """The traceback that the exception of the process ends, if it was seen to begin."""
        closed = self._open.pop(process, None)
        self._harmless_before = closed is not None and closed.harmless
        return closed

    def is_harmless(self, process: str) -> bool:
        """Whether the process goes on after the traceback that is being written."""
        traceback = self._open.get(process)
        return traceback is not None and traceback.harmless

    def frames(self, process: str, most: int = LINES_KEPT) -> tuple[str, ...]:
        """The last frames and source lines that the process wrote before the latest line, as far as they are kept."""
        if self._backward is None:
            self._backward, self._collected = _backwards(self.recent, process, GROUPED if self._has_groups else ()), []
        self._collected += islice(self._backward, max(0, most - len(self._collected)))
        return tuple(self._collected[:most][::-1])

    def mention(self, places: tuple[str, ...]) -> bool:
        """Whether one of these stands anywhere in the latest lines. Where not, it is in no frame, and this is cheaper to know."""
        return bool(_literals(places).find("\n".join(self.recent)))

    def forget(self) -> None:
        """What was begun does not matter any more."""
        self._open.clear()
        self._harmless_before = self.wants_top = False
        self._harmless_since.clear()
        self._logging_since.clear()

    def unfinished(self) -> Iterator[Traceback]:
        """Those with which processes of the engine ended, where the log stops before they end."""
        return (each for each in self._open.values() if each.ends_engine and not each.harmless)

    def broken_off(self) -> Iterator[tuple[str, Traceback]]:
        """Those with which a process ended, where the log stops before they end, and who wrote them."""
        of_vllm = self.mention(_OF_VLLM)
        for process, each in self._open.items():
            if (each.uncaught or each.ends_engine or (each.is_of_a_cell and of_vllm)) and not each.harmless:
                yield process, each

    def _line_before(self, process: str) -> str:
        raw = self.recent[-2] if len(self.recent) > 1 else ""
        writer, text = plain(raw)
        is_title = writer == process and text[:1] != " " and _CALM.search(raw, 0, len(raw) - len(text)) is None
        return text if is_title else ""

    def _start(self, process: str, raw: bool, title: str, number: int) -> None:
        self._open[process] = Traceback(
            raw,
            harmless=number - self._harmless_since.pop(process, -_NEAR) < _NEAR,
            title=title.strip(" ,"),
            number=number,
            is_of_logging=raw and number - self._logging_since.get(process, -_MANY) < _MANY,
        )
        self._open.move_to_end(process)
        self.wants_top = True
        if len(self._open) > _PROCESSES_KEPT:
            self._open.popitem(last=False)

    def _frame(self, process: str, text: str) -> None:
        traceback = self._open.get(process)
        if traceback is not None and not traceback.has_top:
            traceback.has_top = True
            if traceback.is_of_logging:
                # The exception that the record is about comes first: that one was not survived because logging it failed.
                traceback.harmless = _EMITTING.search(text) is not None
            traceback.uncaught = traceback.raw and not traceback.is_of_logging and _TOP_FRAME.search(text) is not None
            traceback.ends_engine = _ENGINE_FRAME.search(text) is not None
            self.wants_top = any(not each.has_top for each in self._open.values())


@cache
def _literals(places: tuple[str, ...]) -> Literals:
    return Literals(places)


def _remember(since: dict[str, int], process: str, number: int) -> None:
    if len(since) >= _PROCESSES_KEPT:
        since.clear()
    since[process] = number


def _begins_with_name(text: str) -> bool:
    # The line of an exception has one word before its colon: few others do, and this is known at once.
    word = text.partition(" ")[0]
    return ":" in word or len(word) == len(text) or text.startswith(" [repeated", len(word))


def _backwards(recent: deque[str], process: str, groups: tuple[str, ...]) -> Iterator[str]:
    """Frames and source lines of a process, the latest first. The latest line of all is not one of them.

    `groups`: what stands before lines of exception groups, where the log has any.
    """
    lines = reversed(recent)
    next(lines, None)
    source = writer = ""
    indented, length = " ", 0  # most lines have the header of the one below them
    for raw in lines:
        if raw.startswith(indented):
            text = raw[length:]
        elif _may_be_of(process, raw):
            writer, text = plain(raw)
            if not text:
                continue  # a header alone, whose space at the end was lost: it would take one from the line above it
            length = len(raw) - len(text)
            indented = raw[:length] + " "
        else:
            continue
        if groups and text.startswith(groups):
            text = _GROUPED.sub("", text, count=1)
        if writer != process or not text.strip(" ^~"):
            continue
        if text.startswith(('  File "', "    ")):
            if source:
                return
            yield text
        elif text.startswith('File "'):
            # Whoever copied the log lost the spaces; a frame without its source line means that this is what was read, or that
            # the code is in no file.
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


def _may_be_of(process: str, raw: str) -> bool:
    """Whether the process may have written a line: tells those of most others apart without taking the line to pieces."""
    if process:
        return f"({process} " in raw
    return raw[:1] != "(" or not 0 < raw.find(" pid=", 1) < raw.find(") ", 1, 130)
