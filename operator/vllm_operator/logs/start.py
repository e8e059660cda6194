"""Track the starts of an engine in its log: stage, progress, backends, caches, and the crash.

A log may contain several starts, because a restarted engine writes to the same log. The tracker then forgets the earlier start, except for
its crash.
"""

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from vllm_operator.catalog.startup import LineMeaning, StartupKnowledge
from vllm_operator.logs.crash import CrashTracker
from vllm_operator.logs.lines import INFO, WARNING, Line, LogClock
from vllm_operator.logs.matching import Recognizer
from vllm_operator.logs.progress import Bars, Timeline
from vllm_operator.logs.state import Crash, Progress, Stage, StartupState

_ACCESS = re.compile(r'"(?:GET|POST|HEAD|PUT|DELETE|OPTIONS) /\S{0,300} HTTP/[\d.]{1,3}" [24]\d\d')
"""An answered request, even if the answer is an error: a server that is not ready answers no requests."""
_NOTICES = ("No", "Your", "FlashInfer")
"""First words of records below WARNING that may be notices."""
_STAGES = {stage.value: stage for stage in Stage}
_FIGURES = {"weights": "weights_gib", "kvCache": "kv_cache_gib", "kvTokens": "kv_cache_tokens", "concurrency": "concurrency"}
"""Fields of `MeasuredMemory` by group in `stages.yaml`."""
_UTILIZATION = re.compile(r"gpu_memory_utilization'?[:=] ?(\d?\.\d{1,9})")
_TAG = re.compile(r"\[[\w ./-]{1,60}\] ")


class Meanings:
    """Finds the meaning of a record by the first word of its message. The first words of most records have none."""

    def __init__(self, meanings: Iterable[LineMeaning]) -> None:
        """Initialize. The first matching meaning counts."""
        by_word: dict[str, list[tuple[str, LineMeaning]]] = {}
        for meaning in meanings:
            for word in meaning.words:
                by_word.setdefault(word, []).append((meaning.anchor, meaning))
        self._by_word = {word: tuple(each) for word, each in by_word.items()}

    @property
    def words(self) -> frozenset[str]:
        """First words of messages that have a meaning."""
        return frozenset(self._by_word)

    def find(self, word: str, text: str) -> tuple[LineMeaning, re.Match[str]] | None:
        """Return the meaning of the message `text` with the first word `word`, and the match of its pattern; None if there is none."""
        for anchor, meaning in self._by_word.get(word, ()):
            if anchor in text:
                found = _compiled(meaning.regex).search(text)
                if found is not None:
                    return meaning, found
        return None


@dataclass(frozen=True, slots=True)
class PreparedKnowledge:
    """The catalog in the form that parsers use and share."""

    meanings: Meanings
    words: frozenset[str]
    bars: Bars
    recognizer: Recognizer


@lru_cache(maxsize=4)
def prepare(knowledge: StartupKnowledge) -> PreparedKnowledge:
    """Prepare the catalog for parsers."""
    meanings = Meanings(knowledge.stages.lines)
    return PreparedKnowledge(
        meanings,
        meanings.words | set(_NOTICES),
        Bars(knowledge.stages.bars),
        Recognizer(knowledge.signatures, knowledge.stages, knowledge.kinds),
    )


