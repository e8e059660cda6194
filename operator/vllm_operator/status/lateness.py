"""When the start that is under way began, and from when on it is late.

A start is late when it takes much longer than the last start with the same caches did, or longer than its deadline allows. A first start
has no such estimate: it is late at its deadline, because minutes and an hour are both normal.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from vllm_operator.api import labels
from vllm_operator.observation.state import ObservedState
from vllm_operator.planning.engine.deadline import deadline_seconds
from vllm_operator.pods import reading
from vllm_operator.pods.view import Phase, PodView
from vllm_operator.startup.state import StartupState
from vllm_operator.status.estimates import is_warm

LONGEST_START_SECONDS = 30 * 86_400
"""Limit of the time that a startup probe allows. Python cannot represent the dates that the largest values lead to."""
LATE_FACTOR = 2
"""A start may take this many times as long as the last one with the same caches."""
SLACK_SECONDS = 600
"""How much longer than the last one a start may take in any case: a slower disk or hub costs minutes, however short the start was."""
_KUBELET_PERIOD_SECONDS = 10
"""What `periodSeconds` of a probe is where nothing is said."""
_IN_PROGRESS = frozenset({Phase.WAITING_FOR_VOLUME, Phase.IMAGE_PULLING, Phase.SCHEDULING, Phase.CREATING, Phase.STARTING})


@dataclass(frozen=True, slots=True)
class StartClock:
    """A start that is under way: when it began, UTC, and after how many seconds it is late."""

    began: datetime
    late_after_seconds: int

    @property
    def late_at(self) -> datetime:
        """From when on it is late."""
        return self.began + timedelta(seconds=self.late_after_seconds)


def start_clock(observed: ObservedState) -> StartClock | None:
    """The clock of the start that is late first; None while no start is in progress."""
    return min(_clocks(observed), key=lambda clock: clock.late_at, default=None)


def _clocks(observed: ObservedState) -> Iterator[StartClock]:
    for view in observed.starting:
        began = view.started_at or view.created_at
        if view.phase in _IN_PROGRESS and began is not None:
            yield StartClock(began, _late_after(observed, view))


def _late_after(observed: ObservedState, view: PodView) -> int:
    deadline = _probe_seconds(observed, view) or deadline_seconds(observed.observation.resource.spec)
    usual = _usual_seconds(observed, observed.state(view))
    return deadline if usual is None else min(deadline, max(LATE_FACTOR * usual, usual + SLACK_SECONDS))


def _usual_seconds(observed: ObservedState, state: StartupState | None) -> int | None:
    """How long the last start with the same caches took; None where there was none."""
    plan, known = observed.observation.outcome.plan, observed.observation.previous.cache
    if plan is None or known is None or known.key != plan.cache_key:
        return None
    return known.warm_start_seconds if is_warm(observed, state or StartupState()) else known.cold_start_seconds


def _probe_seconds(observed: ObservedState, view: PodView) -> int | None:
    """For how long the startup probe of a Pod waits: `podTemplate` may say otherwise than the spec. None where it has none."""
    pods = (*observed.observation.pods, *observed.observation.primers)
    pod = next((pod for pod in pods if reading.text(pod, "metadata", "uid") == view.uid), {})
    probe = reading.mapping(reading.named(pod, labels.CONTAINER, "spec", "containers", key="name"), "startupProbe")
    failures = reading.integer(probe, "failureThreshold")
    delay, period = reading.integer(probe, "initialDelaySeconds") or 0, reading.integer(probe, "periodSeconds") or _KUBELET_PERIOD_SECONDS
    return min(max(1, delay + failures * period), LONGEST_START_SECONDS) if failures else None
