"""Starts whose logs show whether caches were loaded or built: cache evidence and durations of starts and stages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from vllm_operator.api import labels, reading
from vllm_operator.api.plan import Plan
from vllm_operator.api.status import LONGEST_STAGE_SECONDS, CacheState, CacheStatus
from vllm_operator.logs.state import CacheEvidence, Stage, StartupState
from vllm_operator.pods.view import Phase, PodView
from vllm_operator.status.observation.observation import ObservedState
from vllm_operator.status.observation.rollout import is_rolled_out


@dataclass(frozen=True, slots=True)
class StageDuration:
    """Seconds of a stage in the last cold and the last warm start."""

    stage: str
    cold_seconds: int | None = None
    warm_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """A start whose log shows whether caches were loaded or built. `seconds` is None until the engine is ready."""

    state: StartupState
    seconds: int | None
    run: tuple[str, int]

    @property
    def evidence(self) -> CacheEvidence:
        """The evidence about caches in the log."""
        return self.state.cache

    @property
    def is_finished(self) -> bool:
        """Whether the engine is ready, and loaded everything or built everything. Only such starts provide durations."""
        return self.seconds is not None and (self.is_warm or self.is_cold)

    @property
    def is_warm(self) -> bool:
        """Whether the start loaded everything."""
        return self.evidence.hits > 0 and self.evidence.misses == 0 and self.evidence.load_failures == 0

    @property
    def is_cold(self) -> bool:
        """Whether the start built everything."""
        return self.evidence.misses > 0 and self.evidence.hits == 0


def last_start(observed: ObservedState) -> Start | None:
    """Return the latest start with cache evidence in its log; None if there is none."""
    starts = list(_starts(observed))
    if not starts:
        return None
    view, state = max(starts, key=lambda pair: (reading.stamp(pair[0].started_at or pair[1].started_at) or "", pair[0].name))
    return Start(state, start_seconds(view, state), view.run)


def warm_starts(observed: ObservedState) -> list[tuple[datetime, int]]:
    """Return the warm starts of all Pods whose logs were read, oldest first: end time and seconds."""
    found = ((Start(state, start_seconds(view, state), view.run), state.stage_since) for view, state in _starts(observed))
    return sorted((ended, start.seconds) for start, ended in found if start.is_warm and start.seconds is not None and ended is not None)


def _starts(observed: ObservedState) -> Iterator[tuple[PodView, StartupState]]:
    """Yield Pods with the plan's caches and the logs of their starts that contain cache evidence."""
    plan = observed.observation.outcome.plan
    for view in (*observed.pods, *observed.primers):
        is_of_plan = plan is None or observed.cache_keys.get(view.uid, plan.cache_key) == plan.cache_key
        if is_of_plan and (state := observed.state(view)) is not None and _shows_caches(view, state):
            yield view, state


def start_seconds(view: PodView, state: StartupState) -> int | None:
    """Return the seconds from the start of the container until the engine was ready; None until then."""
    began = view.started_at or state.started_at
    ended = state.stage_since if state.stage is Stage.READY else None
    return max(0, round((ended - began).total_seconds())) if began is not None and ended is not None else None


def known_stages(observed: ObservedState, plan: Plan) -> list[StageDuration]:
    """Return the stage durations of starts with this plan's caches, including the latest finished start."""
    previous = observed.observation.previous.cache
    known = read_stages(previous) if previous is not None and previous.key == plan.cache_key else []
    start = last_start(observed)
    return learn(known, start.state, is_warm=start.is_warm) if start is not None and start.is_finished else known


def _shows_caches(view: PodView, state: StartupState) -> bool:
    alive = view.phase in (Phase.STARTING, Phase.READY, Phase.NOT_RESPONDING)
    return alive and (state.cache.hits > 0 or state.cache.misses > 0 or state.cache.load_failures > 0)


def next_start_finds(observed: ObservedState, plan: Plan) -> CacheState | None:
    """Return the cache state for the next start; None if there are no caches or no PVC. Writing the result does not change it."""
    observation = observed.observation
    previous = observation.previous.cache
    was_warm = previous is not None and previous.key == plan.cache_key and previous.state is CacheState.WARM
    if observation.claim_name is None:
        return None
    primed = reading.text(observation.claim, "metadata", "annotations", labels.PRIMED_ANNOTATION_PREFIX + plan.cache_key)
    if not primed and observation.activity.is_priming:
        return CacheState.PRIMING
    served = observed.serving > 0 and is_rolled_out(observed) and observation.outcome.plan is not None
    if primed or served or was_warm:
        return CacheState.WARM
    return CacheState.PRIMING if any(view.phase is Phase.STARTING for view in observed.pods) else None


SHORTEST_KEPT_SECONDS = 5
"""Minimum seconds of stages that are kept in the status."""


def completed_stages(state: StartupState) -> tuple[tuple[Stage, datetime, datetime], ...]:
    """Return the stages that a start has completed, with their start and end times."""
    times = [(stage, time) for stage, time in state.entered if time is not None]
    return tuple((stage, began, ended) for (stage, began), (_, ended) in pairwise(times))


def read_stages(cache: CacheStatus) -> list[StageDuration]:
    """Return the durations in the status, in stage order."""
    cold, warm = cache.cold_stage_seconds or {}, cache.warm_stage_seconds or {}
    return [StageDuration(stage, cold.get(stage), warm.get(stage)) for stage in Stage if stage in cold or stage in warm]


def learn(known: Sequence[StageDuration], state: StartupState, *, is_warm: bool) -> list[StageDuration]:
    """Return the durations updated with a finished start."""
    durations = {entry.stage: entry for entry in known}
    for stage, began, ended in completed_stages(state):
        seconds = round((ended - began).total_seconds())
        if seconds > LONGEST_STAGE_SECONDS:
            continue
        entry = durations.get(stage, StageDuration(stage))
        if seconds >= SHORTEST_KEPT_SECONDS or stage in durations:
            seconds = max(0, seconds)
            durations[stage] = replace(entry, warm_seconds=seconds) if is_warm else replace(entry, cold_seconds=seconds)
    order = list(Stage)
    return sorted(durations.values(), key=lambda entry: order.index(Stage(entry.stage)) if entry.stage in order else len(order))[:16]
