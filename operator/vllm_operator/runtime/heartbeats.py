"""Heartbeats: log lines that show no progress.

While an engine waits for one of its processes, it repeats a line every 10 or 60 s without end. Such a line is parsed like any other, but
does not count as a sign of progress. A start that only repeats it stalls.
"""

from collections.abc import Iterable
from datetime import datetime

from vllm_operator.runtime.follower import Parser
from vllm_operator.startup.state import StartupState


class ProgressClock:
    """A parser that ignores the times of heartbeats."""

    def __init__(self, parser: Parser, heartbeats: Iterable[str]) -> None:
        """`heartbeats` are substrings of such lines."""
        self._parser = parser
        self._heartbeats = tuple(text.encode() for text in heartbeats)

    def feed(self, data: bytes, timestamp: datetime | None = None) -> None:
        """Take lines that were written at the same time."""
        found = [text for text in self._heartbeats if text in data]
        is_heartbeat = bool(found) and all(any(text in line for text in found) for line in data.splitlines())
        self._parser.feed(data, None if is_heartbeat else timestamp)

    def end(self) -> None:
        """The log is complete."""
        self._parser.end()

    @property
    def state(self) -> StartupState:
        """What the log says so far."""
        return self._parser.state

    @property
    def final_state(self) -> StartupState:
        """What the log says after the end of the process."""
        return self._parser.final_state
