"""Reading the times of log lines.

vLLM writes `MM-DD HH:MM:SS` in the time zone of the container, without a year; wrappings of a log write more. A time
without a year gets that of the time before it, or `NOMINAL_YEAR`: differences between lines are right, which is
what stages and rates need.
"""

import re
from datetime import UTC, datetime, timedelta, timezone

NOMINAL_YEAR = 2000
"""A leap year, so that every day exists."""
_SHORT = re.compile(r"(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")
_LONG = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?")


def read_time(text: str | None, before: datetime | None = None) -> datetime | None:
    """Read the time of a line; None if there is none, or no such time. `before`: that of an earlier line."""
    if text is None:
        return None
    try:
        long = _LONG.match(text)
        if long is not None:
            year, month, day, hour, minute, second = (int(part) for part in long.groups()[:6])
            micro = int((long[7] or "0")[:6].ljust(6, "0"))
            found = datetime(year, month, day, hour, minute, second, micro, tzinfo=_zone(long[8])).astimezone(UTC)
            # A library's own time format among lines without a year: the same clock.
            nominal = long[8] is None and before is not None and before.year == NOMINAL_YEAR
            return found.replace(year=NOMINAL_YEAR) if nominal else found
        short = _SHORT.match(text)
        if short is None:
            return None
        month, day, hour, minute, second = (int(part) for part in short.groups())
        year = before.year if before is not None else NOMINAL_YEAR
        found = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        if before is not None and before - found > timedelta(days=180):
            found = found.replace(year=year + 1)
        # A line before may have told the same second more precisely.
        return before if before is not None and before.replace(microsecond=0) == found else found
    except ValueError:
        return None


def _zone(text: str | None) -> timezone:
    if text is None or text == "Z":
        return UTC
    digits = text[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if text[0] == "-" else offset)
