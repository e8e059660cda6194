"""Following Python tracebacks through a log in which several processes write at once.

A traceback is the line `Traceback (most recent call last):`, frames and their source lines (indented), and the
exception's own line. Logged tracebacks carry the prefix of a log record on every line, which is taken off before;
raw ones were printed by Python itself: if their frames begin at the top of a process, it has ended.
"""

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum, auto

FRAMES_KEPT = 24
_PROCESSES_KEPT = 8
_FRAME_LIMIT = 160
_EXCEPTION = re.compile(
    r"(?:[\w.]{0,160}\.)?[A-Za-z_]\w{0,80}(?:Error|Exception|Interrupt|Exit|Timeout|Failure|NotFound|Expired|Closed|Full|Empty|Killed|Signal"
    r"|IsEnabled|Unavailable|Warning|Invalid\w{0,20})(?::|$| \[repeated)"
)
_TOP_FRAME = re.compile(
    r"in <module>|multiprocessing/(?:process|spawn|popen_\w+)\.py|in _run_module_as_main|in run_engine_core|in worker_main"
)
_HARMLESS = (
    "Exception ignored in",
    "Task exception was never retrieved",
    "Future exception was never retrieved",
    "Exception in thread",
    "--- Logging error ---",
    "Error in atexit",
    "Error in sys.excepthook",
)


class Part(Enum):
    """What a line is to a traceback."""

    START = auto()
    FRAME = auto()
    CODE = auto()
    EXCEPTION = auto()
    OTHER = auto()


@dataclass(slots=True)
class Traceback:
    """The traceback that a process is printing, or printed last.

    `uncaught`: it reaches from the top of the process to its end. `harmless`: Python says that it goes on.
    """

    raw: bool
    harmless: bool = False
    uncaught: bool = False
    is_open: bool = True
    frames: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Keep a frame or a source line: the first few and the last ones."""
        if len(self.frames) >= FRAMES_KEPT:
            del self.frames[FRAMES_KEPT // 3]
        self.frames.append(text[:_FRAME_LIMIT])


class Tracebacks:
    """The latest traceback of each process, of the few that wrote last."""

    def __init__(self) -> None:
        """No traceback so far."""
        self._latest: OrderedDict[str, Traceback] = OrderedDict()
        self._after_frame = ""
        self._harmless_next = False

    def of(self, process: str) -> Traceback | None:
        """The traceback that the process is in, or had last."""
        return self._latest.get(process)

    def take(self, process: str, text: str, *, raw: bool) -> Part:
        """Say what the line is to the tracebacks, and remember it."""
        if text.startswith('  File "'):
            return self._frame(process, text, raw)
        indented = text[:4] == "    "
        if indented:
            if self._after_frame == (process or "-"):
                self._after_frame = ""
                traceback = self._latest.get(process)
                if traceback is not None:
                    traceback.add(text)
                return Part.CODE
            if not text.strip(" ^~"):
                return Part.FRAME
            if not raw:
                self._latest.setdefault(process, Traceback(raw)).add(text)
        elif text.startswith("Traceback (most recent call last)"):
            self._start(process, raw)
            return Part.START
        elif text.startswith(_HARMLESS):
            self._harmless_next = True
            return Part.OTHER
        traceback = self._latest.get(process)
        if traceback is not None and traceback.is_open and not indented and text[:1] != " ":
            traceback.is_open = False
            return Part.EXCEPTION
        return Part.EXCEPTION if _EXCEPTION.match(text) else Part.OTHER

    def forget(self) -> None:
        """Forget all of them."""
        self._latest.clear()
        self._harmless_next = False

    def _start(self, process: str, raw: bool) -> None:
        self._latest[process] = Traceback(raw, harmless=self._harmless_next)
        self._latest.move_to_end(process)
        self._harmless_next = False
        self._after_frame = ""
        if len(self._latest) > _PROCESSES_KEPT:
            self._latest.popitem(last=False)

    def _frame(self, process: str, text: str, raw: bool) -> Part:
        traceback = self._latest.get(process)
        if traceback is None or not traceback.is_open:
            self._start(process, raw)
            traceback = self._latest[process]
        traceback.add(text)
        if traceback.raw and not traceback.uncaught and _TOP_FRAME.search(text):
            traceback.uncaught = True
        self._after_frame = process or "-"
        return Part.FRAME
