"""The report on an observation: status, events, and the time of the next observation.

Conditions are derived from the plan, the cache and the start. Ready summarizes the other conditions. Events are the difference to the
previous status.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from vllm_operator.api import reading
from vllm_operator.api.conditions import (
    ACCEPTED,
    AUTOSCALED,
    CACHE_PUBLISHED,
    CACHE_WARM,
    CRASHED,
    EXPOSED,
    PLANNED,
    PROGRESSING,
    PROTECTED,
    READY,
    STALLED,
    Reason,
    find_condition,
)
from vllm_operator.api.plan import Plan
from vllm_operator.api.status import StartupStatus, VLLMDeploymentStatus
from vllm_operator.status import artifacts, caches, crashed, draining, exposed, planned, progressing, ready, scaled, startup
from vllm_operator.status.conditions import TRUE, set_conditions
from vllm_operator.status.estimates import StartClock, start_clock
from vllm_operator.status.events import EventDraft, draft_events
from vllm_operator.status.observation import rollout
from vllm_operator.status.observation.crash_record import shorten
from vllm_operator.status.observation.crashes import Crashes, crash_settles
from vllm_operator.status.observation.observation import Observation, ObservedState
from vllm_operator.status.remediation.decision import Decision
from vllm_operator.status.remediation.in_force import to_record

_SOON = 1.0
"""Minimum seconds until the next observation."""
NODES_SECONDS = 30
"""Interval between reads of the nodes while no GPU matches. Nodes are not watched, and a new one takes minutes."""
UNREADABLE_SECONDS = 3
"""Interval between attempts to list the nodes for a new plan while the API server fails."""
_RETRIED = (Reason.NO_MATCHING_GPU, Reason.DOES_NOT_FIT, Reason.PERMISSION_MISSING, Reason.REVISION_REFUSED)
"""Reasons of Planned that may be resolved without a watch event."""
REFUSED_SECONDS = (5.0, 60.0)
"""Minimum and maximum interval between attempts to apply a refused object. A quota may be raised, or a webhook recover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The status and events to write, and the time of the next observation.

    `start` is the start in progress, if any. `requeue_after_seconds` is the time after which the report may change without a change in the
    cluster; None if it cannot.
    """

    status: VLLMDeploymentStatus
    events: tuple[EventDraft, ...] = ()
    start: StartClock | None = None
    requeue_after_seconds: float | None = None


def report(observed: ObservedState, crashes: Crashes, decision: Decision) -> Report:
    """Report on one VLLMDeployment.

    Equal arguments give equal reports. If the previous status is the one of that report, the same observation gives the same status and no
    events.
    """
    observation = observed.observation
    plan = planned.observed_plan(observed)
    block, block_held_until = startup.startup_status(observed)
    status = _status(observed, crashes, decision, plan, block)
    events = draft_events(observed, status, crashes, plan)
    return Report(
        status=status,
        events=events,
        start=start_clock(observed),
        requeue_after_seconds=_requeue_after(observation.now, [block_held_until, *_deadlines(observed, crashes)]),
    )


def _status(
    observed: ObservedState, crashes: Crashes, decision: Decision, plan: Plan | None, block: StartupStatus | None
) -> VLLMDeploymentStatus:
    observation = observed.observation
    damage = decision.cache_damage
    summary_of_plan = planned.summary(observed, plan)
    cached = caches.cache_status(observed, plan, damage)
    if plan is None and summary_of_plan is not None:
        cached = observation.previous.cache  # the plan cannot be read now: keep the known state of its caches
    remediation = decision.remediation
    verdicts = {
        ACCEPTED: planned.accepted(observed),
        PLANNED: planned.planned(observed, plan),
        CACHE_WARM: caches.cache_warm(observed, cached, block, damage),
        CACHE_PUBLISHED: artifacts.cache_published(observed, cached.artifact if cached else None),
        PROGRESSING: progressing.progressing(observed, block, remediation),
        CRASHED: crashed.crashed(observed, crashes, remediation),
        EXPOSED: exposed.exposed(observed),
        AUTOSCALED: scaled.autoscaled(observed),
        PROTECTED: scaled.protected(observed),
    }
    judged = {type: verdict for type, verdict in verdicts.items() if verdict is not None}
    judged[READY] = draining.with_draining(observed, ready.ready(observed, crashes, judged))
    if (verdict := ready.stalled(observed, judged, is_unrecoverable=decision.is_unrecoverable)) is not None:
        judged[STALLED] = verdict
    reported, now = ready.reportable(observed, judged), reading.stamp(observation.now) or ""
    recorded_remediation, last_crash = to_record(remediation, crashes.last)
    if last_crash is not None and (verdict := judged.get(CRASHED)) is not None and verdict.status is TRUE:
        last_crash = shorten(last_crash, observed.knowledge.signatures, verdict.message)
    return VLLMDeploymentStatus(
        observed_generation=observation.resource.metadata.generation,
        replicas=rollout.replicas(observed),
        ready_replicas=observed.serving,
        selector=rollout.selector(observed),
        url=exposed.url(observed),
        conditions=set_conditions(observation.previous.conditions, reported, generation=observation.resource.metadata.generation, now=now),
        pinned_plan=summary_of_plan,
        cache=cached,
        startup=block,
        last_crash=last_crash,
        remediation=recorded_remediation,
    )


def _requeue_after(now: datetime, deadlines: Iterable[datetime | None]) -> float | None:
    due = [when for when in deadlines if when is not None and when > now]
    return max(_SOON, (min(due) - now).total_seconds()) if due else None


def _deadlines(observed: ObservedState, crashes: Crashes) -> Iterator[datetime | None]:
    """Yield times at which the report may change without a change in the cluster."""
    outcome = observed.observation.outcome
    if outcome.plan is None and outcome.planned.reason == Reason.NODES_UNREADABLE:
        yield observed.observation.now + timedelta(seconds=UNREADABLE_SECONDS)
    if outcome.plan is None and outcome.planned.reason in _RETRIED:
        yield observed.observation.now + timedelta(seconds=NODES_SECONDS)
    if observed.observation.apply_error:
        yield _next_try(observed.observation)
    if observed.observation.exposure.awaits_gateway:
        yield observed.observation.now + timedelta(seconds=exposed.GATEWAY_SECONDS)
    recheck = observed.observation.activity.recheck_seconds
    yield observed.observation.now + timedelta(seconds=max(_SOON, recheck)) if recheck is not None else None
    yield caches.binding_deadline(observed)
    yield from (finding.settles_at for finding in crashes.findings)
    for view in observed.starting:
        yield startup.silence_begins(observed, view)
        yield crash_settles(observed, view)
        stall_check = observed.stall_check(view)
        if stall_check is not None:
            yield stall_check.deadline
            yield stall_check.look_at


def _next_try(observation: Observation) -> datetime:
    """Return when to apply a refused object again. The interval grows while the object is not Ready."""
    ready = find_condition(observation.previous.conditions, READY)
    since = reading.moment(ready.last_transition_time) if ready is not None else None
    waited = (observation.now - since).total_seconds() if since is not None else 0.0
    least, most = REFUSED_SECONDS
    return observation.now + timedelta(seconds=min(most, max(least, waited / 2)))
