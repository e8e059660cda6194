"""Parse the log of one run of a container.

`StartupParser.feed` takes parts of a log stream, and `state` is the result so far. Irrelevant lines are cheap: a record is dispatched by
the first word of its message, raw output by whether it is a bar or may be an error. Regular expressions are tried only on the few remaining
lines.
"""

from collections import deque
from datetime import datetime

from vllm_operator.catalog.startup import StartupKnowledge
from vllm_operator.logs.crash.tracebacks import CHARACTERS_KEPT, LINES_KEPT, NATIVE_FRAME
from vllm_operator.logs.lines.framing import ERROR, LINE_LIMIT, WARNING, LineReader, locate, process_before_bar, process_of, records
from vllm_operator.logs.start import StartTracker, prepare
from vllm_operator.logs.state import Crash, StartupState
from vllm_operator.logs.times import LogClock

_LONG = 300
"""Minimum characters of a line that may contain several records."""
_EXPLAINING = ("raise ", "assert ")
"""Starts of source lines in a traceback that may explain a crash."""
_UPDATES = 3
"""Maximum updates of a bar that are read within one line."""


class StartupParser:
    """Parses the log of one run of a container. It never raises, and its state is bounded.

    Not for concurrent use. Parsers of the same knowledge share its prepared form.
    """

    def __init__(self, knowledge: StartupKnowledge) -> None:
        prepared = prepare(knowledge)
        self._words = prepared.words
        self._heartbeats = tuple(line.text.encode() for line in knowledge.stages.heartbeats)
        self._reader = LineReader()
        self._clock = LogClock()
        self._header: tuple[str, int | None, str, bool] = ("", None, "  ", False)
        self._recent: deque[str] = deque(maxlen=LINES_KEPT)
        self._start = StartTracker(prepared, self._recent, self._clock)

    def feed(self, data: bytes | str, timestamp: datetime | None = None) -> None:  # noqa: C901, PLR0915 - one case for each kind of line
        """Parse the next part of the log, of any size. `timestamp`: when it was written (UTC), if known.

        Heartbeats are parsed like other lines, but their time is ignored: a start that only repeats them makes no progress.
        """
        clock, start = self._clock, self._start
        if timestamp is not None and not self._is_heartbeat(data):
            clock.give(timestamp)
            if start.begun is None:
                start.begin()
        reader = self._reader
        lines = reader.feed(data)
        before, returns = reader.number, reader.has_returns
        words = self._words
        keep = self._recent.append
        header, header_level, body, after_frame = self._header
        for following, raw in enumerate(lines, 1):
            if not raw:
                continue
            reader.number = before + following
            if returns and "\r" in raw:
                raw = raw.rstrip("\r")  # vLLM ends the inner lines of a record with \r, and Windows may add another one
                if "\r" in raw:
                    keep(raw[:CHARACTERS_KEPT])
                    self._with_returns(raw, lines[following] if following < len(lines) else "")
                    continue
                if not raw:
                    continue
            is_long = len(raw) > _LONG
            keep(raw[:CHARACTERS_KEPT] if is_long else raw)
            # Consecutive lines often have the same header.
            if raw.startswith(body):
                begin, level = len(body) - 2, header_level
            elif raw[0] == " ":
                begin, level = 0, None
            elif header_level is not None and raw.startswith(header):
                begin, level = len(header), header_level
            else:
                begin, level = locate(raw)
                header, header_level = raw[: max(begin, 0)], level
                body = header + "  "
            if is_long:
                self._physical(raw)
            elif begin < 0:
                self._wrapped(raw)
            elif level is not None and level < ERROR:
                start.records += 1
                clock.record = raw
                end = raw.find(" ", begin)
                word = raw[begin:end] if end >= 0 else raw[begin:]
                if word in words or level == WARNING or not word.isalpha() or start.begun is None:
                    start.record(level, word, raw[begin:], reader.number)
            elif raw.startswith("    ", begin) and (raw[-1] in "^~" or (after_frame and not raw.startswith(_EXPLAINING, begin + 4))):
                # Most lines of a crash are source lines. The crash tracker looks back at them when it needs them.
                after_frame = after_frame and raw[-1] in "^~"
            elif raw.startswith('  File "', begin):
                after_frame = True
                if start.crashes.tracebacks.wants_top or raw.startswith(NATIVE_FRAME, begin):
                    start.crashes.error(process_of(raw), level, raw[begin:], reader.number)
            elif level is not None or "%" not in raw:
                after_frame = False
                self._plain(raw, begin, level)
            elif not start.is_superseded(raw, lines[following] if following < len(lines) else ""):
                after_frame = False
                self._plain(raw, begin, level)
                start.remember_bar(raw, begin)
        reader.number = before + len(lines)
        self._header = (header, header_level, body, after_frame)
        if returns:
            self._growing(reader.tail)

    def _is_heartbeat(self, data: bytes | str) -> bool:
        """Return whether all lines are heartbeats, which an engine repeats every 10 or 60 s while it waits for one of its processes."""
        data = data if isinstance(data, bytes) else data.encode("utf-8", "replace")
        found = [text for text in self._heartbeats if text in data]
        return bool(found) and all(any(text in line for text in found) for line in data.splitlines())

    def end(self) -> None:
        """End the log. A last line without a line end is included."""
        for raw in self._reader.end():
            self._reader.number += 1
            self._recent.append(raw[:CHARACTERS_KEPT])
            self._physical(raw)

    @property
    def state(self) -> StartupState:
        """Return the state while the process may still run."""
        return self._start.state(self._reader.number)

    @property
    def final_state(self) -> StartupState:
        """Return the state if the process ended where the log ends.

        This includes errors that a running process may survive. If the log contains several starts, and the last one neither failed nor
        became ready, the crash is the one of the start before.
        """
        return self._start.final_state(self._reader.number)

    def notices_beside(self, crash: Crash | None) -> tuple[Crash, ...]:
        """Return relevant notices in addition to this crash, or without a crash."""
        return self._start.crashes.notices_beside(crash)

    def _physical(self, raw: str) -> None:
        if len(raw) > _LONG and raw[0] != "{" and len(several := records(raw)) > 1:
            self._recent.pop()
            for record in several:
                self._recent.append(record[:CHARACTERS_KEPT])
                self._line(record)
        elif "\r" in raw:
            self._with_returns(raw)
        else:
            self._line(raw)

    def _with_returns(self, raw: str, following: str = "") -> None:
        if self._start.is_superseded(raw, following):
            return
        first = raw.find("\r")
        last = raw[raw.rfind("\r") + 1 :]
        process = process_before_bar(raw, first)
        if first > 0 and process is None:
            self._line(raw[:first])
        if not ("%" in last and self._bar(last, process or "")):
            for piece in raw[first + 1 :].split("\r")[-_UPDATES:]:
                if piece:
                    self._line(piece, process or "")
        self._start.remember_bar(raw, first + 1)

    def _growing(self, tail: str) -> None:
        """Parse the last complete update of a bar whose line has not ended."""
        latest = tail[: max(0, tail.rfind("\r"))].rstrip("\r").rpartition("\r")[2]
        if "%" in latest:
            self._bar(latest[-LINE_LIMIT:], process_before_bar(tail, tail.find("\r")) or "")

    def _line(self, raw: str, process: str = "") -> None:
        begin, level = locate(raw)
        if begin < 0 or len(raw) > LINE_LIMIT:
            self._wrapped(raw)
        else:
            self._plain(raw, begin, level, process)

    def _plain(self, raw: str, begin: int, level: int | None, process: str = "") -> None:
        """Parse a line without prefixes. Its text begins at `begin`."""
        if level is not None:
            self._clock.record = raw
            if self._start.begun is None:
                self._start.begin()
        self._text(process_of(raw) or process, level, raw[begin:])

    def _wrapped(self, raw: str) -> None:
        is_json = raw[0] == "{"
        if is_json and self._recent:
            self._recent.pop()
        for line in self._reader.lines(raw):
            if is_json:
                self._recent.append(line.record[:CHARACTERS_KEPT])
            if line.time is not None:
                self._clock.see(line.time)
                if self._start.begun is None:
                    self._start.begin()
            self._text(line.process, line.level, line.text)

    def _text(self, process: str, level: int | None, text: str) -> None:
        start = self._start
        if level is not None and level < ERROR:
            start.records += 1
            start.record(level, text.partition(" ")[0], text, self._reader.number)
        elif (level is not None or not ("%" in text and self._bar(text, process))) and text:
            start.error(process, level, text, self._reader.number)

    def _bar(self, text: str, process: str) -> bool:
        """Parse a progress bar, and the following line if the bar did not finish and so has no line end."""
        rest = self._start.bar(text, process)
        if rest:
            self._line(rest)
        return rest is not None
