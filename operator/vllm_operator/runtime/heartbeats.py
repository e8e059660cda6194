"""Lines that are no sign of progress, kept from moving the clock of a start.

While an engine waits for one of its processes, it says so every ten or sixty seconds, for ever. Such a line is read as
any other, but its time is not taken for the time of the last sign of life: a start that only repeats it stalls.
"""

from collections.abc import Iterable
from datetime import datetime

from vllm_operator.runtime.follower import Parser
from vllm_operator.startup.state import StartupState


class ProgressClock:
    """A parser that lets only lines which tell something new move the time of the last line."""

    def __init__(self, parser: Parser, heartbeats: Iterable[str]) -> None:
        """`heartbeats` are parts of lines that are repeated by the clock."""
        self._parser = parser
        self._heartbeats = tuple(text.encode() for text in heartbeats)

    def feed(self, data: bytes, timestamp: datetime | None = None) -> None:
        """Take lines of one time."""
        found = [text for text in self._heartbeats if text in data]
        is_heartbeat = bool(found) and all(any(text in line for text in found) for line in data.splitlines())
        self._parser.feed(data, None if is_heartbeat else timestamp)

    def end(self) -> None:
        """The log is complete."""
        self._parser.end()

    @property
    def state(self) -> StartupState:
        """What has been told so far."""
        return self._parser.state

    @property
    def final_state(self) -> StartupState:
        """What has been told, once the process has ended."""
        return self._parser.final_state
