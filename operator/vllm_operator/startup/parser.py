"""Following the log of one container run.

`StartupParser.feed` takes what a log stream delivers; `state` says what it has told so far. Lines are dispatched
cheaply: a log record by the first word of its message, raw output by whether it is a bar or may be an error; regular
expressions are tried only on the few lines that remain.
"""

import re
from collections import deque
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache

from vllm_operator.catalog.startup import LineMeaning, StartupKnowledge
from vllm_operator.startup.crash.matching import Recognizer
from vllm_operator.startup.crash.tracebacks import CHARACTERS_KEPT, LINES_KEPT, NATIVE_FRAME
from vllm_operator.startup.crash.tracker import CrashTracker
from vllm_operator.startup.lines.framing import (
    ERROR,
    INFO,
    LINE_LIMIT,
    WARNING,
    LineReader,
    locate,
    process_before_bar,
    process_of,
    records,
    time_of,
)
from vllm_operator.startup.meanings import Meanings
from vllm_operator.startup.progress import Bars
from vllm_operator.startup.state import Crash, Progress, Stage, StartupState
from vllm_operator.startup.timeline import Timeline
from vllm_operator.startup.times import read_time

_ACCESS = re.compile(r'"(?:GET|POST|HEAD|PUT|DELETE|OPTIONS) /\S{0,300} HTTP/[\d.]{1,3}" [24]\d\d')
"""Requests that are answered, if only with what is wrong with them: before it is ready, the server answers none."""
_NOTICES = ("No", "Your", "FlashInfer")
"""First words of records that are no warnings and yet worth a notice."""
_STAGES = {stage.value: stage for stage in Stage}
_LONG = 300
"""Lines of more characters than this may hold several log records whose ends of lines were lost."""
_TELLING = ("raise ", "assert ")
_UPDATES = 3
_BAR_HEAD = 12
"""Characters by which two updates of one bar are recognised."""
_UTILIZATION = re.compile(r"gpu_memory_utilization'?[:=] ?(\d?\.\d{1,9})")
_TAG = re.compile(r"\[[\w ./-]{1,60}\] ")


@dataclass(frozen=True, slots=True)
class _Dispatch:
    """The catalog, prepared for many parsers."""

    meanings: Meanings
    words: frozenset[str]
    bars: Bars
    recognizer: Recognizer


