"""The timeline of a start: stages, progress, backends and caches, and the interpretation of silence in its log.

FlashInfer compiles kernels for minutes without a line in the log. This can only be inferred: the engine chose a backend with this behavior,
is in a stage with such compilation, and logs nothing.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from vllm_operator.catalog.startup import StartupKnowledge
from vllm_operator.logs.progress import Counts
from vllm_operator.logs.state import CacheEvidence, MeasuredMemory, Progress, Stage, StartupState
from vllm_operator.text.redaction import present

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


def is_same(old: StartupState, new: StartupState) -> bool:
    """Return whether two states differ at most in the number and time of their last line."""
    return replace(old, lines=0, last_line_at=None) == replace(new, lines=0, last_line_at=None)


def is_significant(old: StartupState, new: StartupState, step_percent: int) -> bool:
    """Return whether a change must be reported immediately. Progress alone must change by at least `step_percent` of its total."""
    if old.progress is not None and new.progress is not None and new.progress.total:
        change = abs(new.progress.completed - old.progress.completed) * 100
        is_only_progress = is_same(old, replace(new, progress=old.progress))
        return not is_only_progress or old.progress.total != new.progress.total or change >= step_percent * new.progress.total
    return not is_same(old, new)
