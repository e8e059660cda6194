"""Estimate how long the current stage of a start will take, and when the start is late.

The time left comes from the engine's own count, from the last start with the same caches, or from measurements. A start is late if it takes
much longer than the last start with the same caches, or longer than its deadline. A first start may take minutes or an hour, so it is late
only at its deadline.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from vllm_operator.api import labels, reading
from vllm_operator.api.status import LONGEST_STAGE_SECONDS, CacheState
from vllm_operator.catalog.rule_matching import Component
from vllm_operator.logs.state import Progress, Stage, StartupState
from vllm_operator.planning.engine.deadline import MAX_DEADLINE_SECONDS
from vllm_operator.pods.view import Phase, PodView
from vllm_operator.status.observation.observation import ObservedState
from vllm_operator.status.observation.starts import known_stages, next_start_finds
from vllm_operator.text import wording


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated seconds of a stage. `where` describes the measurement; empty for the last start with the same caches."""

    seconds: int
    where: str
    since: datetime | None

    @property
    def until(self) -> datetime | None:
        """Estimated end of the stage; None if its start is unknown."""
        return self.since + timedelta(seconds=self.seconds) if self.since is not None else None


def estimate(observed: ObservedState, stage: Stage, state: StartupState) -> Estimate | None:
    """Return the estimate for the current stage; None if nothing is known."""
    learned = _learned(observed, stage, state)
    if learned:
        return Estimate(wording.rounded(learned), "", state.stage_since)
    plan = observed.observation.outcome.plan
    if plan is None:
        return None
    has_experts = any(choice.component == Component.MOE for choice in plan.backends)
    measured = observed.knowledge.startup.stages.measured["experts" if has_experts else "dense"]
    seconds = measured.stages.get(stage, {}).get("warm" if is_warm(observed, state) else "cold")
    return Estimate(wording.rounded(seconds), measured.where, state.stage_since) if seconds else None


def seconds_left(observed: ObservedState, stage: Stage, state: StartupState, counted: Progress | None) -> int | None:
    """Return the estimated seconds left in the current stage; None if unknown, or if the estimate is exceeded."""
    if counted is not None and not state.silent_stage_inferred:
        return by_count(counted)
    known = estimate(observed, stage, state)
    if known is None or known.until is None:
        return None
    left = (known.until - observed.observation.now).total_seconds()
    return wording.rounded(left) if left > 0 else None


def by_count(counted: Progress) -> int | None:
    """Return the seconds left according to a count; None if the count has no estimate or is complete."""
    if counted.eta_seconds is None or not 0 < counted.eta_seconds <= LONGEST_STAGE_SECONDS or counted.completed >= counted.total:
        return None
    return wording.rounded(counted.eta_seconds)


def _learned(observed: ObservedState, stage: Stage, state: StartupState) -> int | None:
    """Return the stage's seconds in the last start with this cache key that was cold or warm like the current one."""
    plan = observed.observation.outcome.plan
    known = next((entry for entry in known_stages(observed, plan) if entry.stage == stage), None) if plan is not None else None
    if known is None:
        return None
    return known.warm_seconds if is_warm(observed, state) else known.cold_seconds


def is_warm(observed: ObservedState, state: StartupState) -> bool:
    """Return whether a start finds compiled artifacts, as far as known."""
    plan = observed.observation.outcome.plan
    return plan is not None and next_start_finds(observed, plan) is CacheState.WARM and state.cache.misses == 0


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

    @property
    def late_at(self) -> datetime:
        """Time at which the start becomes late."""
        return self.began + timedelta(seconds=self.late_after_seconds)


def start_clock(observed: ObservedState) -> StartClock | None:
    """Return the clock of the start that becomes late first; None if none is in progress."""
    return min(_clocks(observed), key=lambda clock: clock.late_at, default=None)


def _clocks(observed: ObservedState) -> Iterator[StartClock]:
    for view in observed.starting:
        began = view.started_at or view.created_at
        if view.phase in _IN_PROGRESS and began is not None:
            yield StartClock(began, _late_after(observed, view))


def _late_after(observed: ObservedState, view: PodView) -> int:
    deadline = _probe_seconds(observed, view) or _deadline(observed)
    usual = _usual_seconds(observed, observed.state(view))
    return deadline if usual is None else min(deadline, max(LATE_FACTOR * usual, usual + SLACK_SECONDS))


def _deadline(observed: ObservedState) -> int:
    plan = observed.observation.resource.pinned or observed.observation.outcome.plan
    return plan.deadline_seconds if plan is not None else MAX_DEADLINE_SECONDS


def _usual_seconds(observed: ObservedState, state: StartupState | None) -> int | None:
    """Return the seconds of the last start with the same caches; None without one."""
    plan, known = observed.observation.outcome.plan, observed.observation.previous.cache
    if plan is None or known is None or known.key != plan.cache_key:
        return None
    return known.warm_start_seconds if is_warm(observed, state or StartupState()) else known.cold_start_seconds


def _probe_seconds(observed: ObservedState, view: PodView) -> int | None:
    """Return the seconds that the Pod's startup probe allows. `podTemplate` may override the spec. None without a probe."""
    pods = (*observed.observation.pods, *observed.observation.primers)
    pod = next((pod for pod in pods if reading.text(pod, "metadata", "uid") == view.uid), {})
    probe = reading.mapping(reading.named(pod, labels.CONTAINER, "spec", "containers", key="name"), "startupProbe")
    failures = reading.integer(probe, "failureThreshold")
    delay, period = reading.integer(probe, "initialDelaySeconds") or 0, reading.integer(probe, "periodSeconds") or _KUBELET_PERIOD_SECONDS
    return min(max(1, delay + failures * period), LONGEST_START_SECONDS) if failures else None
