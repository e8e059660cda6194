"""Track the starts of an engine in its log: stage, progress, backends, caches, and the crash.

A log may contain several starts, because a restarted engine writes to the same log. The tracker then forgets the earlier start, except for
its crash.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from vllm_operator.catalog.startup import SETTINGS, LineMeaning, StartupKnowledge
from vllm_operator.logs.crash import MISSING, CrashTracker
from vllm_operator.logs.lines import INFO, WARNING, Line, LogClock
from vllm_operator.logs.matching import Recognizer, compiled
from vllm_operator.logs.progress import Counts, read_bar
from vllm_operator.logs.state import CacheEvidence, Crash, MeasuredMemory, Membership, Progress, Stage, StartupState
from vllm_operator.text.wording import present

_ACCESS = re.compile(r'"(?:GET|POST|HEAD|PUT|DELETE|OPTIONS) /\S{0,300} HTTP/[\d.]{1,3}" [24]\d\d')
"""An answered request, even if the answer is an error: a server that is not ready answers no requests."""
_NO_DEVICE = "CUDA platform is not available because:"  # a record at DEBUG that says why vLLM then finds no device
_NOTICES = ("Waiting", "No", "Your", "FlashInfer", "Dumping")  # first words of records that may be notices at any level
_ORDER = {stage: index for index, stage in enumerate(Stage)}
_BACKENDS_KEPT, _ADAPTERS_KEPT = 16, 128  # the maximum of adapters is twice the limit of a spec
_FAILURE_LENGTH, _ASSIGNED_LENGTH = 200, 2000
_FIGURES = {"weights": "weights_gib", "kvCache": "kv_cache_gib", "kvTokens": "kv_cache_tokens", "concurrency": "concurrency"}
"""Fields of `MeasuredMemory` by group in `stages.yaml`."""
_PLACES = {"node": "node", "nodes": "nodes", "timeout": "timeout_seconds"}
"""Fields of `Membership` by group."""
_BACKENDS = {"Attention": "attention", "MLADecode": "attention", "SparseAttention": "attention", "MoE": "moe", "GEMM": "gemm"}
_ROUNDED = timedelta(seconds=1)  # durations in lines are whole seconds
_SILENT = timedelta(seconds=5)  # time after the capture of graphs that is a stage of its own
_TAG = re.compile(r"\[[\w ./-]{1,60}\] ")


class PreparedKnowledge:
    """The catalog in the form that parsers use and share."""

    def __init__(self, knowledge: StartupKnowledge) -> None:
        self.stages = stages = knowledge.stages
        self._meanings: dict[str, list[LineMeaning]] = {}
        for meaning in stages.lines:
            for word in meaning.words:
                self._meanings.setdefault(word, []).append(meaning)
        self.words = frozenset((*self._meanings, *_NOTICES))  # first words of messages that may matter; most others do not
        self.recognizer = Recognizer(knowledge.signatures, stages, knowledge.kinds)

    def meaning(self, word: str, text: str) -> tuple[LineMeaning, re.Match[str]] | None:
        """Return the first meaning of a message with this first word, and the match of its pattern; None if there is none."""
        for meaning in self._meanings.get(word, ()):
            if meaning.anchor in text and (found := compiled(meaning.regex).search(text)) is not None:
                return meaning, found
        return None


prepare = lru_cache(maxsize=4)(PreparedKnowledge)
"""Prepare the catalog for parsers."""


class StartTracker:
    """Tracks the latest start in a log.

    The caller adds the latest lines of the log to `recent`, sets its `clock`, and counts its `lines`.
    """

    def __init__(self, knowledge: PreparedKnowledge, recent: deque[Line], clock: LogClock) -> None:
        self._knowledge = knowledge
        self._recent = recent
        self._clock = clock
        self.lines = 0
        self._earlier: Crash | None = None
        self._reset()

    def _reset(self) -> None:
        self._seen = StartupState(entered=((Stage.PROCESS_START, None),))
        self._counts = Counts()
        self._ended: datetime | None = None
        self._recent.clear()
        self.crashes = CrashTracker(self._knowledge.recognizer, self._recent, self._clock)

    def begin(self) -> None:
        """Record the time of the first line, unless it is known."""
        (stage, begun), *later = self._seen.entered
        if begun is None:
            self._seen = replace(self._seen, entered=((stage, self._clock.now()), *later))

    def error(self, process: str, level: int | None, text: str) -> None:
        """Process an error record, or raw output that is not a bar."""
        if not self._seen.has_arguments and len(self._recent) != self._recent.maxlen:  # lines of what launches the server
            known, found = self.crashes.settings, _captured(self._knowledge.stages.settings.finditer(text))
            if "assigned" in found and len(known.get("assigned", "")) < _ASSIGNED_LENGTH:
                known["assigned"] = f"{known.get('assigned', '')} {found['assigned']}"
            self.crashes.settings = found | known
        if text.startswith("EngineCore encountered a fatal error") and self._seen.has_start:  # its loop runs, so the start is over
            self._seen, self.crashes.stage = replace(self._seen, stage=Stage.READY, is_stage_over=False), Stage.READY.value
        # The logo and old tools print known lines without a level. The dump of a failed step is an error.
        word = text.lstrip().split(" ", 1)[0] if level is None or text.startswith("Dumping ") else ""
        if not (word in self._knowledge.words and self._meaning(word, text) and word not in _NOTICES):
            self.crashes.error(process, level, text, self.lines)

    def record(self, level: int, text: str) -> None:
        """Process a record below ERROR."""
        self.begin()
        self.crashes.count_record()
        text = text.lstrip()
        level = WARNING if text.startswith(_NO_DEVICE) else level
        if "generation throughput: " in text:
            self.crashes.throughput(text, self.lines)
        word = text.split(" ", 1)[0]
        if word in self._knowledge.words:
            if self._meaning(word, text) and word not in _NOTICES:
                return
        elif word[:1] == "[" and (tag := _TAG.match(text)):
            text = text[tag.end() :]
            self._meaning(text.split(" ", 1)[0], text)
        elif "=" in word:
            self._meaning(word.split("=", 1)[0] + "=", text)
        elif level == INFO and word[:1].isdigit() and not self.crashes.failed and _ACCESS.search(text):
            self._enter(Stage.READY)
        elif level == INFO and "throughput: " in text:
            self._meaning("Avg", text)
        if level == WARNING or word in _NOTICES or "NvFp4" in text:
            self.crashes.record(level, text, self.lines)

    def bar(self, text: str, process: str) -> str | None:
        """Process a progress bar. Return the text after it, or None if the catalog knows no such bar."""
        if (read := read_bar(self._knowledge.stages.bars, text)) is None:
            return None
        stage, progress, rest = read
        self._enter(stage)
        if progress is not None:
            self._count(stage, progress, process)
        return rest.strip()

    def _meaning(self, word: str, text: str) -> bool:
        if (found := self._knowledge.meaning(word, text)) is not None:
            self._apply(*found)
        return found is not None

    def _apply(self, meaning: LineMeaning, found: re.Match[str]) -> None:
        stages = self._knowledge.stages
        has_begun = _ORDER[self._seen.stage] > _ORDER[Stage.CONFIGURATION]
        is_later_engine = meaning.engine and self.crashes.failed and self._seen.stage is Stage.READY
        if is_later_engine or (meaning.banner and (has_begun or self.crashes.failed)):
            self._earlier = self.crashes.crash(ended=True) or self._earlier
            self._reset()
        if meaning.stage is not None:
            self._enter(Stage(meaning.stage))
            if self._seen.stage is Stage(meaning.stage):
                self._ended = self._clock.now() if meaning.ends else None
                self._seen = replace(self._seen, is_stage_over=meaning.ends, progress=None if meaning.ends else self._seen.progress)
                self.crashes.stage = f"After{meaning.stage}" if meaning.ends else self.crashes.stage
        known = _captured(stages.settings.finditer(found.string)) if meaning.arguments or meaning.engine else {}
        self.crashes.settings |= {**known, "given": found.string} if meaning.arguments else known
        self._observe(meaning, _captured([found]))
        if meaning.arguments:
            self._place(_captured(stages.placement.finditer(found.string)))
        if meaning.peers is not None:
            self._place(_captured([found]), meaning.peers)
        place = self._seen.membership
        if meaning.peers == "stop" and place is not None and place.node != 0:
            self.crashes.note_leaving(self.lines)
        if meaning.shutdown is not None and not (meaning.shutdown == "server" and self.crashes.failed):
            self.crashes.note_stop(self.lines)
        if meaning.progress is not None:
            completed, total = int(found["completed"][:9]), int(found["total"][:9])
            self._count(self._seen.stage, Progress(min(completed, total), total, meaning.progress), "")

    def _observe(self, meaning: LineMeaning, named: Mapping[str, str]) -> None:
        seen = self._seen
        changes: dict[str, Any] = {"has_arguments": True} if meaning.arguments else {}
        now = self._clock.now() if "took" in named and self._clock.given is None else None
        if now is not None and len(seen.entered) > 1:
            (_, earlier), (stage, since) = seen.entered[-2:]
            began = now - timedelta(seconds=int(named["took"]))
            if since is not None and earlier is not None and began >= earlier and abs(began - since) > _ROUNDED:
                changes["entered"] = (*seen.entered[:-1], (stage, began))  # the bar of the stage has no time, and may be its first line
        self.crashes.settings.update({name: value for name, value in named.items() if name in SETTINGS})
        if (meaning.banner or meaning.engine) and "version" in named:
            changes["engine_version"] = named["version"][:40]
        if meaning.cache is not None:
            changes["cache"] = CacheEvidence(
                hits=seen.cache.hits + (meaning.cache == "hit"),
                misses=seen.cache.misses + (meaning.cache == "miss"),
                load_failures=seen.cache.load_failures + (meaning.cache == "failure"),
                failure=present(named.get("why", ""), _FAILURE_LENGTH) or seen.cache.failure,
            )
        if meaning.component is not None and "backend" in named:
            backends = dict.fromkeys((*seen.observed_backends, (meaning.component, named["backend"][:80])))
            changes["observed_backends"] = tuple(backends)[:_BACKENDS_KEPT]
            if meaning.component in _BACKENDS:
                of = f" ({named['quant']})" if "quant" in named else ""
                self.crashes.settings[_BACKENDS[meaning.component]] = f"{named['backend'][:80]}{of}"
        if "adapter" in named:
            changes["adapters"] = tuple(dict.fromkeys((*seen.adapters, named["adapter"])))[:_ADAPTERS_KEPT]
        figures: dict[str, Any] = {
            figure: _fullest(figure, named[group], seen.memory) for group, figure in _FIGURES.items() if group in named
        }
        self._seen = replace(seen, memory=replace(seen.memory, **figures), **changes)

    def _place(self, named: Mapping[str, str], peers: str | None = None) -> None:
        """Record what a line says about the nodes of the engine. `named` are its captures, and `peers` is as in its meaning."""
        known = self._seen.membership
        changes: dict[str, Any] = {_PLACES[name]: int(value) for name, value in named.items() if name in _PLACES}
        nodes = int(named["world"]) // max(1, int(named["local"])) if "world" in named else 0  # of one data-parallel rank
        if nodes > max(1, known.nodes or 0 if known is not None else 0):
            changes["nodes"] = nodes
        if known is None and not (changes.get("nodes", 1) > 1 or changes.get("node", 0) > 0 or "head" in named):
            return  # one node
        if peers in ("awaited", "joined"):
            changes["is_waiting"] = peers == "awaited"
            self._enter(Stage.DISTRIBUTED_INIT)
        elif peers == "orphaned":
            changes["is_orphaned"] = not self.crashes.is_stopping
        elif peers in ("silent", "answer"):
            changes["is_unanswered"] = peers == "silent" and self._seen.stage is Stage.READY
        self._seen = replace(self._seen, membership=replace(known or Membership(), **changes))

    def _enter(self, stage: Stage) -> None:
        """Enter a stage, unless the start has already reached or passed it."""
        if _ORDER[stage] > _ORDER[self._seen.stage]:
            since, entered = self._ended or self._clock.now(), self._seen.entered
            if self._ended is not None and stage is Stage.SERVER_START:
                # The engine says that it is ready. Since the end of its last stage, it has prepared kernels without logging.
                since, (latest, began) = self._clock.now(), entered[-1]
                is_brief = latest is Stage.AUTOTUNE and began is not None and self._ended - began <= _ROUNDED
                silent = since - self._ended if since is not None and Stage.KERNEL_WARMUP not in dict(entered) else _ROUNDED
                if is_brief and silent > _ROUNDED:
                    entered = (*entered[:-1], (Stage.KERNEL_WARMUP, began))
                elif latest is Stage.CUDA_GRAPH_CAPTURE and silent > _SILENT:
                    entered = (*entered, (Stage.KERNEL_WARMUP, self._ended))
            self._seen = replace(self._seen, stage=stage, is_stage_over=False, progress=None, entered=(*entered, (stage, since)))
            self._ended = None
            self._counts = Counts()
            self.crashes.note_stage(stage.value, ready=stage is Stage.READY)

    def _count(self, stage: Stage, progress: Progress, process: str) -> None:
        earlier = stage is not self._seen.stage
        least = self._counts.update(process, progress, self._clock.now(), is_of_earlier_stage=earlier)
        self._seen = replace(self._seen, progress=least)

    @property
    def state(self) -> StartupState:
        """The state while the process may still run."""
        return self._state(self.crashes.crash(ended=False))

    @property
    def final_state(self) -> StartupState:
        """The state if the process ended where the log ends.

        This includes errors that a running process may survive. If the log contains several starts, and the last one neither failed nor
        became ready, the crash is the one of the start before.
        """
        crash = self.crashes.crash(ended=True)
        if crash is not None and crash.signature == MISSING:
            crash = self._earlier or crash  # a leader that starts again waits for nodes that did not
        if crash is None and self._seen.stage is not Stage.READY:
            is_one_line = self.lines == len(self._recent) == 1
            crash = self._earlier or (self.crashes.of_source_line(self._recent[0].text) if is_one_line else None)
        return replace(self._state(crash), is_final=True, cut_off_at=self.crashes.cut_off_at if crash is None else None)

    def _state(self, crash: Crash | None) -> StartupState:
        entered, now = self._seen.entered, self._clock.now()
        place, obstacle = self._seen.membership, None
        if place is not None:
            is_waiting = place.is_waiting and self._seen.stage is Stage.DISTRIBUTED_INIT
            place = replace(place, is_waiting=is_waiting, is_stopping=self.crashes.is_stopping)
            obstacle = self.crashes.crash(ended=True) if crash is None and place.is_waiting else None
        times: dict[str, Any] = {"stage_since": entered[-1][1], "started_at": entered[0][1], "last_line_at": now}
        return replace(
            self._seen, **times, membership=place, obstacle=obstacle, crash=crash, lines=self.lines, notices=tuple(self.crashes.notices)
        )


def _captured(matches: Iterable[re.Match[str]]) -> dict[str, str]:
    """Return the named groups that matched, the last of several."""
    return {name: value for found in matches for name, value in found.groupdict().items() if value}


def _fullest(figure: str, logged: str, known: MeasuredMemory) -> float:
    """Return a figure of the fullest GPU: each process of the engine logs its figure."""
    value = int(logged.replace(",", "")) if figure == "kv_cache_tokens" else float(logged)
    before = getattr(known, figure)
    return value if before is None else (max if figure == "weights_gib" else min)(before, value)
