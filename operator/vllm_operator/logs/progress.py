"""Parse progress bars: labels, counts and rates, and bars that several processes of one start draw at the same time.

A bar looks like `DeepGEMM warmup:  12%|█▏        | 361/3000 [00:41<05:02,  8.73it/s]`, with or without the drawing between the strokes. The
weight loader writes `25% Completed | 41/163 [..]`. In a terminal without a width (`tty: true`) there are no strokes.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from vllm_operator.catalog.startup import Bar, StartupKnowledge
from vllm_operator.logs.state import CacheEvidence, MeasuredMemory, Progress, Stage, StartupState
from vllm_operator.text.redaction import present

_NUMBER = r"(\d{1,9}(?:\.\d{1,3})?)([kMGTP]?)i?B?"
_CLOCK = r"\d{1,9}(?::\d\d){1,2}"
_BAR = re.compile(
    rf"(\d{{1,3}})%(?: Completed)?\s{{0,2}}(?:\|(?:[^|\n]{{0,200}}\|)?)?\s{{0,20}}{_NUMBER}/{_NUMBER}\s{{0,4}}\[({_CLOCK})<(\?|{_CLOCK})"
)
_SCALE = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_FILE = re.compile(r"[\w.-]{1,120}\.(?:safetensors|bin|json|gguf|pt|model|txt)$")
_BARS_LIMIT = 64


class Bars:
    """Finds the stage of a bar by its label."""

    def __init__(self, bars: Iterable[Bar]) -> None:
        """Initialize with the bars of the catalog. The first match counts."""
        self._bars = tuple((bar.prefix, Stage(bar.stage), bar.label) for bar in bars)
        self._first = tuple({bar[0][:1] for bar in self._bars})

    def read(self, text: str) -> tuple[Stage, Progress | None, str] | None:
        """Return the stage of a bar, its progress, and the text after it; None if the catalog knows no such bar.

        A bar that did not finish ends without a line end, and the next line follows it directly.
        """
        percent = text.find("%")
        found = _BAR.search(text, max(0, percent - 3)) if percent > 0 else None
        if found is None:
            return None
        label = text[: found.start()].strip(" :\t(")
        kind = next(((stage, name) for prefix, stage, name in self._bars if label.startswith(prefix)), None)
        if kind is None:
            if not _FILE.search(label):
                return None
            kind = (Stage.WEIGHT_DOWNLOAD, "Downloading files")
        stage, name = kind
        rest = text[found.end() :].partition("]")[2]
        if stage is Stage.READY:
            return stage, None, rest
        completed = round(float(found[2]) * _SCALE[found[3]])
        total = round(float(found[4]) * _SCALE[found[5]])
        return stage, Progress(min(completed, total), total, name or label, _seconds(found[7])), rest


class Rate:
    """Estimates the remaining time from earlier counts, for bars that do not contain it."""

    def __init__(self) -> None:
        self._label = ""
        self._first: tuple[datetime, int] | None = None

    def left(self, progress: Progress, now: datetime | None) -> int | None:
        """Return the remaining seconds, or None while unknown."""
        if now is None:
            return None
        if self._first is None or self._label != progress.label or progress.completed < self._first[1]:
            self._label, self._first = progress.label, (now, progress.completed)
            return None
        elapsed = (now - self._first[0]).total_seconds()
        done = progress.completed - self._first[1]
        if elapsed <= 0 or done <= 0:
            return None
        return round(elapsed / done * (progress.total - progress.completed))


def _seconds(clock: str) -> int | None:
    """Return the seconds of a time such as `05:02` or `1:05:02`."""
    if clock == "?":
        return None
    total = 0
    for part in clock.split(":"):
        total = total * 60 + int(part)
    return total


@dataclass(slots=True)
class _Bar:
    progress: Progress
    is_of_earlier_stage: bool
    rate: Rate = field(default_factory=Rate)


def _rank(bar: _Bar) -> tuple[bool, float]:
    """Return a sort key: bars of the current stage first, then least progress first."""
    return bar.is_of_earlier_stage, bar.progress.completed / (bar.progress.total or 1)


class Counts:
    """Progress of the processes in one stage. The process with the least progress counts.

    With data parallelism, a process may still draw the bar of an earlier stage. This bar counts while the current stage has none.
    """

    def __init__(self) -> None:
        self._bars: dict[str, _Bar] = {}
        self._tracks = 0
        self.are_several = False
        """Whether several processes draw unnamed bars, as shown by a bar that goes back."""

    def update(self, process: str, progress: Progress, time: datetime | None, *, is_of_earlier_stage: bool) -> Progress | None:
        """Update the bar of a process (empty if unknown). Return the least progress, if any."""
        if process:
            self._bars.pop("", None)  # it belonged to this process, or to one whose next update has a name
        name = process or self._only_named(progress) or (self._track(progress) if self.are_several else "")
        bar = self._bars.get(name)
        if bar is None:
            bar = _Bar(progress, is_of_earlier_stage)
            if len(self._bars) < _BARS_LIMIT:
                self._bars[name] = bar
        left = bar.rate.left(progress, time)
        if progress.eta_seconds is None and left is not None:
            progress = replace(progress, eta_seconds=left)
        bar.progress, bar.is_of_earlier_stage = progress, is_of_earlier_stage
        if is_of_earlier_stage and progress.completed >= progress.total:
            self._bars.pop(name, None)
        elif len(self._bars) == 1:
            return progress
        return self._slowest()

    def _only_named(self, progress: Progress) -> str:
        """Return the process of an unnamed bar if only one named process draws such a bar; else an empty string."""
        alike = [name for name, bar in self._bars.items() if (bar.progress.label, bar.progress.total) == (progress.label, progress.total)]
        return alike[0] if len(alike) == 1 and not alike[0].startswith("#") else ""

    def _slowest(self) -> Progress | None:
        slowest = min(self._bars.values(), key=_rank, default=None)
        return slowest.progress if slowest is not None else None

    def _track(self, progress: Progress) -> str:
        """Assign an update to one of several unnamed bars: the one with the least progress that is not ahead of the update.

        The process is unknown. With this assignment, no bar stays behind because its updates were assigned to another bar.
        """
        known = {name: bar.progress for name, bar in self._bars.items() if name == "" or name.startswith("#")}
        same = (name for name, each in known.items() if (each.label, each.total) == (progress.label, progress.total))
        found = min((name for name in same if known[name].completed <= progress.completed), key=lambda n: known[n].completed, default=None)
        if found is not None:
            return found
        for name in [name for name, each in known.items() if each.completed >= each.total]:
            del self._bars[name]
        self._tracks += 1
        return f"#{self._tracks}"


STAGES = tuple(Stage)
_ORDER = {stage: index for index, stage in enumerate(STAGES)}
_BACKENDS_KEPT = 16
_ADAPTERS_KEPT = 128
"""Maximum number of adapters to keep, twice the limit of a spec."""
_FAILURE_LENGTH = 200


class Timeline:
    """The stages of one start. They only advance."""

    def __init__(self) -> None:
        self.stage = Stage.PROCESS_START
        self.progress: Progress | None = None
        self.entered: list[tuple[Stage, datetime | None]] = [(Stage.PROCESS_START, None)]
        self.version: str | None = None
        self.cache = CacheEvidence()
        self.backends: dict[tuple[str, str], None] = {}
        self.adapters: dict[str, None] = {}
        self.counts = Counts()
        self.memory = MeasuredMemory()
        self._order = _ORDER[Stage.PROCESS_START]

    def is_later(self, stage: Stage) -> bool:
        """Return whether the stage comes after the current one."""
        return _ORDER[stage] > self._order

    def enter(self, stage: Stage, time: datetime | None) -> bool:
        """Enter a stage at a time. Return whether it comes after the current one; otherwise nothing changes."""
        order = _ORDER[stage]
        if order <= self._order:
            return False
        self._order = order
        self.stage = stage
        self.progress = None
        self.counts = Counts()
        self.entered.append((stage, time))
        return True

    def took(self, seconds: int, time: datetime | None) -> None:
        """Correct the start time of the current stage from its duration: its bar has no time, and may be its first line."""
        stage, begun = self.entered[-1]
        if time is not None and begun is not None and (real := time - timedelta(seconds=seconds)) > begun:
            self.entered[-1] = (stage, real)

    def count(self, stage: Stage, progress: Progress, time: datetime | None, process: str = "") -> None:
        """Update the bar of a stage. `process` draws it; empty if unknown."""
        self.progress = self.counts.update(process, progress, time, is_of_earlier_stage=stage is not self.stage)

    def count_cache(self, what: str, why: str = "") -> None:
        """Count a cache `hit`, `miss` or `failure` to load, with the reason."""
        counts = self.cache
        self.cache = CacheEvidence(
            hits=counts.hits + (what == "hit"),
            misses=counts.misses + (what == "miss"),
            load_failures=counts.load_failures + (what == "failure"),
            failure=present(why, _FAILURE_LENGTH) or counts.failure,
        )

    def observe(self, component: str, backend: str) -> None:
        """Record a backend that the engine uses."""
        if len(self.backends) < _BACKENDS_KEPT:
            self.backends.setdefault((component, backend[:80]), None)

    def load_adapter(self, name: str) -> None:
        """Record a LoRA adapter that the engine has loaded."""
        if len(self.adapters) < _ADAPTERS_KEPT:
            self.adapters.setdefault(name, None)

    def measure(self, figure: str, logged: str | None) -> None:
        """Record a figure of the fullest GPU: each process of the engine logs its figure. `figure` is a field of `MeasuredMemory`."""
        if logged is None:
            return
        value = int(logged.replace(",", "")) if figure == "kv_cache_tokens" else float(logged)
        known = getattr(self.memory, figure)
        fuller = max if figure == "weights_gib" else min
        change: dict[str, Any] = {figure: value if known is None else fuller(known, value)}
        self.memory = replace(self.memory, **change)

    @property
    def since(self) -> datetime | None:
        """Time at which the current stage was entered."""
        return self.entered[-1][1]

    @property
    def begun(self) -> bool:
        """Whether the start has passed its configuration."""
        return self._order > _ORDER[Stage.CONFIGURATION]


def silence_seconds(state: StartupState, now: datetime) -> float:
    """Return the seconds since the last line; 0 if the times of the log are unknown."""
    if state.last_line_at is None:
        return 0.0
    return max(0.0, (now - state.last_line_at).total_seconds())


def allowed_silence_seconds(stage: Stage, knowledge: StartupKnowledge) -> int | None:
    """Return the seconds for which a healthy start may log nothing in this stage; None if unknown."""
    known = knowledge.stages.silence.get(stage.value)
    return known.seconds if known is not None else None


def infer_silence(state: StartupState, now: datetime, knowledge: StartupKnowledge) -> StartupState:
    """Return the state with `silent_stage_inferred` and `detail` set if the engine probably compiles kernels."""
    stages = knowledge.stages
    silent = (
        state.crash is None
        and state.stage.value in stages.silent_stages
        and silence_seconds(state, now) >= stages.silent_after_seconds
        and any(part in backend.casefold() for _, backend in state.observed_backends for part in stages.silent_backends)
    )
    if not silent:
        return replace(state, silent_stage_inferred=False) if state.silent_stage_inferred else state
    return replace(state, silent_stage_inferred=True, detail="probably compiling FlashInfer kernels, which logs nothing (inferred)")
