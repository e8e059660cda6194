r"""What is done to the bytes of a whole chunk of a log before it is read line by line.

A chunk has thousands of lines, most of which are passed over: what every one of them must go through is done here to all
at once, and to bytes, where it takes half the time that it takes in text. No end of a line is a part of a character in UTF-8.
"""

import re

from vllm_operator.startup.lines.spelling import plainly
from vllm_operator.startup.literals import Needle

BAR_LIMIT = 2048
"""Bytes of a line that has not ended after which only the latest updates of its bar are kept."""
_UPDATES_KEPT = 4
_NO_UPDATE = re.compile(rb'\] |pid=|"')
"""What log records have, and updates of bars have not."""
_ANSI = re.compile(
    rb"\x1b(?:\[[0-9;?]{0,16}[A-Za-z]|\][^\x07]{0,80}\x07)|(?:\^\[|#033|\\x1b|\\u001b|\\033)\[[0-9;]{0,8}m|(?<!\w)\[[0-9;]{1,8}m|#015(?=\n)"
)
"""Colours; also as less, rsyslog and JSON write the escape character, and the return that rsyslog writes."""
_ESCAPE, _NUL, RETURN, _MARK, _QUOTE = b'\x1b\x00\r`"'  # numbers: they are found ten times as fast as bytes
_RESET = Needle("0m")
"""The end of what sets colours back, in each of these forms."""
_INDENTED = re.compile(rb"(?m)^[ \t]{1,16}[\"'`]?(?=\((?:[\w.-]{1,60} )?(?:[\w=]{1,20} )?pid=\d|(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:)")
"""What stands before the lines of a log that is quoted in a list or a program."""
_MAY_BE_QUOTED = Needle(r"\n  (?:  )?[\"']?\(")
"""Cheaper to look for: some of the lines hold the names of processes, and stand so far from the margin."""
_STRING = re.compile(rb"(?m)^[ \t]{0,16}([\"'])([^\n]{1,4000}?)\1[,)]{0,2}\r?$")
"""A line of a program that is nothing but a string."""

_FENCED = re.compile(rb"(?m)^(?P<margin> {2,12})```[^\n`]{0,40}\n(?:[^\n]{0,4000}\n){1,2000}?(?P=margin)```")
"""A log in a list of Markdown: all its lines are moved to the right."""

_SPAN = re.compile(rb"(?m)^`{0,3}([^`\n]{1,4000})`{1,3}$")
"""A line that is a span of code, or at which one ends that has begun in a line before."""
_MAY_BE_MARKED = Needle(r"`(?:``|\n)")
_QUOTED = re.compile(rb'(?m)^"([\w.]{1,120}(?:Error|Exception): [^"\n]{1,4000})"$')
"""An error that somebody quotes, on a line of its own."""
_MAY_BE_AN_ERROR = Needle(r'\n"')


def without_colours(data: bytes) -> bytes:
    """The bytes without what sets colours, and without zeros."""
    if _ESCAPE in data or _RESET.stands_in(data):
        data = _ANSI.sub(b"", data)
    return data.replace(b"\x00", b"") if _NUL in data else data


def cut(data: bytes) -> list[str]:
    """Lines, with the characters that were logged. A single wide character makes a whole text wide, and slow: bytes are cut."""
    if data[:1] == b" " or _MAY_BE_QUOTED.stands_in(data):
        data = _unquoted(data)
    if _MARK in data and (data[-1] == _MARK or _MAY_BE_MARKED.stands_in(data)):
        data = _SPAN.sub(rb"\1", _FENCED.sub(_moved_back, data))
    if _QUOTE in data and (data[0] == _QUOTE or _MAY_BE_AN_ERROR.stands_in(data)):
        data = _QUOTED.sub(rb"\1", data)
    data = plainly(data)
    if data.isascii():
        return data.decode("ascii").split("\n")
    lines = data.split(b"\n")
    try:
        return [*map(bytes.decode, lines)]
    except UnicodeDecodeError:
        return [line.decode("utf-8", "replace") for line in lines]


def _unquoted(data: bytes) -> bytes:
    """A part of a log that a list or a program quotes, without what stands around its lines."""
    found = _INDENTED.search(data)
    if found is None:
        return data
    if found[0][-1:] in (b'"', b"'"):
        data = _STRING.sub(rb"\2", data)
    return _INDENTED.sub(b"", data)


def _moved_back(fenced: re.Match[bytes]) -> bytes:
    return fenced[0].replace(b"\n" + fenced["margin"], b"\n")


def latest_updates(tail: bytes) -> bytes:
    """The line of a bar that has not ended, without most of the updates that are over. What may hold a log record is left whole."""
    begin, back, updates = tail.partition(b"\r")
    over, *latest = updates.rsplit(b"\r", _UPDATES_KEPT)
    return begin + back + b"\r".join(latest) if latest and b"%" in over and not _NO_UPDATE.search(over) else tail


def whole_characters(data: bytes) -> int:
    """How many bytes belong to characters of UTF-8 that are complete."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:  # the first of a character of so many bytes
            return len(data) - back if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else len(data)
    return len(data)
