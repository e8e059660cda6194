"""Parse times of log lines.

vLLM writes `MM-DD HH:MM:SS` in the time zone of the container, without a year. Prefixes of a log contain more. A time without a year gets
the year of the previous time, or `NOMINAL_YEAR`. Differences between lines are correct, which is enough for stages and rates.
"""

import re
from datetime import UTC, datetime, timedelta, timezone

from vllm_operator.logs.lines.framing import time_of

YEARS = range(1971, 9001)
"""Accepted years. Other years come from unset clocks or hostile input, and would overflow in calculations."""
NOMINAL_YEAR = 2000
"""A leap year, so that every date exists."""
_HALF_A_YEAR = timedelta(days=180)
_SHORT = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d")
_LONG = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?")


class LogClock:
    """The time of the latest line, parsed only on request."""

    __slots__ = ("_known", "_known_text", "_text", "given", "record")

    def __init__(self) -> None:
        self.given: datetime | None = None
        """Time from the log stream, which takes precedence over the times in lines."""
        self.record: str | None = None
        """The latest record, if its time was not parsed yet."""
        self._text: str | None = None
        self._known: datetime | None = None
        self._known_text = ""

    def give(self, time: datetime) -> None:
        """Set the time of the following lines."""
        self.given, self._text, self.record = time, None, None

    def see(self, text: str) -> None:
        """Set the text with the time of the following lines."""
        self._text, self.record = text, None

    def now(self) -> datetime | None:
        """Return the time of the latest line that has one (UTC)."""
        if self.record is not None:
            self._text, self.record = time_of(self.record) or self._text, None
        if self._text is not None:
            if self.given is None and self._text != self._known_text:
                self._known = read_time(self._text, self._known) or self._known
                self._known_text = self._text
            self._text = None
        if self.given is not None:
            self._known = self.given
        return self._known


def read_time(text: str | None, before: datetime | None = None) -> datetime | None:
    """Parse the time of a line (UTC); None if it is invalid. `before`: the time of an earlier line."""
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
        # A time of a library with a year, among times of vLLM without one, from the same clock.
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
    # An earlier line may have the same second with a fraction.
    return before if before.microsecond and before.replace(microsecond=0) == found else found


def _zone(text: str | None) -> timezone:
    if text is None or text == "Z":
        return UTC
    digits = text[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if text[0] == "-" else offset)