class StartTracker:
    """Tracks the latest start in a log. `recent`: the latest lines of the log, which the parser adds; `clock`: the times of the log."""

    def __init__(self, knowledge: PreparedKnowledge, recent: deque[Line], clock: LogClock) -> None:
        self._knowledge = knowledge
        self._recent = recent
        self._clock = clock
        self._earlier: Crash | None = None
        self._reset()

    def _reset(self) -> None:
        self.timeline = Timeline()
        self._recent.clear()
        self.crashes = CrashTracker(self._knowledge.recognizer, self._recent)

    def begin(self) -> None:
        """Record the time of the first line, unless it is known."""
        if self.timeline.entered[0][1] is None:
            self.timeline.entered[0] = (Stage.PROCESS_START, self._clock.now())

    def error(self, process: str, level: int | None, text: str, number: int) -> None:
        """Process an error record, or raw output that is not a bar."""
        if level is None and self._is_banner(text, number):
            return
        self.crashes.error(process, level, text, number)

    def _is_banner(self, text: str, number: int) -> bool:
        # The logo and old tools print known lines without a level.
        word = text.lstrip().split(" ", 1)[0]
        return word in self._knowledge.words and self._meaning(word, text, number)

    def record(self, level: int, text: str, number: int) -> None:
        """Process a record below ERROR."""
        self.begin()
        self.crashes.count()
        text = text.lstrip()
        word = text.split(" ", 1)[0]
        if word in self._knowledge.words:
            if self._meaning(word, text, number):
                return
        elif word[:1] == "[" and (tag := _TAG.match(text)):
            text = text[tag.end() :]
            self._meaning(text.split(" ", 1)[0], text, number)
        elif "=" in word:
            self._meaning(word.split("=", 1)[0] + "=", text, number)
        elif level == INFO and word[:1].isdigit() and not self.crashes.failed and _ACCESS.search(text):
            self.enter(Stage.READY)
        elif level == INFO and "throughput: " in text:
            self._meaning("Avg", text, number)
        if level == WARNING or word in _NOTICES or "NvFp4" in text:
            self.crashes.record(level, text, number)

    def _meaning(self, word: str, text: str, number: int) -> bool:
        found = self._knowledge.meanings.find(word, text)
        if found is not None:
            self._apply(*found, number)
        return found is not None

    def _apply(self, meaning: LineMeaning, found: re.Match[str], number: int) -> None:
        if meaning.banner and (self.timeline.begun or self.crashes.failed):
            self._restart()
        if meaning.engine and self.crashes.failed and self.timeline.stage is Stage.READY:
            self._restart()
        if meaning.stage is not None:
            self.enter(_STAGES[meaning.stage])
        named = found.re.groupindex
        if "took" in named and self._clock.given is None and (seconds := found["took"]):
            self.timeline.took(int(seconds), self._clock.now())
        if meaning.arguments and (asked := _UTILIZATION.search(found.string)):
            self.crashes.settings["utilization"] = asked[1]
        if meaning.banner or meaning.engine:
            self.timeline.version = (("version" in named and found["version"]) or self.timeline.version or "")[:40] or None
        if meaning.cache is not None:
            self.timeline.count_cache(meaning.cache, ("why" in named and found["why"]) or "")
        if meaning.component is not None and "backend" in named and (backend := found["backend"]):
            self.timeline.observe(meaning.component, backend)
        if "adapter" in named:
            self.timeline.load_adapter(found["adapter"])
        for group, figure in _FIGURES.items():
            if group in named:
                self.timeline.measure(figure, found[group])
        if meaning.shutdown is not None and not (meaning.shutdown == "server" and self.crashes.failed):
            self.crashes.stopping(number)
        if meaning.progress is not None:
            completed, total = int(found["completed"][:9]), int(found["total"][:9])
            self.timeline.count(self.timeline.stage, Progress(min(completed, total), total, meaning.progress), self._clock.now())

    def enter(self, stage: Stage) -> None:
        """Enter a stage, unless the start has already reached or passed it."""
        if self.timeline.is_later(stage) and self.timeline.enter(stage, self._clock.now()):
            self.crashes.advanced(stage.value, ready=stage is Stage.READY)

    def bar(self, text: str, process: str) -> str | None:
        """Process a progress bar. Return the text after it, or None if the catalog knows no such bar."""
        read = self._knowledge.bars.read(text)
        if read is None:
            return None
        stage, progress, rest = read
        self.enter(stage)
        if progress is not None:
            self.timeline.count(stage, progress, self._clock.now(), process)
        return rest.strip()

    def _restart(self) -> None:
        self._earlier = self.crashes.crash(ended=True) or self._earlier
        self._reset()

    def state(self, lines: int) -> StartupState:
        """Return the state while the process may still run. `lines` is the number of lines of the log."""
        return self._state(self.crashes.crash(ended=False), lines)

    def final_state(self, lines: int) -> StartupState:
        """Return the state if the process ended where the log ends."""
        crash = self.crashes.crash(ended=True)
        if crash is None and self.timeline.stage is not Stage.READY:
            crash = self._earlier or (self.crashes.of_source_line(self._recent[0].text) if lines == len(self._recent) == 1 else None)
        return replace(self._state(crash, lines), is_final=True, cut_off_at=self.crashes.cut_off_at if crash is None else None)

    def _state(self, crash: Crash | None, lines: int) -> StartupState:
        now = self._clock.now()
        timeline = self.timeline
        return StartupState(
            stage=timeline.stage,
            progress=timeline.progress,
            stage_since=timeline.since,
            started_at=timeline.entered[0][1],
            last_line_at=now,
            engine_version=timeline.version,
            crash=crash,
            cache=timeline.cache,
            observed_backends=tuple(timeline.backends),
            entered=tuple(timeline.entered),
            lines=lines,
            notices=tuple(self.crashes.notices),
            memory=timeline.memory,
            adapters=tuple(timeline.adapters),
        )


@cache
def _compiled(regex: str) -> re.Pattern[str]:
    # Compiled on first use, so that the command line starts quickly.
    return re.compile(regex)
