"""Where a start is: its stage, the progress of what counts, the backends it chose, what its caches did."""

from datetime import datetime, timedelta

from vllm_operator.startup.counts import Counts
from vllm_operator.startup.state import CacheEvidence, Progress, Stage

STAGES = tuple(Stage)
_ORDER = {stage: index for index, stage in enumerate(STAGES)}
_BACKENDS_KEPT = 16


class Timeline:
    """Stages only move forward within a run."""

    def __init__(self) -> None:
        """A run begins."""
        self.stage = Stage.PROCESS_START
        self.progress: Progress | None = None
        self.entered: list[tuple[Stage, datetime | None]] = [(Stage.PROCESS_START, None)]
        self.loaded = False
        self.version: str | None = None
        self.cache = CacheEvidence()
        self.backends: dict[tuple[str, str], None] = {}
        self.counts = Counts()
        self._order = _ORDER[Stage.PROCESS_START]

    def is_later(self, stage: Stage) -> bool:
        """Whether the stage comes after the present one."""
        return _ORDER[stage] > self._order

    def enter(self, stage: Stage, time: datetime | None) -> bool:
        """A line belongs to this stage. Whether it is a later one than before."""
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
        """The present stage is over and took so long. A bar that entered it has no time, and what came before may have been silent."""
        stage, begun = self.entered[-1]
        if time is not None and begun is not None and (real := time - timedelta(seconds=seconds)) > begun:
            self.entered[-1] = (stage, real)

    def count(self, stage: Stage, progress: Progress, time: datetime | None, process: str = "") -> None:
        """A bar of this stage moved, which `process` draws; empty where that is not known."""
        self.progress = self.counts.update(process, progress, time, is_of_earlier_stage=stage is not self.stage)

    def count_cache(self, what: str) -> None:
        """A cache was hit, missed, or could not be loaded."""
        counts = self.cache
        self.cache = CacheEvidence(
            hits=counts.hits + (what == "hit"),
            misses=counts.misses + (what == "miss"),
            load_failures=counts.load_failures + (what == "failure"),
        )

    def observe(self, component: str, backend: str) -> None:
        """The engine said which backend it uses."""
        if len(self.backends) < _BACKENDS_KEPT:
            self.backends.setdefault((component, backend[:80]), None)

    @property
    def since(self) -> datetime | None:
        """When the present stage was entered."""
        return self.entered[-1][1]

    @property
    def begun(self) -> bool:
        """Whether more than the configuration of this run was seen."""
        return self._order > _ORDER[Stage.CONFIGURATION]
