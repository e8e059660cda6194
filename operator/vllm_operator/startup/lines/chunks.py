r"""What is done to the bytes of a whole chunk of a log before it is read line by line.

A chunk has thousands of lines, most of which are passed over: what every one of them must go through is done here to all
at once, and to bytes, where it takes half the time that it takes in text. No end of a line is a part of a character in UTF-8.
"""

import re

from vllm_operator.startup.literals import Needle

BAR_LIMIT = 2048
"""Bytes of a line that has not ended after which only the latest updates of its bar are kept."""
_UPDATES_KEPT = 4
_NO_UPDATE = re.compile(rb'\] |pid=|"')
"""What log records have, and updates of bars have not."""
_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]{0,16}[A-Za-z]|\][^\x07]{0,80}\x07)|(?:\\x1b|\\u001b|\\033)\[[0-9;]{0,8}m")
"""Colours; also as JSON and Python write the escape character."""
_ESCAPE, _NUL, RETURN, _TAB = b"\x1b\x00\r\t"  # numbers: they are found ten times as fast as bytes
_RESET = Needle("0m")
"""The end of what sets colours back, in each of these forms."""
TAIL_LIMIT = 32768
"""Bytes of a line that has not ended after which what is there is looked at."""
_GENERAL_PUNCTUATION = b"\xe2\x80"
"""What the quotation marks begin with in UTF-8, and bars do not."""
_QUOTES = re.compile(rb"\xe2\x80[\x98\x99\x9c\x9d]")
_PLAIN_QUOTES = {
    character.encode(): plain for characters, plain in {"\u2018\u2019": b"'", "\u201c\u201d": b'"'}.items() for character in characters
}


def without_colours(data: bytes) -> bytes:
    """The bytes without what sets colours, and without zeros."""
    if _ESCAPE in data or _RESET.stands_in(data):
        data = _ANSI.sub(b"", data)
    return data.replace(b"\x00", b"") if _NUL in data else data


def cut(data: bytes) -> list[str]:
    """Lines. A single wide character makes a whole text wide, and slow: bytes are cut."""
    if _TAB in data:
        data = data.replace(b"\t", b"    ")
    if data.isascii():
        return data.decode("ascii").split("\n")
    lines = with_plain_quotes(data).split(b"\n")
    try:
        return [*map(bytes.decode, lines)]
    except UnicodeDecodeError:
        return [line.decode("utf-8", "replace") for line in lines]


def with_plain_quotes(data: bytes) -> bytes:
    """Lines in UTF-8 with the quotation marks of ASCII: compilers write others where the locale allows it."""
    return _QUOTES.sub(lambda found: _PLAIN_QUOTES[found[0]], data) if _GENERAL_PUNCTUATION in data else data


class LineBuffer:
    """Holds the beginning of a line whose end has not arrived. Its memory is bounded."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.tail = b""
        self.has_returns = False
        """Whether the latest chunk holds a carriage return."""

    def feed(self, data: bytes) -> list[bytes]:
        """Take a chunk; return what is complete: lines without the last line end, and parts of a line that is too long to wait for."""
        data = without_colours(self.tail + data if self.tail else data)
        self.has_returns = RETURN in data
        complete, end, tail = data.rpartition(b"\n")
        blocks = [complete] if end else []
        if self.has_returns and len(tail) > BAR_LIMIT:
            tail = latest_updates(tail)
        if len(tail) > TAIL_LIMIT:
            whole = whole_characters(tail)
            blocks.append(tail[:whole])
            tail = tail[whole:]
        self.tail = tail
        return blocks

    def take(self) -> bytes:
        """The last line, as no more is to come."""
        tail, self.tail = self.tail, b""
        return tail


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
