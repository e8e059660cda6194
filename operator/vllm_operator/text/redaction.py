"""Redact log text for display: no secrets, no control characters, limited length."""

import re

_HIDDEN = "***"
_SECRETS = re.compile(
    r"(?P<token>\b(?-i:hf_[A-Za-z0-9]{20,200}(?![A-Za-z0-9_]))|\b(?:sk-|ghp_|gho_|ghs_|github_pat_|glpat-|nvapi-|xox[abp]-|AKIA|ASIA)[A-Za-z0-9_-]{8,200})"
    r"|(?P<jwt>\beyJ[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]{8,2000}(?:\.[A-Za-z0-9_-]{0,2000})?)"
    r"|(?P<bearer>\b(?:Bearer|Basic) )[A-Za-z0-9._~+/=-]{6,2000}"
    r"|(?P<url>\b[a-z][a-z0-9+.-]{1,20}://)[^\s/@'\"]{1,300}@"
    r"|(?P<query>[?&](?:X-Amz-(?:Signature|Credential|Security-Token)|Signature|sig|token|access_token|api_key|key)=)[^&\s'\"]{1,2000}"
    r"|(?P<name>(?<![A-Za-z0-9])(?:[A-Za-z0-9]{1,40}[_-]){0,6}(?:api[_-]?keys?|(?:access|secret|auth|hf|hub)[_-]?(?:tokens?|keys?)|tokens?|secrets?|passwords?|passwd)"
    r"['\"]?\s{0,2}[=:]\s{0,2}\[?['\"]?)(?!(?:expected|must|should|is|not|invalid|missing|required|cannot|the)\s|None\b|True\b|False\b|null\b|\*|\d{1,12}(?:\.\d{1,3})?[kmg]?(?![A-Za-z0-9]))[^\s'\",}\]]{4,500}",
    re.IGNORECASE,
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_ANSI = re.compile(r"\x1b(?:\[[0-9;?]{0,16}[A-Za-z]|\][^\x07]{0,80}\x07)")


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
