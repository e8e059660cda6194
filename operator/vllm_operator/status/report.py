"""The report on an observation: status, events, and the time of the next observation.

Conditions are derived from the plan, the cache and the start. Ready summarizes the other conditions. Events are the difference to the
previous status.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import ValidationError

from vllm_operator.api import reading
from vllm_operator.api.conditions import (
    ACCEPTED,
    ALWAYS,
    AUTOSCALED,
    CACHE_PUBLISHED,
    CACHE_WARM,
    CRASHED,
    EXPOSED,
    FALSE,
    PLANNED,
    PROGRESSING,
    PROTECTED,
    READY,
    STALLED,
    TRUE,
    UNKNOWN,
    Reason,
    Verdict,
    find_condition,
    set_conditions,
    sort_conditions,
)
from vllm_operator.api.events import EventDraft
from vllm_operator.api.status import StartupStatus, VLLMDeploymentStatus
from vllm_operator.status import caches, optional_objects, planned, progressing, ready, startup
from vllm_operator.status.crashes import Crashes, crash_settles, shorten
from vllm_operator.status.events import draft_events
from vllm_operator.status.observation import Observation
from vllm_operator.status.reaction import Reaction
from vllm_operator.status.remedies import to_record
from vllm_operator.status.starts import StartClock, saved_seconds, start_clock

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

    `start` is the start in progress, if any. `warm_starts` are the ends and the saved seconds of warm starts whose logs were read.
    `requeue_after_seconds` is the time after which the report may change without a change in the cluster; None if it cannot.
    """

    status: VLLMDeploymentStatus
    events: tuple[EventDraft, ...] = ()
    start: StartClock | None = None
    warm_starts: tuple[tuple[datetime, int], ...] = ()
    requeue_after_seconds: float | None = None


def report(observed: Observation, crashes: Crashes, reaction: Reaction) -> Report:
    """Report on one VLLMDeployment.

    Equal arguments give equal reports. If the previous status is the one of that report, the same observation gives the same status and no
    events.
    """
    logged = planned.logged_backends(observed)
    block, block_held_until = startup.startup_status(observed)
    status = _status(observed, crashes, reaction, logged, block)
    return Report(
        status=status,
        events=draft_events(observed, status, crashes, logged),
        start=start_clock(observed),
        warm_starts=saved_seconds(observed, status.cache),
        requeue_after_seconds=_requeue_after(observed.now, [block_held_until, *_deadlines(observed, crashes)]),
    )


def _status(
    observed: Observation, crashes: Crashes, reaction: Reaction, logged: planned.Backends, block: StartupStatus | None
) -> VLLMDeploymentStatus:
    damage = reaction.cache_damage
    summary_of_plan = planned.summary(observed, logged)
    cached = caches.cache_status(observed, damage)
    if observed.plan is None and summary_of_plan is not None:
        cached = observed.previous.cache  # the plan cannot be read now: keep the known state of its caches
    remediation = reaction.remediation
    verdicts = {
        ACCEPTED: planned.accepted(observed),
        PLANNED: planned.planned(observed, logged),
        CACHE_WARM: caches.cache_warm(observed, cached, block, damage),
        CACHE_PUBLISHED: caches.cache_published(observed, cached.artifact if cached else None),
        PROGRESSING: progressing.progressing(observed, block, remediation),
        CRASHED: ready.crashed(observed, crashes, remediation),
        EXPOSED: optional_objects.exposed(observed),
        AUTOSCALED: optional_objects.autoscaled(observed),
        PROTECTED: optional_objects.protected(observed),
    }
    judged = {type: verdict for type, verdict in verdicts.items() if verdict is not None}
    judged[READY] = ready.with_draining(observed, ready.ready(observed, crashes, judged))
    if (verdict := ready.stalled(observed, judged, is_unrecoverable=reaction.is_unrecoverable)) is not None:
        judged[STALLED] = verdict
    reported, now = ready.reportable(observed, judged), reading.stamp(observed.now) or ""
    recorded_remediation, last_crash = to_record(remediation, crashes.last)
    if last_crash is not None and (verdict := judged.get(CRASHED)) is not None and verdict.status is TRUE:
        last_crash = shorten(last_crash, observed.knowledge.signatures, verdict.message)
    return VLLMDeploymentStatus(
        observed_generation=observed.resource.metadata.generation,
        replicas=observed.replicas,
        ready_replicas=observed.serving,
        selector=_selector(observed),
        url=optional_objects.url(observed),
        conditions=set_conditions(observed.previous.conditions, reported, generation=observed.resource.metadata.generation, now=now),
        pinned_plan=summary_of_plan,
        cache=cached,
        startup=block,
        last_crash=last_crash,
        remediation=recorded_remediation,
    )


