"""The report on an observation: status, events, and the time of the next observation.

Ready summarizes the plan, the caches, the start and the other conditions. Events are the difference to the previous status.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import ValidationError

from vllm_operator.api import conditions, reading
from vllm_operator.api.conditions import FALSE, READY, TRUE, UNKNOWN, EventDraft, Reason, Verdict
from vllm_operator.api.status import StartupStatus, VLLMDeploymentStatus
from vllm_operator.pods.view import Phase
from vllm_operator.status import bad_nodes, caches, claims, planned, progressing, ready
from vllm_operator.status.crashes import Crashes, counts_as_crash_at, find_crashes, shorten
from vllm_operator.status.events import draft_events
from vllm_operator.status.observation import Observation, PodFacts
from vllm_operator.status.reaction import Reaction, react
from vllm_operator.status.remedies import to_record
from vllm_operator.status.rollback import decide_rollback, rolled_back
from vllm_operator.status.starts import StartClock, saved_seconds, start_clock
from vllm_operator.status.startup import silence_begins, startup_status

_SOON = 1.0
"""Minimum seconds until the next observation."""
NODES_SECONDS = 30
"""Interval between reads of the nodes while no GPU matches. Nodes are not watched, and a new one takes minutes."""
FREE_SECONDS = 5
"""Interval between reads of what is free while a Pod has no node. Pods of others are not watched."""
UNREADABLE_SECONDS = 3
"""Interval between attempts to list the nodes for a new plan while the API server fails."""
_SIZED = (Reason.NO_MATCHING_GPU, Reason.DOES_NOT_FIT, Reason.MODEL_SIZE_UNKNOWN)
_RETRIED = (*_SIZED, Reason.READING_IMAGE, Reason.PERMISSION_MISSING, Reason.REVISION_REFUSED)
"""Reasons for which there is no plan, and that may be resolved without a watch event."""
REAPPLY_SECONDS, REAPPLY_LIMIT_SECONDS = 5.0, 30.0
"""Minimum and maximum interval between attempts to apply a refused object. A quota may be raised, or a webhook recover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What to write and to delete, and the time of the next observation."""

    status: VLLMDeploymentStatus
    events: tuple[EventDraft, ...]
    pods_to_delete: tuple[PodFacts, ...]  # stalled Pods to delete after the status is written
    start: StartClock | None  # the start in progress
    warm_starts: tuple[tuple[datetime, int], ...]  # ends and saved seconds of warm starts whose logs were read
    requeue_after_seconds: float | None  # after this time, the report may change without a change in the cluster


def report(observed: Observation) -> Report:
    """Decide how to react to crashes and stalled starts and whether to give up the revision, and report on one VLLMDeployment.

    Equal observations give equal reports. If the previous status is the one of that report, the same observation gives the same status and
    no events.
    """
    crashes, logged = find_crashes(observed), planned.logged_backends(observed)
    reaction = react(observed, crashes)
    startup, withheld_until = startup_status(observed)
    status = _status(observed, crashes, reaction, logged, startup)
    due = [when for when in (withheld_until, *_deadlines(observed, crashes)) if when is not None and when > observed.now]
    return Report(
        status=status,
        events=draft_events(observed, status, crashes, logged),
        pods_to_delete=reaction.pods_to_delete,
        start=start_clock(observed),
        warm_starts=saved_seconds(observed, status.cache),
        requeue_after_seconds=max(_SOON, (min(due) - observed.now).total_seconds()) if due else None,
    )


def _status(
    observed: Observation, crashes: Crashes, reaction: Reaction, logged: planned.Backends, startup: StartupStatus | None
) -> VLLMDeploymentStatus:
    rollback, failure = decide_rollback(observed, crashes, reaction.remediation)
    remediation, last_crash = to_record(reaction.remediation, crashes.last)
    verdict = planned.plan_verdict(observed, logged)
    drifted = verdict if verdict.reason in (Reason.PLAN_DRIFTED, Reason.ROLLED_BACK) else None
    about_plan = planned.about_plan(observed, logged, None if drifted is not None else verdict.message)
    cached = caches.cache_status(observed, reaction.cache_damage)
    if observed.plan is None and about_plan.get("revision") is not None:
        cached = observed.previous.cache  # the plan cannot be read now: keep the known state of its caches
    cache_verdict = caches.cache_verdict(observed, cached, startup, reaction.cache_damage)
    avoided = bad_nodes.decide_avoided(observed, crashes)
    verdicts = {
        conditions.CRASHED: ready.crashed(observed, crashes, reaction.remediation, avoided),
        conditions.HUNG: ready.hung(observed),
        conditions.READING_IMAGE: ready.reading_image(observed),
        conditions.PLAN_DRIFTED: drifted,
        conditions.ROLLED_BACK: rolled_back(observed, rollback, failure),
        **ready.judge_parts(observed),
        conditions.CACHE_PUBLISHED: caches.cache_published(observed, cached.artifact if cached else None),
    }
    judged = {type: verdict for type, verdict in verdicts.items() if verdict is not None}
    progress = progressing.progress(observed, startup, reaction.remediation)
    judged[READY] = ready.ready(observed, crashes, judged, progress=progress, cache=cache_verdict, rollback=rollback, avoided=avoided)
    judged[conditions.AVAILABLE] = ready.available(observed)
    if (stalled := ready.stalled(observed, judged, is_unrecoverable=reaction.is_unrecoverable)) is not None:
        judged[conditions.STALLED] = stalled
    has_cause = judged.get(conditions.CRASHED) or judged.get(conditions.ROLLED_BACK)
    if last_crash is not None and has_cause is not None:
        last_crash = shorten(last_crash, observed.knowledge.signatures, has_cause.message)
    previous, generation, now = observed.previous, observed.resource.metadata.generation, reading.stamp(observed.now) or ""
    return VLLMDeploymentStatus(
        observed_generation=generation,
        replicas=observed.replicas,
        ready_replicas=observed.serving,
        selector=_selector(observed),
        url=ready.url(observed),
        conditions=conditions.set_conditions(previous.conditions, judged, generation=generation, now=now),
        **about_plan,
        cache=caches.with_message(cached, cache_verdict, judged[READY]),
        race=_race(observed, startup),
        startup=startup,
        last_crash=last_crash,
        remediation=remediation,
        rollback=rollback,
        avoided_nodes=avoided,
    )


def _race(observed: Observation, startup: StartupStatus | None) -> str | None:
    if (race := observed.activity.race) is None:
        return observed.previous.race if observed.resource.may_race else None
    primers = (view for view in observed.primer_facts if race.run_name and view.phase not in (Phase.READY, Phase.TERMINATING))
    starts = [progressing.pod_text(observed, view, startup) for view in primers]
    results = [(entrant, race.record.gain(entrant)) for entrant in race.record.entrants[1:]] if race.record is not None else []
    return observed.messages.say("race", limit=1000, record=race.record, results=results, waits=race.waits, text=" ".join(starts))


def _selector(observed: Observation) -> str | None:
    chosen = reading.mapping(observed.deployment, "spec", "selector", "matchLabels")
    pairs = sorted((key, value) for key, value in chosen.items() if isinstance(key, str) and isinstance(value, str))
    return ",".join(f"{key}={value}" for key, value in pairs)[:1024] or observed.previous.selector


def _deadlines(observed: Observation, crashes: Crashes) -> Iterator[datetime | None]:
    outcome = observed.outcome
    seconds = [
        UNREADABLE_SECONDS if outcome.plan is None and outcome.planned.reason == Reason.NODES_UNREADABLE else None,
        NODES_SECONDS if outcome.plan is None and outcome.planned.reason in _RETRIED else None,
        _seconds_to_next_try(observed) if observed.apply_error else None,
        ready.GATEWAY_SECONDS if observed.exposure.awaits_gateway else None,
        None if observed.activity.recheck_seconds is None else max(_SOON, observed.activity.recheck_seconds),
        FREE_SECONDS if outcome.free is not None and observed.activity.rollout is None else None,
    ]
    yield from (observed.now + timedelta(seconds=each) for each in seconds if each is not None)
    yield claims.binding_deadline(observed)
    yield from (finding.reportable_at for finding in crashes.findings)
    for view in observed.starting:
        yield silence_begins(observed, view)
        yield counts_as_crash_at(observed, view)
        if view.stall_check is not None:
            yield view.stall_check.deadline


def _seconds_to_next_try(observed: Observation) -> float:
    """Return when to apply a refused object again. The interval grows while the object is not Ready."""
    ready = conditions.find_condition(observed.previous.conditions, READY)
    since = reading.moment(ready.last_transition_time) if ready is not None else None
    waited = (observed.now - since).total_seconds() if since is not None else 0.0
    return min(REAPPLY_LIMIT_SECONDS, max(REAPPLY_SECONDS, waited / 2))


_STALLED = "The spec must change. See condition Ready."
_UNKNOWN = "The operator could not observe it."


def status_with_failure(previous: VLLMDeploymentStatus, *, reason: str, message: str, generation: int, now: str) -> VLLMDeploymentStatus:
    """Return the status with Ready=False for this reason, and with Stalled=True if only a change of the spec helps.

    Other conditions keep their last observed state. Conditions that are always set are Unknown until they have been observed. `now` is the
    current time as in a condition.
    """
    verdicts = {READY: Verdict(FALSE, reason, message)}
    if reason == Reason.INVALID_SPEC:
        verdicts[conditions.STALLED] = Verdict(TRUE, reason, _STALLED)
    kept = {it.type: it for it in previous.conditions if it.type not in (*verdicts, conditions.STALLED)}
    verdicts |= {type: Verdict(UNKNOWN, reason, _UNKNOWN) for type in conditions.ALWAYS if type not in (*verdicts, *kept)}
    made = conditions.set_conditions(previous.conditions, verdicts, generation=generation, now=now)
    changed = {"observed_generation": generation, "conditions": conditions.sort_conditions([*kept.values(), *made])}
    return previous.model_copy(update=changed)


def describe_invalid_spec(error: ValidationError) -> str:
    """Describe the first error of a spec that the cluster's CRD accepts and the operator cannot parse."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    return f"{field}: {first['msg']}. The CRD in the cluster does not match the operator. Apply the CRD of this version of the operator."
