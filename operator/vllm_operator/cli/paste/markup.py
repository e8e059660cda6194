r"""What a post, a document or a program puts around the lines of a log that it quotes.

These are forms of text, and not of logs: no container writes them.
"""

import re

from vllm_operator.startup.literals import Needle

_RESET = Needle("0m")
"""The end of what sets colours back, in each of the forms below."""
_COLOURS = re.compile(rb"(?:\^\[|#033)\[[0-9;]{0,8}m|(?<!\w)\[[0-9;]{1,8}m|#015(?=\n|\Z)")
"""Colours as less and rsyslog write the escape character, or without it, and the return that rsyslog writes."""
_MARK, _QUOTE = b'`"'  # numbers: they are found ten times as fast as bytes
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


def without_markup(data: bytes) -> bytes:
    """Lines without what stands around them. Their number stays."""
    if _RESET.stands_in(data):
        data = _COLOURS.sub(b"", data)
    if data[:1] == b" " or _MAY_BE_QUOTED.stands_in(data):
        data = _unquoted(data)
    if _MARK in data and (data[-1] == _MARK or _MAY_BE_MARKED.stands_in(data)):
        data = _SPAN.sub(rb"\1", _FENCED.sub(_moved_back, data))
    if _QUOTE in data and (data[0] == _QUOTE or _MAY_BE_AN_ERROR.stands_in(data)):
        data = _QUOTED.sub(rb"\1", data)
    return data


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
