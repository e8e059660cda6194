"""What stands before every line of a log that went through a program nobody told us of.

There are as many prefixes as there are programs that pass logs on (Modal, SkyPilot, DJL, lemonade, stern, journald of
another format), so they are learned: where a traceback, or the beginning of a server, stands behind a prefix, and the line
that always follows it behind the same one, every line that begins like that loses it. The same means: but for numbers
and levels.
"""

import re
from functools import lru_cache

from vllm_operator.startup.framing import plain

_BEGINNINGS = (
    ("Traceback (most recent call last):", '  File "'),
    ("INFO:     Started server process", "INFO:     Waiting for application startup."),
)
"""What a line of a known program begins with, and the line after it."""
_LENGTH = 160
_TRIED = 64
"""Prefixes of one log that are tried; a log of one program has a few."""
_KEPT = 8
_OWN = re.compile(r"^\{|pid=\d{1,9}[^()\n]{0,60}\) $|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d |^[\s|+>-]*$")
"""A prefix of vLLM's own, of JSON, and what a group of exceptions or a quotation puts before its lines."""
_VARYING = re.compile(r"\d+|\b(?i:debug|info|notice|warning|warn|error|critical|fatal|stdout|stderr)\b *")
_LEVEL = re.compile(r"\b(?i:debug|info|notice|warning|warn)\b")


class Prefixes:
    """The prefixes that the lines of one log have."""

    def __init__(self) -> None:
        """None is known so far."""
        self._kept: list[str] = []
        self._tried = 0
        self._any: re.Pattern[str] | None = None

    def learn(self, text: str) -> None:
        """Look for prefixes in a part of a log."""
        for beginning, following in _BEGINNINGS:
            position = text.find(beginning)
            while position >= 0 and self._tried < _TRIED:
                start = text.rfind("\n", 0, position) + 1
                if 0 < position - start <= _LENGTH:
                    self._try(text[start:position], beginning, text, text.find("\n", position) + 1, following)
                position = text.find(beginning, position + 1)

    def _try(self, prefix: str, beginning: str, text: str, after: int, following: str) -> None:
        if not after or _OWN.search(prefix) or (plain(prefix + beginning)[1].startswith(beginning) and not _LEVEL.search(prefix)):
            return
        shape = _shape(prefix)
        if shape in self._kept:
            return
        self._tried += 1
        found = _compiled(shape).match(text, after)
        if found is not None and text.startswith(following, found.end()):
            self._kept = [*self._kept, shape][-_KEPT:]
            self._any = _compiled("|".join(sorted(self._kept, key=len, reverse=True)))

    def strip(self, lines: list[str]) -> list[str]:
        """The lines without the prefixes."""
        pattern = self._any
        if pattern is None:
            return lines
        return [line[found.end() :] if (found := pattern.match(line)) is not None else line for line in lines]


def _shape(prefix: str) -> str:
    """A regular expression for the prefix with other numbers and levels. The blanks before the text stay as they are."""
    core = prefix.rstrip(" ")
    parts: list[str] = []
    end = 0
    for found in _VARYING.finditer(core):
        parts += [re.escape(core[end : found.start()]), r"\d+" if found[0].isdigit() else r"[A-Za-z]{4,8} *"]
        end = found.end()
    return "".join((*parts, re.escape(core[end:]), re.escape(prefix[len(core) :])))


@lru_cache(maxsize=256)
def _compiled(shape: str) -> re.Pattern[str]:
    return re.compile(shape)
