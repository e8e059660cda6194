"""Starts whose logs show whether caches were loaded or built, their durations, and estimates for the current start.

The time left of a stage comes from the engine's own count, from the last start with the same caches, or from measurements. A start is late
if it takes much longer than the last start with the same caches, or longer than its deadline. A first start may take minutes or an hour, so
it is late only at its deadline.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from vllm_operator.api import labels, reading
from vllm_operator.api.plan import Plan
from vllm_operator.api.status import FILLED, LONGEST_STAGE_SECONDS, CacheState, CacheStatus
from vllm_operator.catalog.rule_matching import Component
from vllm_operator.logs.state import Progress, Stage, StartupState
from vllm_operator.planning.engine.serving import MAX_DEADLINE_SECONDS
from vllm_operator.pods.view import Phase
from vllm_operator.status.claims import wrong_claim
from vllm_operator.status.observation import Observation, PodFacts
from vllm_operator.text import wording

StageSeconds = Mapping[str, int]
"""Seconds by stage, in the order of stages."""


@dataclass(frozen=True, slots=True)
class Start:
    """A start whose log shows whether caches were loaded or built."""

    view: PodFacts
    state: StartupState
    began: datetime | None  # when the container started
    ended: datetime | None  # when the engine was ready; None until then
    seconds: int | None  # from one to the other


def last_start(observed: Observation) -> Start | None:
    """Return the latest start with cache evidence in its log; None if there is none."""
    return max(_starts(observed), key=lambda start: (reading.stamp(start.began) or "", start.view.name), default=None)


def _starts(observed: Observation) -> Iterator[Start]:
    plan = observed.outcome.plan
    for view in (*observed.pod_facts, *observed.primer_facts):
        is_alive = view.phase in (Phase.STARTING, Phase.READY, Phase.NOT_RESPONDING, Phase.HUNG)
        if view.state is None or not is_alive or not (plan is None or view.has_caches_of(plan)):
            continue
        state, cache = view.state, view.state.cache
        if cache.hits > 0 or cache.misses > 0 or cache.load_failures > 0:
            began, ended = view.started_at or state.started_at, state.stage_since if state.stage is Stage.READY else None
            seconds = max(0, round((ended - began).total_seconds())) if began is not None and ended is not None else None
            yield Start(view, state, began, ended, seconds)


def known_stages(observed: Observation, plan: Plan) -> tuple[StageSeconds, StageSeconds]:
    """Return the stage durations of the last start with this plan's caches: if it was cold, and if it was warm. One of them is empty.

    Those of a cold start are forgotten if the next one will be warm.
    """
    previous = observed.previous.cache
    cold, warm = read_stages(previous) if previous is not None and previous.key == plan.cache_key else ({}, {})
    start = last_start(observed)
    if start is None or start.seconds is None or not (start.state.cache.is_warm or start.state.cache.is_cold):
        return cold, warm
    learned = learn(warm if start.state.cache.is_warm else cold, start.state, shown={*cold, *warm})
    if start.state.cache.is_warm:
        return {}, learned
    return {} if next_start_finds(observed, plan) in FILLED else learned, {}


def next_start_finds(observed: Observation, plan: Plan) -> CacheState | None:
    """Return the cache state for the next start; None if there are no caches or no PVC. Writing the result does not change it."""
    previous = observed.previous.cache
    was = previous.state if previous is not None and previous.key == plan.cache_key else None
    if observed.claim_name is None:
        return None
    primed = reading.text(observed.claim, "metadata", "annotations", labels.PRIMED_ANNOTATION_PREFIX + plan.cache_key)
    if not primed and observed.activity.is_priming:
        return "Compiling"
    served = observed.serving > 0 and observed.rollout.is_complete and observed.outcome.plan is not None
    if primed or served or was in FILLED:
        return "Warm" if was == "Warm" or last_start(observed) is not None else "Filled"
    return "Compiling" if any(view.phase is Phase.STARTING for view in observed.pod_facts) else None


SHORTEST_KEPT_SECONDS = 30
"""Minimum seconds of stages that are kept in the status."""


def read_stages(cache: CacheStatus) -> tuple[StageSeconds, StageSeconds]:
    """Return the durations in the status: of a cold and of a warm start. Unknown stages are omitted."""
    return _in_order(cache.cold_stage_seconds or {}), _in_order(cache.warm_stage_seconds or {})


def _in_order(seconds: Mapping[str, int]) -> StageSeconds:
    return {str(stage): seconds[stage] for stage in Stage if stage in seconds}


def learn(known: StageSeconds, state: StartupState, *, shown: Collection[str] = ()) -> StageSeconds:
    """Return the durations updated with a finished start. A short stage counts only if `shown` has it."""
    durations, times = dict(known), [(stage, time) for stage, time in state.entered if time is not None]
    for (stage, began), (_, ended) in pairwise(times):
        seconds = max(0, round((ended - began).total_seconds()))
        if seconds <= LONGEST_STAGE_SECONDS and (seconds >= SHORTEST_KEPT_SECONDS or stage in shown):
            durations[stage] = seconds
    return _in_order(durations)


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """Estimated seconds of a stage."""

    seconds: int
    where: str  # describes the measurement; empty for the last start with the same caches
    until: datetime | None  # end of the stage; None if its start is unknown


def estimate_stage(observed: Observation, stage: Stage, state: StartupState) -> StageEstimate | None:
    """Return the estimate for the current stage; None if nothing is known."""
    plan = observed.outcome.plan
    if plan is None:
        return None
    warm, (cold_stages, warm_stages), where = is_warm(observed, state), known_stages(observed, plan), ""
    seconds: float | None = (warm_stages if warm else cold_stages).get(stage)
    if not seconds:
        has_experts = any(choice.component == Component.MOE for choice in plan.backends)
        measured = observed.knowledge.startup.stages.measured["experts" if has_experts else "dense"]
        seconds, where = measured.stages.get(stage, {}).get("warm" if warm else "cold"), measured.where
    if not seconds:
        return None
    rounded = wording.rounded(seconds)
    return StageEstimate(rounded, where, state.stage_since + timedelta(seconds=rounded) if state.stage_since is not None else None)


def seconds_left(observed: Observation, stage: Stage, state: StartupState, counted: Progress | None) -> int | None:
    """Return the estimated seconds left in the current stage; None if unknown, or if the estimate is exceeded."""
    if counted is not None and not state.silent_stage_inferred:
        return by_count(counted)
    known = estimate_stage(observed, stage, state)
    left = (known.until - observed.now).total_seconds() if known is not None and known.until is not None else 0.0
    return wording.rounded(left) or None


def by_count(counted: Progress) -> int | None:
    """Return the seconds left according to a count; None if the count has no estimate or is complete."""
    if counted.eta_seconds is None or not 0 < counted.eta_seconds <= LONGEST_STAGE_SECONDS or counted.completed >= counted.total:
        return None
    return wording.rounded(counted.eta_seconds)


def is_warm(observed: Observation, state: StartupState) -> bool:
    """Return whether a start finds filled caches, as far as known."""
    plan = observed.outcome.plan
    return plan is not None and next_start_finds(observed, plan) in FILLED and state.cache.misses == 0


LONGEST_START_SECONDS = 30 * 86_400
"""Limit of the time that a startup probe allows. Larger values lead to dates that Python cannot represent."""
LATE_FACTOR = 2
"""A start is late after this multiple of the last start's duration with the same caches."""
SLACK_SECONDS = 600
"""A start is never late before it takes this much longer than the last one, because a slower disk or hub costs minutes."""
_KUBELET_PERIOD_SECONDS = 10
"""Default of a probe's `periodSeconds`."""
_IN_PROGRESS = frozenset({Phase.WAITING_FOR_VOLUME, Phase.IMAGE_PULLING, Phase.SCHEDULING, Phase.CREATING, Phase.STARTING})


