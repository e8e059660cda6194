"""Parse the log of one run of a container.

`StartupParser.feed` takes parts of a log stream, and `state` is the result so far. Irrelevant lines are cheap: a record is dispatched by
the first word of its message, raw output by whether it is a bar or may be an error.
"""

from collections import deque
from dataclasses import replace
from datetime import datetime

from vllm_operator.catalog.startup import StartupKnowledge
from vllm_operator.logs.lines import ERROR, LINE_LIMIT, Line, LineReader, LogClock, process_before_bar, records
from vllm_operator.logs.start import StartTracker, prepare
from vllm_operator.logs.state import Crash, StartupState
from vllm_operator.logs.tracebacks import CHARACTERS_KEPT, LINES_KEPT
from vllm_operator.text.wording import present

_LONG = 300  # minimum characters of a line that may contain several records
_UVICORN = ":     "  # end of the header of a record of uvicorn, which has no time
_UPDATES = 3  # maximum updates of a bar that are read within one line


class StartupParser:
    """Parses the log of one run of a container. It never raises, and its state is bounded. Parsers of the same knowledge share it."""

    def __init__(self, knowledge: StartupKnowledge) -> None:
        self._heartbeats = tuple(line.text.encode() for line in knowledge.stages.heartbeats)
        self._reader = LineReader()
        self._clock = LogClock()
        self._recent: deque[Line] = deque(maxlen=LINES_KEPT)
        self._start = StartTracker(prepare(knowledge), self._recent, self._clock)

    def feed(self, data: bytes | str, timestamp: datetime | None = None) -> None:
        """Parse the next part of the log, of any size. `timestamp`: when it was written (UTC), if known."""
        # The time of heartbeats is ignored: a start that only repeats them makes no progress.
        if timestamp is not None and not self._is_heartbeat(data):
            self._clock.given = timestamp
            self._start.begin()
        self._read(self._reader.feed(data))
        # A bar whose line has not ended shows its last complete update.
        tail = self._reader.tail
        latest = tail[: max(0, tail.rfind("\r"))].rstrip("\r").rpartition("\r")[2]
        if "%" in latest:
            self._bar(latest[-LINE_LIMIT:], process_before_bar(tail.partition("\r")[0]) or "")

    def _is_heartbeat(self, data: bytes | str) -> bool:
        """Return whether all lines are heartbeats, which an engine repeats every 10 or 60 s while it waits for one of its processes."""
        data = data if isinstance(data, bytes) else data.encode("utf-8", "replace")
        found = [text for text in self._heartbeats if text in data]
        return bool(found) and all(any(text in line for text in found) for line in data.splitlines())

    def end(self) -> None:
        """End the log. A last line without a line end is included."""
        self._read(self._reader.end())

    @property
    def last_line(self) -> str:
        """The text of the last line of the latest start, fit for display."""
        return present(self._recent[-1].text.strip(), LINE_LIMIT // 16) if self._recent else ""

    @property
    def state(self) -> StartupState:
        """The state while the process may still run."""
        return self._start.state

    @property
    def final_state(self) -> StartupState:
        """The state if the process ended where the log ends."""
        return self._start.final_state

    def notices_beside(self, crash: Crash | None) -> tuple[Crash, ...]:
        """Return relevant notices in addition to this crash, or without a crash."""
        return self._start.crashes.notices_beside(crash)

    def consequences(self, crash: Crash) -> tuple[Crash, ...]:
        """Return errors of known kinds that the log shows after this crash."""
        return self._start.crashes.consequences(crash)

    def _read(self, lines: list[str]) -> None:
        for raw in lines:
            self._start.lines += 1
            raw = raw.rstrip("\r")  # vLLM ends the inner lines of a record with \r, and Windows may add another one
            if not raw:
                continue
            for record in records(raw) if len(raw) > _LONG and raw[0] != "{" else (raw,):
                if "\r" in record:
                    self._updates(record)
                else:
                    self._line(record)

    def _updates(self, raw: str) -> None:
        before, _, updates = raw.partition("\r")
        process = process_before_bar(before)
        if before and process is None:
            self._line(before)
        latest = updates.split("\r")[-_UPDATES:]
        if not ("%" in latest[-1] and self._bar(latest[-1], process or "")):
            for piece in filter(None, latest):
                self._line(piece, process or "")

    def _line(self, raw: str, process: str = "") -> None:
        for line in self._reader.lines(raw):
            self._recent.append(line if len(line.text) <= CHARACTERS_KEPT else replace(line, text=line.text[:CHARACTERS_KEPT]))
            if line.time is not None or line.header.endswith(_UVICORN):
                self._clock.see(line.time)
            if line.time is not None:
                self._start.begin()
            process, text = line.process or process, line.text
            if line.level is not None and line.level < ERROR:
                self._start.record(line.level, text)
            elif text and not (line.level is None and "%" in text and self._bar(text, process)):
                self._start.error(process, line.level, text)

    def _bar(self, text: str, process: str) -> bool:
        """Parse a progress bar, and the following line if the bar did not finish and so has no line end."""
        if rest := self._start.bar(text, process):
            self._line(rest)
        return rest is not None
