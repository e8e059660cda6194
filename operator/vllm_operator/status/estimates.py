"""How long the stage of a start may take yet: by the engine's own count, else by what is known of such starts."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from vllm_operator.api.status import CacheState
from vllm_operator.catalog.rule_matching import Component
from vllm_operator.observation.starts import LONGEST_STAGE_SECONDS, known_stages, next_start_finds
from vllm_operator.observation.state import ObservedState
from vllm_operator.startup.state import Progress, Stage, StartupState
from vllm_operator.text import wording


@dataclass(frozen=True, slots=True)
class Estimate:
    """How many seconds a stage takes, about. `where` it was measured, in words; empty: in the last start with the same caches."""

    seconds: int
    where: str
    since: datetime | None

    @property
    def until(self) -> datetime | None:
        """When the stage is over if it takes as long again; None if it is not known since when it lasts."""
        return self.since + timedelta(seconds=self.seconds) if self.since is not None else None


def estimate(observed: ObservedState, stage: Stage, state: StartupState) -> Estimate | None:
    """What is known of how long the present stage takes; None if nothing is."""
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
    """For how many seconds the present stage still lasts, about; None where nothing tells, or where it lasts longer than it should."""
    if counted is not None and not state.silent_stage_inferred:
        return by_count(counted)
    known = estimate(observed, stage, state)
    if known is None or known.until is None:
        return None
    left = (known.until - observed.observation.now).total_seconds()
    return wording.rounded(left) if left > 0 else None


def by_count(counted: Progress) -> int | None:
    """For how many seconds a count still lasts, about; None if it does not say, or is over."""
    if counted.eta_seconds is None or not 0 < counted.eta_seconds <= LONGEST_STAGE_SECONDS or counted.completed >= counted.total:
        return None
    return wording.rounded(counted.eta_seconds)


def _learned(observed: ObservedState, stage: Stage, state: StartupState) -> int | None:
    """How long a stage took in the last start with this cache key, cold or warm as the present one is."""
    plan = observed.observation.outcome.plan
    known = next((entry for entry in known_stages(observed, plan) if entry.stage == stage), None) if plan is not None else None
    if known is None:
        return None
    return known.warm_seconds if is_warm(observed, state) else known.cold_seconds


def is_warm(observed: ObservedState, state: StartupState) -> bool:
    """Whether a start finds what it needs, as far as can be seen by now."""
    plan = observed.observation.outcome.plan
    return plan is not None and next_start_finds(observed, plan) is CacheState.WARM and state.cache.misses == 0
