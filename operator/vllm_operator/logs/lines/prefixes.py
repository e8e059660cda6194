"""Learning an unknown prefix that a program puts before every line of a log.

Known prefixes are in `framing`. Each launcher or supervisor in a container, and each tool that passes logs on (Modal, SkyPilot, DJL,
stern, CI systems), may add its own. They are learned from the log: if a record of vLLM or a line of a traceback is not at the beginning of
its line, the text before it is a prefix of other lines too. Numbers and levels in it may differ from line to line.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable

_PROCESS = r"(?:\([\w.:-]{1,60} [^()\n]{0,60}\) ?){0,2}"
_RECORD = r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d(?::\d\d)? \[?[^\]\s]{1,120}:\d{1,6}\] "
_SERVER = "INFO:     (?:Started server process|Waiting for application startup)"
_TRACEBACK = r"Traceback \(most recent call last\):|  File \"[^\"\n]{1,200}\", line \d"
BEGINNING = re.compile(rf"{_PROCESS}(?:(?P<record>{_RECORD})|{_SERVER}|{_TRACEBACK})")
"""Beginning of a line without prefixes."""
_SIGHTINGS = 2
"""Minimum number of lines with a prefix. One line may be two lines whose line end was lost."""
_LONGEST = 160
_KNOWN_LIMIT, _SEEN_LIMIT = 8, 32
_WATCHED_LIMIT = 4000
"""Number of lines without a record or traceback after which no prefix is expected."""
_VARYING = re.compile(
    r"(?P<blanks> *)(?P<digits>\d+)|\b(?i:debug|info|notice|warning|warn|error|critical|fatal|stdout|stderr)\b *|(?P<other>\D)"
)
_HARMLESS = re.compile(r"\b(?i:debug|info|notice|warning|warn)\b")
_DRAWN = re.compile(r"[\s|+>-]*")
"""Prefix of the lines of an exception group, or of quoted lines."""


class Prefixes:
    """Learns the prefixes of one log and removes them. Its memory is bounded."""

    def __init__(self, is_wrapping: Callable[[str], bool]) -> None:
        """Create it without prefixes. `is_wrapping`: whether the caller itself removes a text as a prefix."""
        self._is_wrapping = is_wrapping
        self._known: dict[str, re.Pattern[str]] = {}
        self._seen: Counter[str] = Counter()
        self._watched = 0
        self._margin: str | None = None
        self.is_watching = True
        """Whether it expects a prefix or knows one, so that lines must be passed to it."""

    def without(self, lines: list[str]) -> list[str]:
        """Return the lines without their prefixes."""
        for line in lines:
            if not self.is_watching or len(self._known) >= _KNOWN_LIMIT:
                break
            if line not in ("", "\r") and not any(prefix.match(line) for prefix in self._known.values()):
                self._learn(line)
        return [self._without(line) for line in lines] if self._known else lines

    def _without(self, line: str) -> str:
        for prefix in self._known.values():
            found = prefix.match(line)
            if found is not None:
                rest = line[found.end() :]
                return rest.rstrip("│┃ \r") if rest.endswith(("│", "┃", "│\r", "┃\r")) else rest
        return line

    def _learn(self, line: str) -> None:
        self._margin = line[0] if self._margin in (None, line[0]) else ""
        found = BEGINNING.search(line, 0, 400) if line[0] != "{" else None
        if found is None:
            self._watched += 1
            self.is_watching = bool(self._known) or self._watched < _WATCHED_LIMIT
            return
        head = line[: found.start()]
        is_record = found["record"] is not None
        if self._is_wrapping(head) and (is_record or not _HARMLESS.search(head)):
            # The lines of this log have no unknown prefix. An indentation that was learned belonged to something else.
            self._known = {shape: prefix for shape, prefix in self._known.items() if shape.strip()}
            self.is_watching = bool(self._known)
        elif self._may_be_one(head, is_record=is_record):
            self._count(head)

    def _may_be_one(self, head: str, *, is_record: bool) -> bool:
        if len(head) > _LONGEST or "%" in head or head[-1].isalnum():
            return False  # a bar, or output whose line end was lost
        return is_record or not _DRAWN.fullmatch(head) or self._margin == head[0]

    def _count(self, head: str) -> None:
        shape = "".join(generalised(head))
        self._seen[shape] += 1
        if self._seen[shape] >= _SIGHTINGS:
            self._known[shape] = re.compile(shape)
        elif len(self._seen) > _SEEN_LIMIT:
            self._seen.clear()


def generalised(head: str) -> Iterable[str]:
    """Return a regular expression for the prefix with any numbers and levels. The blanks at its end do not vary."""
    core = head.rstrip(" ")
    for found in _VARYING.finditer(core):
        if found["digits"]:
            yield r" {0,12}\d{1,20}" if found["blanks"] or found.start() == 0 else r"\d{1,20}"
        else:
            yield re.escape(found["other"]) if found["other"] else r"[A-Za-z]{4,8} {0,8}"
    yield re.escape(head[len(core) :])
