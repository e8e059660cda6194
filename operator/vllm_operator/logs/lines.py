r"""From the bytes of a log to its lines, and from a line to its process, level, time and text.

vLLM writes `(EngineCore pid=7) INFO 11-21 09:32:11 [core.py:77] text`. Around it there can be what a kubelet or container runtime adds (a
time, the CRI prefix), and what runs in the container can add: a log format of the user, JSON, and the prefixes of torchrun, Ray and mpirun.
All of them are removed here. Prefixes of other launchers are learned from the log. `cli.pasted_logs` removes what other tools add.

The updates of a progress bar are separated by `\r` within one line. Line numbers count only `\n`.
"""

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from vllm_operator.catalog.error_forms import load_error_forms

LINE_LIMIT = 8192  # Characters of a line that are read. Of longer lines, the beginning and the end.
WRAPPINGS_LIMIT = 6  # nested prefixes that are removed
_BAR_LIMIT = 2048  # characters of an incomplete line above which only the latest updates of its progress bar are kept
_TAIL_LIMIT = 32768  # characters of an incomplete line above which it is read as it is
_UPDATES_KEPT = 4
_NO_UPDATE = re.compile(r'\] |pid=|"')  # parts of log records that no update of a bar has
_COLOURS = re.compile(r"\x1b(?:\[[0-9;?]{0,16}[A-Za-z]|\][^\x07]{0,80}\x07)|(?:\\x1b|\\u001b|\\033)\[[0-9;]{0,8}m|\x00")
"""Colours, also with the escape character as JSON and Python write it; and NUL."""
_PLAIN = {"\t": "    ", "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'}
"""Replacements of tabs, and of typographic quotation marks, which compilers write in some locales."""

DEBUG, INFO, WARNING, ERROR = 0, 1, 2, 3
LEVELS = {"DEBUG": DEBUG, "INFO": INFO, "WARNING": WARNING, "WARN": WARNING, "ERROR": ERROR, "CRITICAL": ERROR, "FATAL": ERROR}
"""Levels by name. Lines without a level are raw output."""
_LEVEL = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
_TIMES = ("cri", "python", "piped", "own", "iso", "ray")
_NAMES = ("level", "severity", "first", "last")
"""Groups of `ErrorForms.wrapping` that contain a time or the name of a level."""
_OTHER_LEVEL = re.compile(rf"\[?(?P<letter>[IWEF])(?:\d{{3,4}} \d\d:\d\d:| \w{{1,40}}\.cpp:)|(?P<name>{_LEVEL}|WARN)(?=[ :|\]])")
_LETTERS = {"D": DEBUG, "I": INFO, "W": WARNING}
"""Levels of PyTorch ([W1121 09:20:40.674 socket.cpp:207]), Ray ([2026-11-21 09:20:40,674 I 7 7] core_worker.cc:228) and others."""
_DATED = rf"(?:{_LEVEL}) \d\d-\d\d \d\d:\d\d(?::\d\d)? \[?[^\]\s]{{1,120}}:\d{{1,6}}\] "
_RECORD = re.compile(rf"(?:{_LEVEL}) \d\d-")  # Beginning of a record. To search for it is cheaper than for the whole header.
_INSIDE = re.compile(rf"(?:\([\w.-]{{1,60}} [^()\n]{{0,60}}\) )?{_DATED}")
_PIECE = re.compile(rf"{_INSIDE.pattern}|\([\w.-]{{1,60}} (?:[\w=]{{1,20}} )?pid=\d{{1,9}}[^()\n]{{0,60}}\) (?!(?:{_LEVEL}) )|\n")
"""Beginning of a record or of a line of a process within a line, where processes wrote at once or line ends were lost; or a line end."""
_ESCAPED = "Traceback (most recent call last):\\n"  # a traceback in a quoted string

JSON_LIMIT = 1 << 20  # characters of a line of JSON that are read
TEXTS = ("message", "msg", "log", "event", "text")  # members of a JSON record that may contain its text, in order of precedence
_TIME_MEMBERS = ("asctime", "time", "timestamp", "ts", "@timestamp")
_LEVEL_MEMBERS = ("levelname", "level", "severity", "lvl")
_EXCEPTION_MEMBERS = ("exc_info", "exception", "stack_trace", "exc_text")
_JSON_LINES = 2000


def cleaned(text: str) -> str:
    """Remove colours and NUL, and replace tabs and typographic quotation marks."""
    if "\x1b" in text or "\x00" in text or "0m" in text:  # the common end of colours
        text = _COLOURS.sub("", text)
    for character, plain in _PLAIN.items():
        text = text.replace(character, plain)
    return text


@dataclass(frozen=True, slots=True)
class Line:
    """A parsed line."""

    process: str  # vLLM's name of the process ("Worker_TP0"); empty if unknown
    level: int | None  # None for raw output
    time: str | None  # the most precise one in the line, as written: "2026-11-21T09:06:04.5Z", "11-21 09:06:04"
    text: str
    header: str = ""  # what vLLM wrote before the text


class LineReader:
    """Splits chunks of any size into lines, and parses lines. Its memory is bounded. `tail`: a line whose end has not arrived."""

    def __init__(self) -> None:
        self.tail = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial: dict[str, str] = {}
        self._prefixes = _Prefixes()

    def feed(self, data: bytes | str) -> list[str]:
        r"""Add a chunk. Return the lines that are complete, without "\n" but with any "\r"."""
        text = self._decoder.decode(data.encode("utf-8", "replace") if isinstance(data, str) else data)
        *lines, tail = cleaned(self.tail + text).split("\n")
        if len(tail) > _BAR_LIMIT and "\r" in tail:
            tail = _latest_updates(tail)
        if len(tail) > _TAIL_LIMIT:
            lines, tail = [*lines, tail], ""
        self.tail = tail
        return self._prefixes.without(lines)

    def end(self) -> list[str]:
        """Return the last line, if the log ends without a line end and the line is more than a prefix."""
        tail, self.tail = self.tail + self._decoder.decode(b"", final=True), ""
        return [line for line in self._prefixes.without([tail]) if line]

    def lines(self, raw: str) -> Iterator[Line]:
        """Parse a complete line that is not empty. A line of JSON may contain several lines, a partial CRI line none."""
        if len(raw) > LINE_LIMIT and (raw[0] != "{" or len(raw) > JSON_LIMIT):
            raw = raw[: LINE_LIMIT * 3 // 4] + " " + raw[-LINE_LIMIT // 4 :]
        if raw[0] == " ":  # no prefix begins with a space
            return iter((Line("", None, None, raw),))
        if (found := _header(raw))["time"]:
            return iter((_line_of(found),))
        return self._unwrapped(raw, None, WRAPPINGS_LIMIT)

    def _unwrapped(self, raw: str, time: str | None, wrappings: int) -> Iterator[Line]:
        level: int | None = None
        for _ in range(wrappings):
            if raw[:1] == "{" and (members := _json(raw)) is not None:
                yield from self._from_json(members, time, wrappings - 1)
                return
            if (wrapped := load_error_forms().wrapping.match(raw)) is None:
                found = _header(raw)
                if found["level"] or found.end() == len(raw):
                    break
                inside = _INSIDE.search(raw, 1, 300) if _RECORD.search(raw, 1, 300) else None
                if inside is not None:
                    raw = raw[inside.start() :]
                    break
                rest = raw[found.end() :]
                if not found.end() or not (rest[:1] == "{" or load_error_forms().wrapping.match(rest)):
                    break
                # The name of a process before another prefix, as Ray writes it.
                yield from _completed(self._unwrapped(rest, time, wrappings - 1), found["process"], None)
                return
            raw = raw[wrapped.end() :]
            time = next(filter(None, wrapped.group(*_TIMES)), time)
            if wrapped["letter"]:
                level = _LETTERS.get(wrapped["letter"], ERROR)
                break
            if named := next(filter(None, wrapped.group(*_NAMES)), None):
                level = LEVELS[named]
                break
            if wrapped["tag"]:
                stream = wrapped["stream"]
                raw = (self._partial.pop(stream, "") + raw)[:_TAIL_LIMIT]
                if wrapped["tag"] == "P":
                    self._partial[stream] = raw
                    return
        yield _line(raw, time, level)

    def _from_json(self, members: dict[str, object], time: str | None, wrappings: int) -> Iterator[Line]:
        time = next((str(members[key]) for key in _TIME_MEMBERS if members.get(key)), time)
        level = LEVELS.get(next((str(members[key]).upper() for key in _LEVEL_MEMBERS if members.get(key)), ""))
        process = str(members.get("vllm_process_name") or "")[:60]
        texts = (next((value for key in keys if isinstance(value := members.get(key), str)), "") for keys in (TEXTS, _EXCEPTION_MEMBERS))
        whole = "\n".join(texts).encode("utf-8", "replace").decode()  # JSON may contain lone surrogates, which cannot be encoded
        for each in whole.rstrip("\n").split("\n")[:_JSON_LINES]:
            each = each[:LINE_LIMIT].rstrip("\r")
            # vLLM's own JSON or the format of a library may be within the JSON of a container runtime.
            inner = self._unwrapped(each, time, wrappings) if each[:1] not in ("", " ") else iter((_line(each, time, level),))
            yield from _completed(inner, process, level)


def _completed(lines: Iterator[Line], process: str | None, level: int | None) -> Iterator[Line]:
    """Return the lines with what surrounds them, where they say nothing themselves."""
    for line in lines:
        yield replace(line, process=line.process or process or "", level=level if line.level is None else line.level)


def _header(raw: str) -> re.Match[str]:
    found = load_error_forms().header.match(raw)
    assert found is not None  # every part of it is optional
    return found


def _line(raw: str, time: str | None, level: int | None) -> Line:
    found = _header(raw)
    if not found["level"] and level is None and (other := _OTHER_LEVEL.match(raw, found.end())):
        level = LEVELS[other["name"]] if other["name"] else _LETTERS.get(other["letter"], ERROR)
    return _line_of(found, time, level)


def _line_of(header: re.Match[str], time: str | None = None, level: int | None = None) -> Line:
    level = LEVELS[header["level"]] if header["level"] else level
    return Line(header["process"] or "", level, time or header["time"], header.string[header.end() :], header[0])


def _json(raw: str) -> dict[str, object] | None:
    try:
        members = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return members if isinstance(members, dict) and any(isinstance(members.get(key), str) for key in TEXTS) else None


def _latest_updates(tail: str) -> str:
    """Remove old updates from the incomplete line of a bar, unless they may contain a log record."""
    begin, back, updates = tail.partition("\r")
    over, *latest = updates.rsplit("\r", _UPDATES_KEPT)
    return begin + back + "\r".join(latest) if latest and "%" in over and not _NO_UPDATE.search(over) else tail


def process_before_bar(before: str) -> str | None:
    """Return the name of the process before a bar, empty if there is nothing before it; None if there is something else."""
    found = load_error_forms().header.fullmatch(before.rstrip())  # a bar overwrites the previous one with blanks
    return (found["process"] or "") if found is not None and not found["level"] else None


def records(raw: str) -> list[str]:
    """Split a line that contains several records, because processes wrote at once or line ends were lost."""
    if not _RECORD.search(raw, 80) and raw.find("pid=", 80 if raw[0] == "(" else 0) < 0 and _ESCAPED not in raw:
        return [raw]
    if _ESCAPED in raw and LEVELS[_header(raw)["level"] or "ERROR"] >= ERROR:  # an INFO record may quote the text of a request
        raw = raw.replace("\\n", "\n")
    bounds = [0]
    for found in _PIECE.finditer(raw, 1):
        bounds += [found.start()] if found[0] != "\n" else [found.start(), found.end()]
    pieces = (raw[start:end] for start, end in pairwise([*bounds, len(raw)]))
    return [piece for piece in pieces if piece and piece[0] != "\n"]


_BEGINNING = re.compile(
    rf"(?:\([\w.:-]{{1,60}} [^()\n]{{0,60}}\) ?){{0,2}}(?:(?P<record>{_DATED})|INFO:     (?:Started server process|Waiting for application "
    r"startup)|Traceback \(most recent call last\):|  File \"[^\"\n]{1,200}\", line \d)"
)
"""Beginning of a line without prefixes."""
_SIGHTINGS = 2  # Minimum number of lines with a prefix. One line may be two lines whose line end was lost.
_LONGEST = 160
_KNOWN_LIMIT, _SEEN_LIMIT = 8, 32
_WATCHED_LIMIT = 4000  # number of lines without a record or traceback after which no prefix is expected
_VARYING = re.compile(
    r"(?P<blanks> *)(?P<digits>\d+)|\b(?i:debug|info|notice|warning|warn|error|critical|fatal|stdout|stderr)\b *|(?P<other>\D)"
)
_HARMLESS = re.compile(r"\b(?i:debug|info|notice|warning|warn)\b")
_DRAWN = re.compile(r"[\s|+>-]*")  # prefix of the lines of an exception group, or of quoted lines
_FRAME_END = re.compile(r"[│┃][│┃ \r]*$")


class _Prefixes:
    """Learns the prefixes that a launcher or supervisor in the container puts before every line, and removes them.

    The text before a record or a line of a traceback is a prefix of other lines too. Numbers and levels in it may differ.
    """

    def __init__(self) -> None:
        self._known: dict[str, re.Pattern[str]] = {}
        self._seen: Counter[str] = Counter()
        self._watched = 0
        self._margin: str | None = None
        self._is_watching = True

    def without(self, lines: list[str]) -> list[str]:
        """Return the lines without their prefixes."""
        for line in lines:
            if not self._is_watching or len(self._known) >= _KNOWN_LIMIT:
                break
            if line not in ("", "\r") and not any(prefix.match(line) for prefix in self._known.values()):
                self._learn(line)
        return [self._without(line) for line in lines] if self._known else lines

    def _without(self, line: str) -> str:
        found = next(filter(None, (prefix.match(line) for prefix in self._known.values())), None)
        return _FRAME_END.sub("", line[found.end() :]) if found is not None else line

    def _learn(self, line: str) -> None:
        self._margin = line[0] if self._margin in (None, line[0]) else ""
        found = _BEGINNING.search(line, 0, 400) if line[0] != "{" else None
        if found is None:
            self._watched += 1
            self._is_watching = bool(self._known) or self._watched < _WATCHED_LIMIT
            return
        head, is_record = line[: found.start()], found["record"] is not None
        if _is_wrapping(head) and (is_record or not _HARMLESS.search(head)):
            # The lines of this log have no unknown prefix. An indentation that was learned belonged to something else.
            self._known = {shape: prefix for shape, prefix in self._known.items() if shape.strip()}
            self._is_watching = bool(self._known)
        elif len(head) > _LONGEST or "%" in head or head[-1].isalnum():
            return  # a bar, or output whose line end was lost
        elif is_record or not _DRAWN.fullmatch(head) or self._margin == head[0]:
            self._count("".join(_generalised(head)))

    def _count(self, shape: str) -> None:
        self._seen[shape] += 1
        if self._seen[shape] >= _SIGHTINGS:
            self._known[shape] = re.compile(shape)
        elif len(self._seen) > _SEEN_LIMIT:
            self._seen.clear()


def _is_wrapping(head: str) -> bool:
    """Return whether a text consists only of prefixes that `LineReader.lines` removes."""
    for _ in range(WRAPPINGS_LIMIT):
        found = load_error_forms().wrapping.match(head) or _header(head)
        if not found.end():
            break
        head = head[found.end() :]
    return not head


def _generalised(head: str) -> Iterable[str]:
    """Return a regular expression for the prefix with any numbers and levels. The blanks at its end do not vary."""
    core = head.rstrip(" ")
    for found in _VARYING.finditer(core):
        if found["digits"]:
            yield r" {0,12}\d{1,20}" if found["blanks"] or found.start() == 0 else r"\d{1,20}"
        else:
            yield re.escape(found["other"]) if found["other"] else r"[A-Za-z]{4,8} {0,8}"
    yield re.escape(head[len(core) :])


YEARS = range(1971, 9001)
"""Accepted years. Other years come from unset clocks or hostile input, and would overflow in calculations."""
NOMINAL_YEAR = 2000
"""The year of times without a year, if no earlier line has one. It is a leap year, so every date exists."""
_HALF_A_YEAR = timedelta(days=180)
_SHORT = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d")
_LONG = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)\s?(Z|[+-]\d\d:?\d\d)?")


class LogClock:
    """The time of the latest line, parsed only on request. `given` is the time from the log stream, which takes precedence.

    vLLM writes `MM-DD HH:MM:SS` in the time zone of the container. Such a time gets the year of the one before: differences are correct.
    """

    def __init__(self) -> None:
        self.given: datetime | None = None
        self._text: str | None = None
        self._known: datetime | None = None

    def see(self, text: str | None) -> None:
        """Set the text with the time of the following lines. After a record without a time (None), the time before counts."""
        self._text = text or self._text

    def now(self) -> datetime | None:
        """Return the time of the latest line that has one (UTC)."""
        if self._text is not None:
            self._known, self._text = read_time(self._text, self._known) or self._known, None
        return self.given or self._known


def read_time(text: str, before: datetime | None = None) -> datetime | None:
    """Parse the time of a line (UTC); None if it is invalid. `before`: the time of an earlier line."""
    try:
        if _SHORT.match(text):
            return _without_year(text, before)
        if (long := _LONG.match(text)) is None:
            return None
        found = datetime.fromisoformat(f"{long[1]}T{long[2]}{long[3] or 'Z'}").astimezone(UTC)
        if found.year not in YEARS:
            return None
        # A time of a library with a year, among times of vLLM without one, from the same clock.
        nominal = long[3] is None and before is not None and before.year == NOMINAL_YEAR
        return found.replace(year=NOMINAL_YEAR) if nominal else found
    except (ValueError, OverflowError):
        return None


def _without_year(text: str, before: datetime | None) -> datetime:
    year = before.year if before is not None else NOMINAL_YEAR
    found = datetime.fromisoformat(f"{year:04}-{text[:5]}T{text[6:14]}+00:00")
    if before is None or before - found > _HALF_A_YEAR:
        return found if before is None else found.replace(year=year + 1)
    # An earlier line may have the same second with a fraction.
    return before if before.microsecond and before.replace(microsecond=0) == found else found
