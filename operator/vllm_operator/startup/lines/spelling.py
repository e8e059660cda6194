r"""Characters that editors, forums and terminals put in the place of those that were logged.

A log out of a browser has no-break spaces, typographic quotes or HTML entities; one out of a terminal may have tabs
for spaces, and one of Windows a byte order mark and `\r\r\n`.
"""

import re

from vllm_operator.startup.literals import Needle

_PUNCTUATION = re.compile(rb"\xe2(?:\x80[\x8b\x98\x99\x9c\x9d\xaf]|\x81\xa0)")
"""Characters whose first byte is that of bars as well. A pattern that begins with one byte is searched for quickly."""
_LOGGED = {
    character.encode(): logged
    for characters, logged in {"\u202f": b" ", "\u2018\u2019": b"'", "\u201c\u201d": b'"', "\u200b\u2060": b""}.items()
    for character in characters
}
_NO_BREAK_SPACE, _BYTE_ORDER_MARK = "\u00a0".encode(), "\ufeff".encode()
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
_BREAK = re.compile(rb"<br ?/?>(?=\r?\n)")
_MAY_BREAK = Needle("<br")
_TAB, _AMPERSAND = b"\t&"


def plainly(data: bytes) -> bytes:
    """The text, in UTF-8, with the characters that were logged. Costs next to nothing where they are there already."""
    if not data.isascii():
        data = _PUNCTUATION.sub(lambda found: _LOGGED[found[0]], data)
        if _NO_BREAK_SPACE[0] in data:
            data = data.replace(_NO_BREAK_SPACE, b" ")
        if _BYTE_ORDER_MARK[0] in data:
            data = data.replace(_BYTE_ORDER_MARK, b"")
    if _TAB in data:
        data = data.replace(b"\t", b"    ")
    if _AMPERSAND in data:
        data = _ENTITY.sub(lambda found: _ENTITIES[found[0]], data)
    return _BREAK.sub(b"", data) if _MAY_BREAK.stands_in(data) else data
