"""Reading the times of log lines.

vLLM writes `MM-DD HH:MM:SS` in the time zone of the container, without a year; wrappings of a log write more. A time
without a year gets that of the time before it, or `NOMINAL_YEAR`: differences between lines are right, which is
what stages and rates need.
"""

import re
from datetime import UTC, datetime, timedelta, timezone

YEARS = range(1971, 9001)
"""Of times that can be calculated with. Years before and after are from clocks that were never set, or meant to do harm."""
NOMINAL_YEAR = 2000
"""A leap year, so that every day exists."""
_HALF_A_YEAR = timedelta(days=180)
_SHORT = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d")
_LONG = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?")


def read_time(text: str | None, before: datetime | None = None) -> datetime | None:
    """Read the time of a line; None if there is none, or no such time. `before`: that of an earlier line."""
    if text is None:
        return None
    try:
        if _SHORT.match(text):
            return _without_year(text, before)
        long = _LONG.match(text)
        if long is None:
            return None
        year, month, day, hour, minute, second = (int(part) for part in long.groups()[:6])
        micro = int((long[7] or "0")[:6].ljust(6, "0"))
        found = datetime(year, month, day, hour, minute, second, micro, tzinfo=_zone(long[8])).astimezone(UTC)
        if found.year not in YEARS:
            return None
        # A library's own time format among lines without a year: the same clock.
        nominal = long[8] is None and before is not None and before.year == NOMINAL_YEAR
        return found.replace(year=NOMINAL_YEAR) if nominal else found
    except (ValueError, OverflowError):
        return None


def _without_year(text: str, before: datetime | None) -> datetime:
    year = before.year if before is not None else NOMINAL_YEAR
    found = datetime.fromisoformat(f"{year:04}-{text[:5]}T{text[6:14]}+00:00")
    if before is None:
        return found
    if before - found > _HALF_A_YEAR:
        return found.replace(year=year + 1)
    # A line before may have told the same second more precisely.
    return before if before.microsecond and before.replace(microsecond=0) == found else found


def _zone(text: str | None) -> timezone:
    if text is None or text == "Z":
        return UTC
    digits = text[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if text[0] == "-" else offset)
