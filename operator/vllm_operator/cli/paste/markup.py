r"""Removes what a post, a document, a program, a browser or an editor puts around or into the lines of a log that it quotes."""

import re

from vllm_operator.startup.lines.chunks import Needle, with_plain_quotes

_RESET = Needle("0m")
"""Common end of the sequences below."""
_COLOURS = re.compile(rb"(?:\^\[|#033)\[[0-9;]{0,8}m|(?<!\w)\[[0-9;]{1,8}m|#015(?=\n|\Z)")
"""Colours with the escape character as less and rsyslog write it, or without it; and the carriage return as rsyslog writes it."""
_MARK, _QUOTE = b'`"'  # int: found ten times as fast as bytes
_INDENTED = re.compile(rb"(?m)^[ \t]{1,16}[\"'`]?(?=\((?:[\w.-]{1,60} )?(?:[\w=]{1,20} )?pid=\d|(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:)")
"""Indentation and quotation mark before a line that is quoted in a list or a program."""
_MAY_BE_QUOTED = Needle(r"\n  (?:  )?[\"']?\(")
"""Cheaper to search for: lines with the name of a process, indented this far."""
_STRING = re.compile(rb"(?m)^[ \t]{0,16}([\"'])([^\n]{1,4000}?)\1[,)]{0,2}\r?$")
"""A line of a program that is only a string."""

_FENCED = re.compile(rb"(?m)^(?P<margin> {2,12})```[^\n`]{0,40}\n(?:[^\n]{0,4000}\n){1,2000}?(?P=margin)```")
"""A code block in a Markdown list: all its lines are indented."""

_SPAN = re.compile(rb"(?m)^`{0,3}([^`\n]{1,4000})`{1,3}$")
"""A line that is a code span, or ends one that began on an earlier line."""
_MAY_BE_MARKED = Needle(r"`(?:``|\n)")
_QUOTED = re.compile(rb'(?m)^"([\w.]{1,120}(?:Error|Exception): [^"\n]{1,4000})"$')
"""A quoted error on a line of its own."""
_MAY_BE_AN_ERROR = Needle(r'\n"')


def without_markup(data: bytes) -> bytes:
    """Return the lines without markup. Their number does not change."""
    if _RESET.is_in(data):
        data = _COLOURS.sub(b"", data)
    if data[:1] == b" " or _MAY_BE_QUOTED.is_in(data):
        data = _unquoted(data)
    if _MARK in data and (data[-1] == _MARK or _MAY_BE_MARKED.is_in(data)):
        data = _SPAN.sub(rb"\1", _FENCED.sub(_moved_back, data))
    if _QUOTE in data and (data[0] == _QUOTE or _MAY_BE_AN_ERROR.is_in(data)):
        data = _QUOTED.sub(rb"\1", data)
    return data


def _unquoted(data: bytes) -> bytes:
    """Remove indentation and quotation marks of a log that is quoted in a list or a program."""
    found = _INDENTED.search(data)
    if found is None:
        return data
    if found[0][-1:] in (b'"', b"'"):
        data = _STRING.sub(rb"\2", data)
    return _INDENTED.sub(b"", data)


def _moved_back(fenced: re.Match[bytes]) -> bytes:
    return fenced[0].replace(b"\n" + fenced["margin"], b"\n")


_ENTITIES = {
    b"&quot;": b'"',
    b"&#34;": b'"',
    b"&#x27;": b"'",
    b"&#39;": b"'",
    b"&apos;": b"'",
    b"&lt;": b"<",
    b"&gt;": b">",
    b"&nbsp;": b" ",
    b"&amp;": b"&",
}
_ENTITY = re.compile(b"|".join(_ENTITIES))
_BREAK = re.compile(rb"<br ?/?>(?=\r?(?:\n|\Z))")
_SPACES = {"\u00a0": b" ", "\u202f": b" ", "\u200b": b"", "\u2060": b"", "\ufeff": b""}
"""No-break spaces, zero-width characters, and the byte order mark."""


def with_logged_characters(data: bytes) -> bytes:
    """Return lines in UTF-8 with the characters that were logged. Their number does not change."""
    data = with_plain_quotes(data)
    if not data.isascii():
        for character, logged in _SPACES.items():
            data = data.replace(character.encode(), logged)
    data = data.replace(b"\t", b"    ")
    return _BREAK.sub(b"", _ENTITY.sub(lambda found: _ENTITIES[found[0]], data))
