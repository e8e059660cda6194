r"""From the bytes of a log to lines, and from a line to who wrote it, how urgent it is, when, and what it says.

The same engine log looks different depending on how it was obtained: with the prefix of `kubectl logs --prefix`
or `--timestamps`, of docker compose, of a CRI log file, as docker's or vLLM's JSON, with the prefixes of Ray or
torchrun around vLLM's own `(EngineCore pid=7) INFO 11-21 09:32:11 [core.py:77] `. They are taken off here.

A progress bar is one line whose updates are separated by `\r`; `\r` counts as an end of line here, so that a bar
can be followed while it grows. Line numbers count `\n` only.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from vllm_operator.startup.lines.chunks import TAIL_LIMIT, LineBuffer, cut
from vllm_operator.startup.lines.prefixes import Prefixes

LINE_LIMIT = 8192
"""Characters of a line that are looked at; of longer ones the beginning and the end."""
_WRAPPINGS = 6
_HEAD = 130
"""Characters in which the name of a process stands."""

LEVELS = {"DEBUG": 0, "INFO": 1, "WARNING": 2, "WARN": 2, "ERROR": 3, "CRITICAL": 3, "FATAL": 3}
"""How urgent; lines without a level are raw output."""
DEBUG, INFO, WARNING, ERROR = 0, 1, 2, 3

_VLLM = re.compile(
    r"(?:\((?:(?P<process>[\w.:-]{1,60}) )?(?:\w[\w=]{0,20} )?pid=\d{1,9}[^()\n]{0,60}\) ?)*"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)"
    r"(?: (?P<time>\d\d-\d\d \d\d:\d\d(?::\d\d)?)(?:\.\d{1,6})? \[?[^\]\s]{1,120}:\d{1,6}\] ?| \[[\w./-]{1,120}\.py:\d{1,6}\] ?|: {1,8}))?"
)
_LEVEL = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
_BETWEEN = r"[ \t:|-]{1,10}"
_LOGGER = r"\[?(?:vllm(?:\.\w{1,60}){1,8}|uvicorn(?:\.\w{1,20})?)\]?(?::\d{1,6})?"
_NUMBER = rf"(?:\[?\d{{1,9}}\]?{_BETWEEN})?"
_CONFIGURED = (
    r"(?:\[?(?P<own>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)\]?"
    rf"{_BETWEEN}{_NUMBER})?(?:\[?(?P<first>{_LEVEL})\]?{_BETWEEN}{_NUMBER}{_LOGGER}|{_LOGGER}{_BETWEEN}{_NUMBER}\[?(?P<last>{_LEVEL})\]?)"
    rf"{_BETWEEN}"
)
"""What a format of the user's own (VLLM_LOGGING_CONFIG_PATH) puts before the message: the name of the logger tells that it is one."""
_WRAPPED = re.compile(
    r"(?:"
    r"(?P<cri>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)) (?P<stream>stdout|stderr) (?P<tag>[FP]) ?"
    r"|(?P<python>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[,.]\d{3}) - (?:[\w.]{1,80} - )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) - "
    r"(?:[\w./-]{1,80}(?::\d+)? - ){0,2}(?:[\w./]{1,80}: )?"
    rf"|{_CONFIGURED}"
    r"|(?P<piped>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[,.]\d{3,6}) \| (?P<severity>DEBUG|INFO|WARNING|ERROR|CRITICAL) {0,3} \| "
    r"(?:[\w.]{1,80}:[\w<>]{1,80}:\d{1,6} - )?"
    r"|\[(?P<ray>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) (?P<letter>[A-Z]) \d{1,9} \d{1,9}\] (?:\([\w-]{1,30}\) )?"
    r"|\[?(?P<iso>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z| ?[+-]\d\d:?\d\d)?)\]?[ \t](?:[ \t]{1,3}(?=[^ \tF]))?(?!- )"
    r"|\[pod/[^\]\s]{1,200}\] "
    r"|\[(?:[\w.-]{1,60}:)?(?:rank|default) ?\d{1,5}\]: ?"
    r"|\[\d{1,5},\d{1,5}\]<std(?:out|err)>: ?"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,80} [\w./-]{1,60}(?:\[\d{1,9}\])?: "
    r"|[\w.-]{1,80} {1,20}\| "
    r"|> |[-*] (?=\d{4}-)|`(?=\w)|[\"'`](?=\(\w)"
    r")"
)
_FOREIGN_LEVEL = re.compile(
    r"\[?(?P<letter>[IWEF])(?:\d{3,4} \d\d:\d\d:| \w{1,40}\.cpp:)|(?P<name>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)(?=[ :|\]])"
)
_LETTERS = {"D": DEBUG, "I": INFO, "W": WARNING}
"""The levels of PyTorch ([W1121 09:20:40.674 socket.cpp:207]), of Ray ([2026-11-21 09:20:40,674 I 7 7] core_worker.cc:228) and others."""
_INSIDE = re.compile(
    r"(?:\([\w.-]{1,60} [^()\n]{0,60}\) )?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d(?::\d\d)? \[?[^\]\s]{1,120}:\d{1,6}\] "
)
_CUT = re.compile(r"(?P<rest>[A-Z]{1,7}) \d\d-\d\d \d\d:\d\d(?::\d\d)?(?:\.\d{1,6})? \[?[^\]\s]{1,120}:\d{1,6}\] ")
"""A record that was copied from within its first word."""
_PIECE = re.compile(
    _INSIDE.pattern + r"|\([\w.-]{1,60} (?:[\w=]{1,20} )?pid=\d{1,9}[^()\n]{0,60}\) (?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) )|⏎(?: ⏎)* ?"
)
"""What a record, a line of a process or any line begins with, in a text whose ends of lines were lost or replaced."""
_ESCAPED = "Traceback (most recent call last):\\n"
"""A traceback in a string of JSON or of a program."""
_TIME = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d")
_JSON_LIMIT = 1 << 20
"""Characters of a line of JSON: it may hold a whole log."""
TEXTS = ("message", "msg", "log", "event", "text", "line", "textPayload", "MESSAGE", "body", "_raw")
"""Where a line of JSON may have its text."""
TIMES = ("asctime", "time", "timestamp", "ts", "@timestamp")
"""Where it may have its time."""
_JSON_LOGS = ("output", "error", "logs", "stderr", "stdout", "traceback", "detail")
"""Where a line of JSON may have text of several lines."""
_JSON_INNER = ("content", "jsonPayload", "fields", "attributes", "data")
"""Where a line of JSON has the text, its time, and the object that has both."""


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
"""What each record has at its beginning: cheaper to look for than its whole header."""