class StartupParser:
    """Reads the log of one container run. Never raises on any input; keeps a bounded state.

    Not for use by several threads. Parsers of the same knowledge share what is prepared from it.
    """

    def __init__(self, knowledge: StartupKnowledge) -> None:
        """Begin with an empty log."""
        self._dispatch = _prepare(knowledge)
        self._reader = LineReader()
        self._time: datetime | None = None
        self._time_text: str | None = None
        self._time_of: str | None = None
        self._known_time: datetime | None = None
        self._known_text = ""
        self._earlier: Crash | None = None
        self._bar_head = self._bar_begin = self._bar_shown = ""
        self._header: tuple[str, int | None, str, bool] = ("", None, "  ", False)
        self._recent: deque[str] = deque(maxlen=LINES_KEPT)
        self._begin()

    def _begin(self) -> None:
        self._timeline = Timeline()
        self._records = 0
        self._recent.clear()
        self._crashes = CrashTracker(self._dispatch.recognizer, self._recent)
        self._begun: datetime | None = None

    def feed(self, data: bytes | str, timestamp: datetime | None = None) -> None:
        """Take the next part of the log, of any size. `timestamp`: when it was written, if that is known (UTC)."""
        if timestamp is not None:
            self._time, self._time_text, self._time_of = timestamp, None, None
            if self._begun is None:
                self._begin_at()
        reader = self._reader
        lines = reader.feed(data)
        before, returns = reader.number, reader.has_returns
        words = self._dispatch.words
        keep = self._recent.append
        header, header_level, body, after_frame = self._header
        for following, raw in enumerate(lines, 1):
            if not raw:
                continue
            reader.number = before + following
            if returns and "\r" in raw:
                raw = raw.rstrip("\r")  # vLLM ends the inner lines of a record like this; Windows may add another one
                if "\r" in raw:
                    keep(raw[:CHARACTERS_KEPT])
                    self._with_returns(raw, lines[following] if following < len(lines) else "")
                    continue
                if not raw:
                    continue
            is_long = len(raw) > _LONG
            keep(raw[:CHARACTERS_KEPT] if is_long else raw)
            # Lines that follow each other often have the same header.
            if raw.startswith(body):
                start, level = len(body) - 2, header_level
            elif raw[0] == " ":
                start, level = 0, None
            elif header_level is not None and raw.startswith(header):
                start, level = len(header), header_level
            else:
                start, level = locate(raw)
                header, header_level = raw[: max(start, 0)], level
                body = header + "  "
            if is_long:
                self._physical(raw)
            elif start < 0:
                self._closely(raw)
            elif level is not None and level < ERROR:
                self._records += 1
                self._time_of = raw
                end = raw.find(" ", start)
                word = raw[start:end] if end >= 0 else raw[start:]
                if word in words or level == WARNING or not word.isalpha() or self._begun is None:
                    self._record(level, word, raw[start:])
            elif raw.startswith("    ", start) and (raw[-1] in "^~" or (after_frame and not raw.startswith(_TELLING, start + 4))):
                # Most lines of a crash are these; the crash tracker looks back at them when it needs them.
                after_frame = after_frame and raw[-1] in "^~"
            elif raw.startswith('  File "', start):
                after_frame = True
                if self._crashes.tracebacks.wants_top or raw.startswith(NATIVE_FRAME, start):
                    self._crashes.error(process_of(raw), level, raw[start:], reader.number)
            elif level is not None or "%" not in raw:
                after_frame = False
                self._unremarkable(raw, start, level)
            elif not self._is_passing(raw, lines[following] if following < len(lines) else ""):
                after_frame = False
                self._unremarkable(raw, start, level)
                self._remember_bar(raw, start)
        reader.number = before + len(lines)
        self._header = (header, header_level, body, after_frame)
        if returns:
            self._growing(reader.tail)

    def _is_passing(self, raw: str, following: str) -> bool:
        # Of the updates of a bar that are already there only the last counts.
        begin = self._bar_begin
        if not begin or not raw.startswith(begin):
            return False
        if begin[0] != "(":
            # Nothing tells whose bar this is; one that goes back is that of another process.
            shown = raw[: raw.find("%")]
            if len(shown) == len(self._bar_shown) and shown < self._bar_shown:
                self._timeline.counts.are_several = True
            self._bar_shown = shown
            if self._timeline.counts.are_several or (following and following[: len(shown)] < shown):
                return False
        return following.startswith(begin)

    def _remember_bar(self, raw: str, start: int) -> None:
        """How the next update of the bar will begin that this line has shown, if it has shown one."""
        head = self._bar_head
        self._bar_begin = raw[: start + len(head)] if head and raw.startswith(head, start) else ""
        self._bar_shown = raw[: raw.find("%")]

    def _with_returns(self, raw: str, following: str = "") -> None:
        if self._is_passing(raw, following):
            return
        first = raw.find("\r")
        last = raw[raw.rfind("\r") + 1 :]
        process = process_before_bar(raw, first)
        if first > 0 and process is None:
            self._raw(raw[:first])
        if not ("%" in last and self._bar(last, process or "")):
            for piece in raw[first + 1 :].split("\r")[-_UPDATES:]:
                if piece:
                    self._raw(piece, process or "")
        self._remember_bar(raw, first + 1)

    def _unremarkable(self, raw: str, start: int, level: int | None, process: str = "") -> None:
        if level is not None:
            self._time_of = raw
            if self._begun is None:
                self._begin_at()
        self._logical(process_of(raw) or process, level, raw[start:])

    def end(self) -> None:
        """The log ends here: a last line without an end counts too."""
        for raw in self._reader.end():
            self._reader.number += 1
            self._recent.append(raw[:CHARACTERS_KEPT])
            self._physical(raw)

    def _physical(self, raw: str) -> None:
        if len(raw) > _LONG and raw[0] != "{" and len(several := records(raw)) > 1:
            self._recent.pop()
            for record in several:
                self._recent.append(record[:CHARACTERS_KEPT])
                self._raw(record)
        elif "\r" in raw:
            self._with_returns(raw)
        else:
            self._raw(raw)

    def _growing(self, tail: str) -> None:
        # Whether the last update is complete is not known.
        latest = tail[: max(0, tail.rfind("\r"))].rstrip("\r").rpartition("\r")[2]
        if "%" in latest:
            self._bar(latest[-LINE_LIMIT:], process_before_bar(tail, tail.find("\r")) or "")

    def _raw(self, raw: str, process: str = "") -> None:
        start, level = locate(raw)
        if start < 0 or len(raw) > LINE_LIMIT:
            self._closely(raw)
        else:
            self._unremarkable(raw, start, level, process)

    def _closely(self, raw: str) -> None:
        is_json = raw[0] == "{"
        if is_json and self._recent:
            self._recent.pop()
        for line in self._reader.lines(raw):
            if is_json:
                self._recent.append(line.record[:CHARACTERS_KEPT])
            if line.time is not None:
                self._time_text, self._time_of = line.time, None
                if self._begun is None:
                    self._begin_at()
            self._logical(line.process, line.level, line.text)

    def _logical(self, process: str, level: int | None, text: str) -> None:
        if level is not None and level < ERROR:
            self._records += 1
            self._record(level, text.partition(" ")[0], text)
        elif (level is not None or not ("%" in text and self._bar(text, process))) and text:
            if level is None and self._banner(text):
                return
            self._crashes.records = self._records
            self._crashes.error(process, level, text, self._reader.number)

    def _banner(self, text: str) -> bool:
        # The logo and old tools print lines that belong to the catalog without a level.
        word = text.lstrip().split(" ", 1)[0]
        return word in self._dispatch.words and self._meaning(word, text)

    def _record(self, level: int, word: str, text: str) -> None:
        if self._begun is None:
            self._begin_at()
        if not word:
            text = text.lstrip()
            word = text.split(" ", 1)[0]
        if word in self._dispatch.words:
            if self._meaning(word, text):
                return
        elif word[:1] == "[" and (tag := _TAG.match(text)):
            text = text[tag.end() :]
            self._meaning(text.split(" ", 1)[0], text)
        elif "=" in word:
            self._meaning(word.split("=", 1)[0] + "=", text)
        elif level == INFO and word[:1].isdigit() and not self._crashes.failed and _ACCESS.search(text):
            self._enter(Stage.READY)
        elif level == INFO and "throughput: " in text:
            self._meaning("Avg", text)
        if level == WARNING or word in _NOTICES or "NvFp4" in text:
            self._crashes.records = self._records
            self._crashes.record(level, text, self._reader.number)

    def _meaning(self, word: str, text: str) -> bool:
        found = self._dispatch.meanings.find(word, text)
        if found is not None:
            self._apply(*found)
        return found is not None

    def _apply(self, meaning: LineMeaning, found: re.Match[str]) -> None:
        if meaning.banner and (self._timeline.begun or self._crashes.failed):
            self._restart()
        if meaning.engine and self._crashes.failed and self._timeline.stage is Stage.READY:
            self._restart()
        if meaning.stage is not None:
            self._enter(_STAGES[meaning.stage])
        named = found.re.groupindex
        if "took" in named and self._time is None and (seconds := found["took"]):
            self._timeline.took(int(seconds), self._now())
        if meaning.arguments and (asked := _UTILIZATION.search(found.string)):
            self._crashes.settings["utilization"] = asked[1]
        if meaning.banner or meaning.engine:
            self._timeline.version = (("version" in named and found["version"]) or self._timeline.version or "")[:40] or None
        if meaning.cache is not None:
            self._timeline.count_cache(meaning.cache)
        if meaning.component is not None and "backend" in named and (backend := found["backend"]):
            self._timeline.observe(meaning.component, backend)
        if meaning.loaded:
            self._timeline.loaded = True
        if meaning.shutdown is not None and not (meaning.shutdown == "server" and self._crashes.failed):
            self._crashes.stopping(self._reader.number)
        if meaning.progress is not None:
            completed, total = int(found["completed"][:9]), int(found["total"][:9])
            self._timeline.count(self._timeline.stage, Progress(min(completed, total), total, meaning.progress), self._now())

    def _enter(self, stage: Stage) -> None:
        if self._timeline.is_later(stage) and self._timeline.enter(stage, self._now()):
            self._bar_head = self._bar_begin = ""
            self._crashes.advanced(stage.value, ready=stage is Stage.READY)

    def _bar(self, text: str, process: str) -> bool:
        read = self._dispatch.bars.read(text)
        if read is None:
            return False
        stage, progress, rest = read
        self._enter(stage)
        if progress is not None:
            self._timeline.count(stage, progress, self._now(), process)
            self._bar_head = text[:_BAR_HEAD] if stage is self._timeline.stage else ""
        if rest.strip():
            self._raw(rest.strip())
        return True

    def _restart(self) -> None:
        self._earlier = self._crashes.crash(ended=True) or self._earlier
        self._begin()

    def _now(self) -> datetime | None:
        if self._time_of is not None:
            self._time_text, self._time_of = time_of(self._time_of) or self._time_text, None
        if self._time_text is not None:
            if self._time is None and self._time_text != self._known_text:
                self._known_time = read_time(self._time_text, self._known_time) or self._known_time
                self._known_text = self._time_text
            self._time_text = None
        if self._time is not None:
            self._known_time = self._time
        return self._known_time

    def _begin_at(self) -> None:
        self._begun = self._now()
        self._timeline.entered[0] = (Stage.PROCESS_START, self._begun)

    @property
    def state(self) -> StartupState:
        """What the log has told so far, while the process may still run."""
        self._crashes.records = self._records
        return self._state(self._crashes.crash(ended=False))

    @property
    def final_state(self) -> StartupState:
        """What the log has told if the process ended where the log ends.

        Errors count that a running process may survive. Where the log holds several runs and the last one
        neither failed nor became ready, the crash is that of the run before.
        """
        self._crashes.records = self._records
        crash = self._crashes.crash(ended=True)
        if crash is None and self._timeline.stage is not Stage.READY:
            crash = self._earlier or (self._crashes.asked(self._recent[0]) if self._reader.number == len(self._recent) == 1 else None)
        return replace(self._state(crash), is_final=True, cut_off_at=self._crashes.cut_off_at if crash is None else None)

    def notices_beside(self, crash: Crash | None) -> tuple[Crash, ...]:
        """What the log says that is worth knowing beside this crash, or where there is none."""
        return self._crashes.notices_beside(crash)

    def _state(self, crash: Crash | None) -> StartupState:
        now = self._now()
        timeline = self._timeline
        return StartupState(
            stage=timeline.stage,
            progress=timeline.progress,
            stage_since=timeline.since,
            started_at=self._begun or timeline.entered[0][1],
            last_line_at=now,
            engine_version=timeline.version,
            crash=crash,
            cache=timeline.cache,
            observed_backends=tuple(timeline.backends),
            entered=tuple(timeline.entered),
            lines=self._reader.number,
            notices=tuple(self._crashes.notices),
        )


@lru_cache(maxsize=4)
def _prepare(knowledge: StartupKnowledge) -> _Dispatch:
    meanings = Meanings(knowledge.stages.lines)
    return _Dispatch(
        meanings,
        meanings.words | set(_NOTICES),
        Bars(knowledge.stages.bars),
        Recognizer(knowledge.signatures, knowledge.stages),
    )
