"""Parts of messages: durations, times, and untrusted text made safe to show.

Text of a kubelet, a scheduler or a log is quoted: control characters and escape sequences are removed, secrets are masked, and the
length is limited.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache

MESSAGE_LIMIT = 500
"""Maximum characters of a message."""
NAME_LIMIT = 64
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]{0,32}[ -/]{0,8}[@-~]|[@-_])")
_SPACES = re.compile(r"\s+")
_HIDDEN = "***"
_SECRETS = re.compile(
    r"(?P<token>\b(?-i:hf_[A-Za-z0-9]{20,200}(?![A-Za-z0-9_]))|\b(?:sk-|ghp_|gho_|ghs_|github_pat_|glpat-|nvapi-|xox[abp]-|AKIA|ASIA)[A-Za-z0-9_-]{8,200})"
    r"|(?P<jwt>\beyJ[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]{8,2000}(?:\.[A-Za-z0-9_-]{0,2000})?)"
    r"|(?P<bearer>\b(?:Bearer|Basic) )[A-Za-z0-9._~+/=-]{6,2000}"
    r"|(?P<url>\b[a-z][a-z0-9+.-]{1,20}://)[^\s/@'\"]{1,300}@"
    r"|(?P<query>[?&](?:X-Amz-(?:Signature|Credential|Security-Token)|Signature|sig|token|access_token|api_key|key)=)[^&\s'\"]{1,2000}"
    r"|(?P<name>(?<![A-Za-z0-9])(?:[A-Za-z0-9]{1,40}[_-]){0,6}(?:api[_-]?keys?|(?:access|secret|auth|hf|hub)[_-]?(?:tokens?|keys?)|(?<!num_)(?<!max_)tokens?|secrets?|passwords?|passwd)"
    r"['\"]?\s{0,2}[=:]\s{0,2}\[?['\"]?)(?!self\.[\w.]{1,80}\(|(?:expected|must|should|is|not|invalid|missing|required|cannot|the)\s|None\b|True\b|False\b|null\b|\*|\d{1,12}(?:\.\d{1,3})?[kmg]?(?![A-Za-z0-9]))[^\s'\",}\]]{4,500}",
    re.IGNORECASE,
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_ANSI = re.compile(r"\x1b(?:\[[0-9;?]{0,16}[A-Za-z]|\][^\x07]{0,80}\x07)")


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


def redact(text: str) -> str:
    """Replace strings that look like tokens, keys, or credentials in URLs."""
    return _SECRETS.sub(_replace, text)


def present(text: str, limit: int) -> str:
    """Redact, drop control characters, and truncate to `limit` characters."""
    clean = redact(_CONTROL.sub(" ", _ANSI.sub("", text[: limit * 4]))).rstrip()
    return clean if len(clean) <= limit else clean[: limit - 1].rstrip() + "…"


def _replace(found: re.Match[str]) -> str:
    for group in ("bearer", "query", "name"):
        if found[group]:
            return f"{found[group]}{_HIDDEN}"
    if found["url"]:
        return f"{found['url']}{_HIDDEN}@"
    return _HIDDEN
