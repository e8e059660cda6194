r"""Characters that editors, forums and terminals put in the place of those that were logged.

A log out of a browser has no-break spaces, typographic quotes or HTML entities; one out of a terminal may have tabs
for spaces, and one of Windows a byte order mark and `\r\r\n`.
"""

import re

_CHARACTERS = {
    **dict.fromkeys("\u00a0\u202f", " "),
    **dict.fromkeys("\u2018\u2019", "'"),
    **dict.fromkeys("\u201c\u201d", '"'),
    **dict.fromkeys("\ufeff\u200b\u2060", ""),
}
_ENTITIES = {"&quot;": '"', "&#34;": '"', "&#x27;": "'", "&#39;": "'", "&apos;": "'", "&lt;": "<", "&gt;": ">", "&nbsp;": " ", "&amp;": "&"}
_ENTITY = re.compile("|".join(_ENTITIES))
_BREAK = re.compile(r"<br ?/?>(?=\r?\n)")
TAB = "    "


def plainly(text: str) -> str:
    """The text with the characters that were logged. Costs next to nothing where they are there already."""
    if not text.isascii():
        for foreign, logged in _CHARACTERS.items():
            if foreign in text:
                text = text.replace(foreign, logged)
    if "\t" in text:
        text = text.replace("\t", TAB)
    if "&" in text:
        text = _ENTITY.sub(lambda found: _ENTITIES[found[0]], text)
    if "<br" in text:
        text = _BREAK.sub("", text)
    return text