@dataclass(frozen=True, slots=True)
class StartClock:
    """A start in progress: its start time (UTC), and the seconds after which it is late."""

    began: datetime
    late_after_seconds: int


def start_clock(observed: Observation) -> StartClock | None:
    """Return the clock of the start that becomes late first; None if none is in progress, or none can succeed."""
    if wrong_claim(observed) is not None:
        return None
    clocks = (
        StartClock(began, _late_after(observed, view))
        for view in observed.starting
        if view.phase in _IN_PROGRESS and (began := view.started_at or view.created_at) is not None
    )
    return min(clocks, key=lambda clock: clock.began + timedelta(seconds=clock.late_after_seconds), default=None)


def _late_after(observed: Observation, view: PodFacts) -> int:
    plan, known, usual = observed.outcome.plan, observed.previous.cache, None
    if plan is not None and known is not None and known.key == plan.cache_key:  # the last start had the same caches
        usual = known.warm_start_seconds if is_warm(observed, view.state or StartupState()) else known.cold_start_seconds
    in_force = observed.resource.pinned or plan
    deadline = _probe_seconds(view) or (in_force.deadline_seconds if in_force is not None else MAX_DEADLINE_SECONDS)
    return deadline if usual is None else min(deadline, max(LATE_FACTOR * usual, usual + SLACK_SECONDS))


def _probe_seconds(view: PodFacts) -> int | None:
    """Return the seconds that the Pod's startup probe allows. `podTemplate` may override the spec. None without a probe."""
    probe = reading.mapping(reading.named(view.manifest, labels.CONTAINER, "spec", "containers", key="name"), "startupProbe")
    failures = reading.integer(probe, "failureThreshold")
    delay, period = reading.integer(probe, "initialDelaySeconds") or 0, reading.integer(probe, "periodSeconds") or _KUBELET_PERIOD_SECONDS
    return min(max(1, delay + failures * period), LONGEST_START_SECONDS) if failures else None


def saved_seconds(observed: Observation, cache: CacheStatus | None) -> tuple[tuple[datetime, int], ...]:
    """Return the end and the saved seconds of each warm start, oldest first, compared with a cold start with the same caches."""
    known = (cache, cache.artifact) if cache is not None else ()  # the cold start of this object, or of the one that published
    cold = next((each.cold_start_seconds for each in known if each is not None and each.cold_start_seconds is not None), None)
    if cold is None:
        return ()
    warm = ((start.ended, start.seconds) for start in _starts(observed) if start.state.cache.is_warm)
    return tuple(sorted((ended, max(0, cold - seconds)) for ended, seconds in warm if ended is not None and seconds is not None))
