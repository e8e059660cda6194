"""Characters that browsers, editors and forums put in the place of those that were logged.

A log out of a browser has no-break spaces or HTML entities, and a file of Windows a byte order mark.
"""

import re

from vllm_operator.startup.lines.chunks import with_plain_quotes

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
"""No-break spaces, characters without a width, and the byte order mark."""


def spelled(data: bytes) -> bytes:
    """Lines in UTF-8 with the characters that were logged. Their number stays."""
    data = with_plain_quotes(data)
    if not data.isascii():
        for character, logged in _SPACES.items():
            data = data.replace(character.encode(), logged)
    data = data.replace(b"\t", b"    ")
    return _BREAK.sub(b"", _ENTITY.sub(lambda found: _ENTITIES[found[0]], data))
