r"""From chunks of bytes to lines.

A chunk has thousands of lines, most of which are skipped. What every line needs is done here for all of them at once, and on bytes, which
takes half the time. In UTF-8, no line end is part of another character.
"""

import re

from vllm_operator.text.patterns import compile_linear

_SHORT = 4096


class Needle:
    """A pattern that begins with a rare string, for which every chunk is searched.

    RE2 finds the string four times as fast as `re`, but takes ten times as long to begin, so it searches only long chunks.
    """

    def __init__(self, regex: str) -> None:
        """Prepare the search. `regex` is ASCII, in the syntax that `re` and RE2 have in common."""
        self._regex = regex
        self._short = re.compile(regex.encode())

    def is_in(self, data: bytes) -> bool:
        """Whether the pattern matches anywhere in these bytes."""
        if len(data) <= _SHORT:
            return self._short.search(data) is not None
        found: object = compile_linear(self._regex).search(data)  # type: ignore[call-overload]  # RE2 searches both str and bytes
        return found is not None


BAR_LIMIT = 2048
"""Bytes of an incomplete line above which only the latest updates of its progress bar are kept."""
_UPDATES_KEPT = 4
_NO_UPDATE = re.compile(rb'\] |pid=|"')
"""Parts of log records that no update of a bar has."""
_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]{0,16}[A-Za-z]|\][^\x07]{0,80}\x07)|(?:\\x1b|\\u001b|\\033)\[[0-9;]{0,8}m")
"""Colours, also with the escape character as JSON and Python write it."""
_ESCAPE, _NUL, RETURN, _TAB = b"\x1b\x00\r\t"  # int: found ten times as fast as bytes
_RESET = Needle("0m")
"""Common end of these sequences."""
TAIL_LIMIT = 32768
"""Bytes of an incomplete line above which it is read as it is."""
_GENERAL_PUNCTUATION = b"\xe2\x80"
"""First bytes of the quotation marks in UTF-8. The characters of bars begin otherwise."""
_QUOTES = re.compile(rb"\xe2\x80[\x98\x99\x9c\x9d]")
_PLAIN_QUOTES = {
    character.encode(): plain for characters, plain in {"\u2018\u2019": b"'", "\u201c\u201d": b'"'}.items() for character in characters
}


def without_colours(data: bytes) -> bytes:
    """Remove colours and NUL."""
    if _ESCAPE in data or _RESET.is_in(data):
        data = _ANSI.sub(b"", data)
    return data.replace(b"\x00", b"") if _NUL in data else data


def cut(data: bytes) -> list[str]:
    """Split into lines. Bytes are split, because one wide character makes the whole text wide, and slow."""
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
    """Replace typographic quotation marks in UTF-8, which compilers write in some locales."""
    return _QUOTES.sub(lambda found: _PLAIN_QUOTES[found[0]], data) if _GENERAL_PUNCTUATION in data else data


class LineBuffer:
    """Keeps the beginning of a line whose end has not arrived. Its memory is bounded."""

    def __init__(self) -> None:
        """Create an empty buffer."""
        self.tail = b""
        self.has_returns = False
        """Whether the latest chunk contains a carriage return."""

    def feed(self, data: bytes) -> list[bytes]:
        """Add a chunk. Return complete lines without the last line end, and the beginning of a line above the limit."""
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
        """Remove and return the incomplete last line."""
        tail, self.tail = self.tail, b""
        return tail


def latest_updates(tail: bytes) -> bytes:
    """Remove old updates from the incomplete line of a bar, unless they may contain a log record."""
    begin, back, updates = tail.partition(b"\r")
    over, *latest = updates.rsplit(b"\r", _UPDATES_KEPT)
    return begin + back + b"\r".join(latest) if latest and b"%" in over and not _NO_UPDATE.search(over) else tail


def whole_characters(data: bytes) -> int:
    """Number of bytes that belong to complete characters of UTF-8."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:  # the first byte of a character
            return len(data) - back if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else len(data)
    return len(data)
