"""The log of one run, and whether the lines that were read belong to it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from vllm_operator.controller.log_lines import LogLines, LogUnavailableError
from vllm_operator.logs.state import StartupState

LATE_SECONDS = 2
"""A line that was written this long after the end of a run belongs to a later run. End times are whole seconds."""


_AMOUNTS = (1, 10, 60, 600, 3600, 6 * 3600, 24 * 3600)
"""Reported amounts of skipped log, in seconds."""


class Parser(Protocol):
    """A parser of log lines, such as `vllm_operator.logs.parser.StartupParser`."""

    def feed(self, data: bytes, timestamp: datetime | None = None) -> None:
        """Parse lines that were written at this time."""

    def end(self) -> None:
        """End the log."""

    @property
    def state(self) -> StartupState:
        """The current state of the run."""

    @property
    def final_state(self) -> StartupState:
        """The state of the run if the process has ended."""


class RunLog:
    """The log of one run, read from one or more streams.

    Attributes:
        latest: The current state of the run.
        size: Number of bytes that were read, including repeated lines.
    """

    def __init__(self, parser: Parser, *, line_bytes: int, skipped: Callable[[float], None] = lambda seconds: None) -> None:
        """Initialize. Lines longer than `line_bytes` are parsed in pieces. `skipped` is called with the seconds of skipped log."""
        self.latest = parser.state
        self.size = 0
        self._parser: Parser | None = parser
        self._lines = LogLines(line_bytes=line_bytes)
        self._was_reopened = False
        self._begins_at: datetime | None = None  # time of the first line of a log that may belong to the next run
        self._at_first_line = False
        self._skips = False
        self._last_at: datetime | None = None
        self._note_skipped, self._skipped_seconds = skipped, 0.0

    @property
    def since(self) -> str | None:
        """The `sinceTime` for the resumed stream; None for all lines."""
        return self._lines.since

    @property
    def is_unsure(self) -> bool:
        """Whether the log that was opened last may belong to another run."""
        return self._was_reopened and not self._lines.continues

    def begins_after(self, moment: datetime) -> bool:
        """Return whether the log may belong to the next run and its first line was written at `moment` or later."""
        return self._begins_at is not None and self._begins_at >= moment

    def reopen(self, *, previous: bool, skips: bool = False) -> None:
        """Prepare for another stream. `previous`: it can only belong to an ended run. `skips`: it begins near the end of the log."""
        self._was_reopened = not (previous or skips) and self._lines.since is not None
        self._lines.reopen()
        self._at_first_line, self._skips = not previous, skips

    def feed(self, piece: bytes, ended_at: datetime | None) -> None:
        """Parse bytes of a run that ended at `ended_at` (None: running). Raises LogUnavailableError if they are not log output."""
        self.size += len(piece)
        for lines, moment in self._lines.feed(piece):
            self._check_run(moment, ended_at)
            if self._parser is not None:
                self._parser.feed(lines, moment)
        self.latest = self._with_skipped(self._parser.state) if self._parser else self.latest

    def check(self) -> None:
        """End a stream. Raises LogUnavailableError if it was only an error text without a newline."""
        self._lines.check()

    def end(self, *, has_ended: bool) -> None:
        """End the log, and free the memory of its parser. `has_ended`: the run is over."""
        parser, rest = self._parser, self._lines.flush()
        if parser is None:
            return
        if rest is not None:
            parser.feed(*rest)
        if has_ended:
            parser.end()
        self.latest, self._parser = self._with_skipped(parser.final_state if has_ended else parser.state), None

    def _with_skipped(self, state: StartupState) -> StartupState:
        return replace(state, skipped_seconds=_rounded(self._skipped_seconds)) if self._skipped_seconds else state

    def _check_run(self, moment: datetime | None, ended_at: datetime | None) -> None:
        if moment is None:
            return
        if self._skips and not self._lines.continues and self._last_at is not None and moment > self._last_at:
            seconds = (moment - self._last_at).total_seconds()
            self._skipped_seconds += seconds
            self._note_skipped(seconds)
        self._skips, self._last_at = False, moment
        if ended_at is not None and moment > ended_at + timedelta(seconds=LATE_SECONDS):
            raise LogUnavailableError("this is the log of a later run")
        if self._at_first_line:
            self._at_first_line = False
            if not self._lines.continues or not self.latest.lines:
                self._begins_at = moment


def _rounded(seconds: float) -> int:
    """Round down, so that a growing amount of skipped log does not change the status all the time."""
    return max((amount for amount in _AMOUNTS if amount <= seconds), default=_AMOUNTS[0])
