"""Parts of messages: durations, times, and untrusted text made safe to show.

Text of a kubelet, a scheduler or a log is quoted: control characters and escape sequences are removed, secrets are masked, and the
length is limited.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache

from vllm_operator.text.redaction import redact

MESSAGE_LIMIT = 500
"""Maximum characters of a message."""
NAME_LIMIT = 64
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]{0,32}[ -/]{0,8}[@-~]|[@-_])")
_SPACES = re.compile(r"\s+")


def clean(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """Return untrusted text as one line without control characters and secrets, truncated to `limit` characters."""
    return _clean(text[: 16 * limit], limit)


@lru_cache(maxsize=512)
def _clean(text: str, limit: int) -> str:
    """Clean a text. Cached, because most texts repeat and the search for secrets takes time."""
    text = _ESCAPES.sub("", text)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    return shorten(_SPACES.sub(" ", redact(text)).strip(), limit)


def shorten(text: str, limit: int) -> str:
    """Truncate a text at a word boundary to at most `limit` characters, and mark the cut."""
    if len(text) <= limit:
        return text
    if limit < 2:
        return "…"[:limit]
    cut = text[: limit - 1]
    space = cut.rfind(" ", max(0, limit - 40))
    return (cut[:space] if space > 0 else cut).rstrip(" ,;:") + "…"


def whole_sentences(text: str, limit: int, *, at_least: int) -> str:
    """Return the sentences of a text that fit into `limit` characters; truncate at a word if they are shorter than `at_least`."""
    if len(text) <= limit:
        return text
    end = text.rfind(". ", at_least - 1, limit)
    return text[: end + 1] if end > 0 else shorten(text, limit)


def sentence(text: str) -> str:
    """End a text with a full stop, unless it already ends with punctuation."""
    text = text.strip()
    return text if not text or text[-1] in ".!?…" else f"{text}."


def duration(seconds: float) -> str:
    """Format a duration: 45 s, 2 min 30 s, 1 h 5 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def rounded(seconds: float) -> int:
    """Round an estimated duration: to 5 s below a minute, to 10 s below ten minutes, else to minutes."""
    step = 5 if seconds < 60 else 10 if seconds < 600 else 60
    return max(step, round(seconds / step) * step) if seconds > 0 else 0


def clock(when: datetime) -> str:
    """Format a time in UTC with its date, because it may be read a day later."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def count(number: int, noun: str) -> str:
    """Format a number of things: 1 Pod, 2 Pods."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def few(names: Sequence[str], most: int | None) -> str:
    """Join the first names with commas, and tell how many more there are. `most` is None for all names."""
    more = 0 if most is None else len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def listed(names: Sequence[str], last: str) -> str:
    """Join names with commas, and `last` (and, or) before the last name: a, b or c."""
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def similar(name: str, known: Iterable[str], *, most: int = 1, likeness: float = 0.6) -> list[str]:
    """Return known names that the name may be a misspelling of, the most similar first. Case is ignored.

    `likeness` is the minimum similarity, from 0 to 1. Use a higher one for lists of hundreds of similar names.
    """
    spelled = {each.lower(): each for each in sorted(known)}
    return [spelled[each] for each in difflib.get_close_matches(name[:NAME_LIMIT].lower(), spelled, most, likeness)]
