r"""Parse a line: the process that wrote it, its level, its time and its text.

vLLM writes `(EngineCore pid=7) INFO 11-21 09:32:11 [core.py:77] text`. Around it there can be what a kubelet or container runtime adds (a
time, the CRI prefix), and what runs in the container can add: a log format of the user, JSON, and the prefixes of torchrun, Ray and mpirun.
All of them are removed here. `cli.pasted_logs` removes what other tools add.

The updates of a progress bar are separated by `\r` within one line. `\r` ends a line here too, so that a bar can be followed while it
grows. Line numbers count only `\n`.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from vllm_operator.logs.lines.chunks import TAIL_LIMIT, LineBuffer, cut
from vllm_operator.logs.lines.prefixes import Prefixes

LINE_LIMIT = 8192
"""Characters of a line that are read. Of longer lines, the beginning and the end."""
WRAPPINGS_LIMIT = 6
"""Nested prefixes that are removed."""
_HEAD = 130
"""Characters at the beginning of a line that contain the name of the process."""

LEVELS = {"DEBUG": 0, "INFO": 1, "WARNING": 2, "WARN": 2, "ERROR": 3, "CRITICAL": 3, "FATAL": 3}
"""Levels by name. Lines without a level are raw output."""
DEBUG, INFO, WARNING, ERROR = 0, 1, 2, 3

HEADER = re.compile(
    r"(?:\((?:(?P<process>[\w.:-]{1,60}) )?(?:\w[\w=]{0,20} )?pid=\d{1,9}[^()\n]{0,60}\) ?)*"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)"
    r"(?: (?P<time>\d\d-\d\d \d\d:\d\d(?::\d\d)?)(?:\.\d{1,6})? \[?[^\]\s]{1,120}:\d{1,6}\] ?| \[[\w./-]{1,120}\.py:\d{1,6}\] ?|: {1,8}))?"
)
"""Process name, level and time as vLLM writes them. Each part is optional."""
_LEVEL = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
_BETWEEN = r"[ \t:|-]{1,10}"
_LOGGER = r"\[?(?:vllm(?:\.\w{1,60}){1,8}|uvicorn(?:\.\w{1,20})?)\]?(?::\d{1,6})?"
_NUMBER = rf"(?:\[?\d{{1,9}}\]?{_BETWEEN})?"
_CONFIGURED = (
    r"(?:\[?(?P<own>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)\]?"
    rf"{_BETWEEN}{_NUMBER})?(?:\[?(?P<first>{_LEVEL})\]?{_BETWEEN}{_NUMBER}{_LOGGER}|{_LOGGER}{_BETWEEN}{_NUMBER}\[?(?P<last>{_LEVEL})\]?)"
    rf"{_BETWEEN}"
)
"""Log formats of users (VLLM_LOGGING_CONFIG_PATH). They are recognized by the name of the logger."""
WRAPPING = re.compile(
    r"(?:"
    r"(?P<cri>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)) (?P<stream>stdout|stderr) (?P<tag>[FP]) ?"
    r"|(?P<python>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[,.]\d{3}) - (?:[\w.]{1,80} - )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) - "
    r"(?:[\w./-]{1,80}(?::\d+)? - ){0,2}(?:[\w./]{1,80}: )?"
    rf"|{_CONFIGURED}"
    r"|(?P<piped>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[,.]\d{3,6}) \| (?P<severity>DEBUG|INFO|WARNING|ERROR|CRITICAL) {0,3} \| "
    r"(?:[\w.]{1,80}:[\w<>]{1,80}:\d{1,6} - )?"
    r"|\[(?P<ray>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) (?P<letter>[A-Z]) \d{1,9} \d{1,9}\] (?:\([\w-]{1,30}\) )?"
    r"|\[?(?P<iso>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z| ?[+-]\d\d:?\d\d)?)\]?[ \t](?:[ \t]{1,3}(?=[^ \tF]))?(?!- )"
    r"|\[(?:[\w.-]{1,60}:)?(?:rank|default) ?\d{1,5}\]: ?"
    r"|\[\d{1,5},\d{1,5}\]<std(?:out|err)>: ?"
    r")"
)
"""CRI, Python's logging, formats of users, loguru, Ray's C++ logger, a time, torchrun, mpirun."""
_OTHER_LEVEL = re.compile(
    r"\[?(?P<letter>[IWEF])(?:\d{3,4} \d\d:\d\d:| \w{1,40}\.cpp:)|(?P<name>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)(?=[ :|\]])"
)
_LETTERS = {"D": DEBUG, "I": INFO, "W": WARNING}
"""Levels of PyTorch ([W1121 09:20:40.674 socket.cpp:207]), Ray ([2026-11-21 09:20:40,674 I 7 7] core_worker.cc:228) and others."""
_INSIDE = re.compile(
    r"(?:\([\w.-]{1,60} [^()\n]{0,60}\) )?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d(?::\d\d)? \[?[^\]\s]{1,120}:\d{1,6}\] "
)
_PIECE = re.compile(
    _INSIDE.pattern + r"|\([\w.-]{1,60} (?:[\w=]{1,20} )?pid=\d{1,9}[^()\n]{0,60}\) (?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) )|\n"
)
"""Beginning of a record or of a line of a process within a line, where processes wrote at once or line ends were lost; or a line end."""
_ESCAPED = "Traceback (most recent call last):\\n"
"""A traceback in a quoted string."""
_TIME = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d")
JSON_LIMIT = 1 << 20
"""Characters of a line of JSON that are read."""
TEXTS = ("message", "msg", "log", "event", "text")
"""Members of a JSON record that may contain its text, in order of precedence."""
TIMES = ("asctime", "time", "timestamp", "ts", "@timestamp")
"""Members that may contain its time."""
_LEVEL_MEMBERS = ("levelname", "level", "severity", "lvl")
_EXCEPTION_MEMBERS = ("exc_info", "exception", "stack_trace", "exc_text")

_LEVEL_WORDS = {
    "INFO ": (INFO, 5),
    "ERROR": (ERROR, 6),
    "WARNI": (WARNING, 8),
    "DEBUG": (DEBUG, 6),
    "CRITI": (ERROR, 9),
    "INFO:": (INFO, 10),
}


_RECORD_LEVELS = ("DEBUG ", "INFO ", "WARNING ", "ERROR ", "CRITICAL ")
_RECORD = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-")
"""Beginning of a record. To search for it is cheaper than for the whole header."""


def locate(raw: str) -> tuple[int, int | None]:
    """Return where the text of a line without prefixes begins, and its level; -1 if only `LineReader.lines` can tell.

    Most lines have no prefix, and this function takes a tenth of the time of `LineReader.lines`. `raw` is not empty.
    """
    start = 0
    if raw[0] == "(":
        end = raw.find(") ", 1, 130)
        if end < 0 or raw.find("pid=", 1, end) < 0:
            return -1, None
        start = end + 2
    known = _LEVEL_WORDS.get(raw[start : start + 5])
    if known is None:
        first = raw[start : start + 1]
        # No prefix begins with a space or follows the name of a process.
        plain = first == " " or (first.isalpha() or not first if start else _is_prose(raw))
        return (start, None) if plain else (-1, None)
    level, length = known
    date = start + length
    if length == 10:
        return (date, level) if raw[start + 5 : date] == "     " else (-1, None)
    if raw[date + 2 : date + 3] != "-" or raw[date + 5 : date + 6] != " ":
        return -1, None
    end = raw.find("] ", date + 15, date + 160)
    return (end + 2, level) if end > 0 else (-1, None)


def process_of(raw: str) -> str:
    """Name of the process that wrote a line, for which `locate` found the text; empty if the line does not name it."""
    if raw[0] != "(":
        return ""
    name = raw[1 : raw.find(" ", 1, 130)]
    return "" if name.startswith("pid=") else name


def process_before_bar(raw: str, end: int) -> str | None:
    """Name of the process before a bar, empty if there is nothing before it; None if there is something else."""
    if end <= 0:
        return ""
    before = raw[:end].rstrip()  # a bar overwrites the previous one with blanks
    is_name = before[:1] == "(" and before.find(")") == len(before) - 1 and "pid=" in before
    return process_of(raw) if is_name else None


def time_of(raw: str) -> str | None:
    """Time of a record for which `locate` found the text and the level."""
    found = _TIME.search(raw, 0, 160)
    return found[0] if found is not None else None


def _is_prose(raw: str) -> bool:
    """Whether a line begins with a word such as `Loading`, as no prefix does, and contains no record."""
    return raw[:3].isalpha() and raw[1:3].islower() and raw[3:4] != " " and _RECORD.search(raw, 3, 300) is None


def records(raw: str) -> list[str]:
    """Split a line that contains several records, because processes wrote at once or line ends were lost."""
    if not _may_hold_a_record(raw, 80) and raw.find("pid=", 80 if raw[0] == "(" else 0) < 0 and _ESCAPED not in raw:
        return [raw]
    if _ESCAPED in raw and (locate(raw)[1] or ERROR) >= ERROR:  # an INFO record may quote the text of a request
        raw = raw.replace("\\n", "\n")
    bounds = [0]
    for found in _PIECE.finditer(raw, 1):
        bounds += [found.start()] if found[0][0] in "(DIWEC" else [found.start(), found.end()]
    bounds.append(len(raw))
    pieces = (raw[start:end] for start, end in pairwise(bounds))
    return [piece for piece in pieces if piece and piece[0] != "\n"]


def plain(raw: str) -> tuple[str, str]:
    """Return process and text of a line that was read before. JSON and parts of CRI lines stay as they are."""
    start, _ = locate(raw) if raw else (0, None)
    if start >= 0:
        return process_of(raw) if raw else "", raw[start:]
    for _ in range(WRAPPINGS_LIMIT):
        wrapped = WRAPPING.match(raw)
        if wrapped is None:
            break
        raw = raw[wrapped.end() :]
    found = HEADER.match(raw)
    return (found["process"] or "", raw[found.end() :]) if found is not None else ("", raw)


def _may_hold_a_record(raw: str, begin: int) -> bool:
    # Five searches for strings take a fifth of the time of one for a regular expression that begins with any of them.
    levels = any(raw.find(level, begin) >= 0 for level in _RECORD_LEVELS)
    return levels and _RECORD.search(raw, begin) is not None


def is_wrapping(head: str) -> bool:
    """Whether a text consists only of prefixes that are removed here."""
    for _ in range(WRAPPINGS_LIMIT):
        found = WRAPPING.match(head) or HEADER.match(head)
        if found is None or not found.end():
            break
        head = head[found.end() :]
    return not head


@dataclass(slots=True)
class Line:
    """A parsed line.

    `process` is vLLM's name of the process ("Worker_TP0"), empty if unknown. `level` is None for raw output. `time` is the most precise
    time in the line, as written: "2026-11-21T09:06:04.5Z", "11-21 09:06:04". `record` is the line as vLLM wrote it.
    """

    number: int
    process: str
    level: int | None
    time: str | None
    text: str
    record: str


class LineReader:
    """Splits chunks of any size into lines. Its memory is bounded."""

    def __init__(self) -> None:
        """Create a reader for a new log."""
        self._buffer = LineBuffer()
        self._partial: dict[str, str] = {}
        self._prefixes = Prefixes(is_wrapping)
        self.number = 0
        self.has_returns = False
        """Whether the latest chunk holds a carriage return."""

    def feed(self, data: bytes | str) -> list[str]:
        r"""Add a chunk. Return the lines that are complete, without "\n" but with any "\r"."""
        if isinstance(data, str):
            data = data.encode("utf-8", "replace")
        blocks = self._buffer.feed(data)
        self.has_returns = self._buffer.has_returns
        lines = cut(blocks[0]) if len(blocks) == 1 else [line for block in blocks for line in cut(block)]
        return self._prefixes.without(lines) if self._prefixes.is_watching else lines

    @property
    def tail(self) -> str:
        """Beginning of a line whose end has not arrived."""
        return self._buffer.tail.decode("utf-8", "replace")

    def end(self) -> list[str]:
        """Return the last line, if the log ends without a line end and the line is more than a prefix."""
        tail = self._buffer.take()
        return [line for line in self._prefixes.without(cut(tail)) if line] if tail else []

    def lines(self, raw: str) -> Iterator[Line]:
        """Parse a complete line. A line of JSON may contain several lines, a partial CRI line none."""
        if len(raw) > LINE_LIMIT and (raw[0] != "{" or len(raw) > JSON_LIMIT):
            raw = raw[: LINE_LIMIT * 3 // 4] + " " + raw[-LINE_LIMIT // 4 :]
        return self._unwrapped(raw, WRAPPINGS_LIMIT)

    def _unwrapped(self, raw: str, wrappings: int) -> Iterator[Line]:
        time: str | None = None
        level: int | None = None
        for _ in range(wrappings):
            if raw[:1] == "{":
                members = _json(raw)
                if members is not None:
                    yield from self._from_json(members, time, wrappings - 1)
                    return
            wrapped = WRAPPING.match(raw)
            if wrapped is None:
                found = HEADER.match(raw)
                assert found is not None  # every part of it is optional
                if found["level"] or found.end() == len(raw):
                    break
                inside = _INSIDE.search(raw, 1, 300) if _RECORD.search(raw, 1, 300) else None
                if inside is not None:
                    raw = raw[inside.start() :]
                    break
                if not found.end():
                    break
                rest = raw[found.end() :]
                if not (rest[:1] == "{" or WRAPPING.match(rest)):
                    break
                # The name of a process before another prefix, as Ray writes it.
                for inner in self._unwrapped(rest, wrappings - 1):
                    inner.process = inner.process or found["process"] or ""
                    inner.time = inner.time or time
                    yield inner
                return
            raw = raw[wrapped.end() :]
            time = wrapped["cri"] or wrapped["python"] or wrapped["piped"] or wrapped["own"] or wrapped["iso"] or wrapped["ray"] or time
            if wrapped["letter"]:
                level = _LETTERS.get(wrapped["letter"], ERROR)
                break
            if named := wrapped["level"] or wrapped["severity"] or wrapped["first"] or wrapped["last"]:
                level = LEVELS[named]
                break
            if wrapped["tag"]:
                stream = wrapped["stream"]
                raw = (self._partial.pop(stream, "") + raw)[:TAIL_LIMIT]
                if wrapped["tag"] == "P":
                    self._partial[stream] = raw
                    return
        yield _line(self.number, raw, time, level)

    def _from_json(self, members: dict[str, object], time: str | None, wrappings: int) -> Iterator[Line]:
        own = next((str(members[key]) for key in TIMES if members.get(key)), None)
        text = next((value for key in TEXTS if isinstance(value := members.get(key), str)), "")
        named = next((str(members[key]).upper() for key in _LEVEL_MEMBERS if members.get(key)), "")
        process = str(members.get("vllm_process_name") or "")[:60]
        detail = next((value for key in _EXCEPTION_MEMBERS if isinstance(value := members.get(key), str)), "")
        level = LEVELS.get(named)
        whole = f"{text}\n{detail}" if detail else text
        whole = whole.encode("utf-8", "replace").decode()  # JSON may contain lone surrogates, which cannot be encoded
        for each in whole.rstrip("\n").split("\n")[:2000]:
            if wrappings > 0 and ("{" in each[:_HEAD] or (each and locate(each)[0] < 0)):
                # vLLM's own JSON or the format of a library, within the JSON of a container runtime.
                for inner in self._unwrapped(each[:LINE_LIMIT].rstrip("\r"), wrappings):
                    inner.level = level if inner.level is None else inner.level
                    inner.process = inner.process or process
                    inner.time = inner.time or own or time
                    yield inner
                continue
            inner = _line(self.number, each[:LINE_LIMIT].rstrip("\r"), own or time, level)
            inner.process = inner.process or process
            yield inner


def _line(number: int, raw: str, time: str | None, level: int | None) -> Line:
    found = HEADER.match(raw)
    assert found is not None  # every part of it is optional
    named = found["level"]
    if level is None and named is None and (other := _OTHER_LEVEL.match(raw, found.end())):
        level = LEVELS[other["name"]] if other["name"] else _LETTERS.get(other["letter"], ERROR)
    return Line(number, found["process"] or "", LEVELS[named] if named else level, time or found["time"], raw[found.end() :], raw)


def _json(raw: str) -> dict[str, object] | None:
    try:
        members = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    is_record = isinstance(members, dict) and any(isinstance(members.get(key), str) for key in TEXTS)
    return members if is_record else None