def _selector(observed: Observation) -> str | None:
    """Return the label selector of the Pods, for the scale subresource."""
    chosen = reading.mapping(observed.deployment, "spec", "selector", "matchLabels")
    pairs = sorted((key, value) for key, value in chosen.items() if isinstance(key, str) and isinstance(value, str))
    return ",".join(f"{key}={value}" for key, value in pairs)[:1024] or observed.previous.selector


def _requeue_after(now: datetime, deadlines: Iterable[datetime | None]) -> float | None:
    due = [when for when in deadlines if when is not None and when > now]
    return max(_SOON, (min(due) - now).total_seconds()) if due else None


def _deadlines(observed: Observation, crashes: Crashes) -> Iterator[datetime | None]:
    """Yield times at which the report may change without a change in the cluster."""
    outcome = observed.outcome
    if outcome.plan is None and outcome.planned.reason == Reason.NODES_UNREADABLE:
        yield observed.now + timedelta(seconds=UNREADABLE_SECONDS)
    if outcome.plan is None and outcome.planned.reason in _RETRIED:
        yield observed.now + timedelta(seconds=NODES_SECONDS)
    if observed.apply_error:
        yield _next_try(observed)
    if observed.exposure.awaits_gateway:
        yield observed.now + timedelta(seconds=optional_objects.GATEWAY_SECONDS)
    recheck = observed.activity.recheck_seconds
    yield observed.now + timedelta(seconds=max(_SOON, recheck)) if recheck is not None else None
    yield caches.binding_deadline(observed)
    yield from (finding.settles_at for finding in crashes.findings)
    for view in observed.starting:
        yield startup.silence_begins(observed, view)
        yield crash_settles(observed, view)
        stall_check = view.stall_check
        if stall_check is not None:
            yield stall_check.deadline
            yield stall_check.look_at


def _next_try(observed: Observation) -> datetime:
    """Return when to apply a refused object again. The interval grows while the object is not Ready."""
    ready = find_condition(observed.previous.conditions, READY)
    since = reading.moment(ready.last_transition_time) if ready is not None else None
    waited = (observed.now - since).total_seconds() if since is not None else 0.0
    least, most = REFUSED_SECONDS
    return observed.now + timedelta(seconds=min(most, max(least, waited / 2)))


_STALLED = "Waiting does not help: the operator cannot read the spec. See condition Ready."
_UNKNOWN = "The operator could not observe this. See condition Ready."


def status_with_failure(previous: VLLMDeploymentStatus, *, reason: str, message: str, generation: int, now: str) -> VLLMDeploymentStatus:
    """Return the status with Ready=False for this reason, and with Accepted=False and Stalled=True if only a change of the spec helps.

    Other conditions keep their last observed state. Conditions that are always set are Unknown until they have been observed.

    Args:
        previous: The last written status.
        reason: One of the documented reasons.
        message: The failure, and how the user can fix it.
        generation: The generation of the object.
        now: The current time as in a condition.
    """
    failure = Verdict(FALSE, reason, message)
    verdicts = {READY: failure}
    if reason == Reason.INVALID_SPEC:
        verdicts |= {ACCEPTED: failure, STALLED: Verdict(TRUE, reason, _STALLED)}
    kept = {condition.type: condition for condition in previous.conditions if condition.type not in (*verdicts, STALLED)}
    verdicts |= {type: Verdict(UNKNOWN, reason, _UNKNOWN) for type in ALWAYS if type not in (*verdicts, *kept)}
    conditions = [*kept.values(), *set_conditions(previous.conditions, verdicts, generation=generation, now=now)]
    return previous.model_copy(update={"observed_generation": generation, "conditions": sort_conditions(conditions)})


def describe_invalid_spec(error: ValidationError) -> str:
    """Describe the first error of a spec that the cluster's CRD accepts and the operator cannot parse."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    return f"{field}: {first['msg']}. The CRD in the cluster does not match the operator. Apply the CRD of this version of the operator."