def locate(raw: str) -> tuple[int, int | None]:
    """Where the text of a line without wrappings begins, and its level; -1 if it has to be looked at closely.

    Most lines of most logs have no wrappings, and this takes a tenth of the time that `LineReader.lines` takes.
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
        # After the name of a process, or before a space, there is nothing that could be a wrapping.
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
    """The name of the process that wrote a line which `locate` knows."""
    if raw[0] != "(":
        return ""
    name = raw[1 : raw.find(" ", 1, 130)]
    return "" if name.startswith("pid=") else name


def process_before_bar(raw: str, end: int) -> str | None:
    """The name of the process that is all that stands before a bar, empty where there is none; None if something else stands there."""
    if end <= 0:
        return ""
    before = raw[:end].rstrip()  # a bar that gives way to another leaves blanks behind
    is_name = before[:1] == "(" and before.find(")") == len(before) - 1 and "pid=" in before
    return process_of(raw) if is_name else None


def time_of(raw: str) -> str | None:
    """The time of a line which `locate` knows and which has a level."""
    found = _TIME.search(raw, 0, 160)
    return found[0] if found is not None else None


def _is_prose(raw: str) -> bool:
    """Whether a line begins with a word such as `Loading` or `socket`: no wrapping does, but for the names of containers."""
    begins = raw[:3].isalpha() and raw[1:3].islower() and raw[3:4] != " "
    return begins and raw.find("| ", 3, 104) < 0 and _RECORD.search(raw, 3, 300) is None


def records(raw: str) -> list[str]:
    """The log records in a line that holds several: whoever copied the log lost the ends of lines."""
    if not _may_hold_a_record(raw, 80) and raw.find("pid=", 80 if raw[0] == "(" else 0) < 0 and "⏎" not in raw and _ESCAPED not in raw:
        return [raw]
    if _ESCAPED in raw and (locate(raw)[1] or ERROR) >= ERROR:  # not the text of a request, which INFO quotes
        raw = raw.replace("\\n", "⏎")
    bounds = [0]
    for found in _PIECE.finditer(raw, 1):
        bounds += [found.start()] if found[0][0] in "(DIWEC" else [found.start(), found.end()]
    bounds.append(len(raw))
    pieces = (raw[start:end] for start, end in pairwise(bounds))
    return [piece for piece in pieces if piece and piece[0] != "⏎"]


def plain(raw: str) -> tuple[str, str]:
    """Process and text of a line, for a second look at it: JSON and parts of lines are left as they are."""
    start, _ = locate(raw) if raw else (0, None)
    if start >= 0:
        return process_of(raw) if raw else "", raw[start:]
    for _ in range(_WRAPPINGS):
        wrapped = _WRAPPED.match(raw)
        if wrapped is None:
            break
        raw = raw[wrapped.end() :]
    found = _VLLM.match(raw)
    return (found["process"] or "", raw[found.end() :]) if found is not None else ("", raw)


def _may_hold_a_record(raw: str, begin: int) -> bool:
    # Five searches for texts take a fifth of the time of one for an expression that begins with any of them.
    levels = any(raw.find(level, begin) >= 0 for level in _RECORD_LEVELS)
    return levels and _RECORD.search(raw, begin) is not None


def is_wrapping(head: str) -> bool:
    """Whether something before the beginning of a line is one that is taken off here."""
    for _ in range(_WRAPPINGS):
        found = _WRAPPED.match(head) or _VLLM.match(head)
        if found is None or not found.end():
            break
        head = head[found.end() :]
    return not head


@dataclass(slots=True)
class Line:
    """One line, taken apart.

    `process` is the process name of vLLM ("Worker_TP0"), empty if unknown. `level` is None for raw output.
    `time` is the text of the log's own time, as precise as it is there: "2026-11-21T09:06:04.5Z", "11-21 09:06:04".
    `record` is the line as vLLM wrote it.
    """

    number: int
    process: str
    level: int | None
    time: str | None
    text: str
    record: str


class LineReader:
    """Cuts chunks of any size into lines, with a bounded memory."""

    def __init__(self) -> None:
        """Begin with line 1."""
        self._buffer = LineBuffer()
        self._partial: dict[str, str] = {}
        self._prefixes = Prefixes(is_wrapping)
        self.number = 0
        self.has_returns = False
        """Whether the latest chunk holds a carriage return."""

    def feed(self, data: bytes | str) -> list[str]:
        r"""Take a chunk; return the lines that are complete, without the "\n" at their ends, but with any "\r"."""
        if isinstance(data, str):
            data = data.encode("utf-8", "replace")
        blocks = self._buffer.feed(data)
        self.has_returns = self._buffer.has_returns
        lines = cut(blocks[0]) if len(blocks) == 1 else [line for block in blocks for line in cut(block)]
        return self._prefixes.without(lines) if self._prefixes.is_watching else lines

    @property
    def tail(self) -> str:
        """The beginning of a line that has not ended yet."""
        return self._buffer.tail.decode("utf-8", "replace")

    def end(self) -> list[str]:
        """No more is to come: what is left is a line, if there is more of it than a prefix."""
        tail = self._buffer.take()
        return [line for line in self._prefixes.without(cut(tail)) if line] if tail else []

    def lines(self, raw: str) -> Iterator[Line]:
        """Take a complete line apart. A line of JSON may hold several, a part of a CRI line none."""
        if len(raw) > LINE_LIMIT and (raw[0] != "{" or len(raw) > _JSON_LIMIT):
            raw = raw[: LINE_LIMIT * 3 // 4] + " " + raw[-LINE_LIMIT // 4 :]
        return self._unwrapped(raw, _WRAPPINGS)

    def _unwrapped(self, raw: str, wrappings: int) -> Iterator[Line]:
        time: str | None = None
        level: int | None = None
        for _ in range(wrappings):
            if raw[:1] == "{":
                members = _json(raw)
                if members is not None:
                    yield from self._from_json(members, time, wrappings - 1)
                    return
            wrapped = _WRAPPED.match(raw)
            if wrapped is None:
                found = _VLLM.match(raw)
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
                if not (rest[:1] == "{" or _WRAPPED.match(rest)):
                    break
                # A process prefix around something that has a frame of its own.
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
        text = next((value for key in TEXTS if isinstance(value := members.get(key), str)), None)
        if text is None:
            text = "\n".join(value for key in _JSON_LOGS if isinstance(value := members.get(key), str))
        named = next((str(members[key]).upper() for key in ("levelname", "level", "severity", "lvl") if members.get(key)), "")
        process = str(members.get("vllm_process_name") or "")[:60]
        detail = next(
            (value for key in ("exc_info", "exception", "stack_trace", "exc_text") if isinstance(value := members.get(key), str)), ""
        )
        level = LEVELS.get(named)
        whole = f"{text or ''}\n{detail}" if detail else (text or "")
        whole = whole.encode("utf-8", "replace").decode()  # JSON may hold halves of characters, which cannot be sent on
        for each in whole.rstrip("\n").split("\n")[:2000]:
            if wrappings > 0 and ("{" in each[:_HEAD] or (each and locate(each)[0] < 0)):
                # vLLM's own JSON, or the format of a library, in that of a container runtime.
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
    found = _VLLM.match(raw)
    assert found is not None  # every part of it is optional
    named = found["level"]
    if level is None and named is None and (foreign := _FOREIGN_LEVEL.match(raw, found.end())):
        level = LEVELS[foreign["name"]] if foreign["name"] else _LETTERS.get(foreign["letter"], ERROR)
    elif level is None and named is None and (cut := _CUT.match(raw)):
        level, raw = next((level for name, level in LEVELS.items() if name.endswith(cut["rest"])), None), raw[cut.end() :]
    return Line(number, found["process"] or "", LEVELS[named] if named else level, time or found["time"], raw[found.end() :], raw)


def _json(raw: str) -> dict[str, object] | None:
    try:
        members = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if isinstance(members, dict) and not (found := _has_text(members)):
        # Datadog and Google wrap it once more.
        members = next((each for key in _JSON_INNER if isinstance(each := members.get(key), dict)), members)
        found = _has_text(members)
    return members if isinstance(members, dict) and found else None


def _has_text(members: dict[str, object]) -> bool:
    return any(isinstance(members.get(key), str) for key in TEXTS) or any(
        isinstance(value := members.get(key), str) and "\n" in value for key in _JSON_LOGS
    )
