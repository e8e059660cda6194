"""Events: relevant differences between the previous status and the new one.

The key of an event identifies the occurrence. If the operator exits between the event and the status, it drafts the same event again, with
the same key, and no second event is created. Repeated occurrences, such as the crashes of one Pod, are a series: one event with a count and
the latest message.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from vllm_operator.api import reading
from vllm_operator.api.conditions import ACCEPTED, CACHE_WARM, PLANNED, PROGRESSING, READY, Reason, find_condition
from vllm_operator.api.plan import Plan
from vllm_operator.api.status import Condition, ConditionStatus, RemediationState, VLLMDeploymentStatus
from vllm_operator.logs.state import Stage
from vllm_operator.pods.view import Phase
from vllm_operator.status.caches import CLAIM_PROBLEMS
from vllm_operator.status.crashes import Crashes
from vllm_operator.status.crashes import reason as reason_of
from vllm_operator.status.observation import Observation, PodFacts
from vllm_operator.status.planned import mismatches, previous_plan
from vllm_operator.status.remedies import current, in_words
from vllm_operator.status.starts import Start, completed_stages, last_start

NORMAL = "Normal"
WARNING = "Warning"
LONG_STAGE_SECONDS = 60
"""Minimum seconds of a stage that gets an event."""
_STUCK = (Reason.START_STALLED, Reason.UNSCHEDULABLE, Reason.IMAGE_PULL_FAILED, Reason.CONTAINER_CONFIG_FAILED, Reason.NODE_LOST)
_BY_MESSAGE = (
    (ACCEPTED, Reason.FIELDS_IGNORED, "ignored", ""),
    # the message may contain a port, an amount or the name of a Pod that differs at each attempt
    (READY, Reason.APPLY_FAILED, "apply", "apply"),
    (PROGRESSING, Reason.POD_REFUSED, "refused", "refused"),
)
"""Conditions and reasons whose message alone identifies the occurrence; the name in the key, and the series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDraft:
    """An event to be recorded on the VLLMDeployment.

    `type` is Normal or Warning. `key` identifies the occurrence: an event with the same key is not recorded again. Occurrences with the
    same `series`, such as the crashes of one Pod with one cause, are counted in one event. Without a series, the event is separate.
    """

    type: str
    reason: str
    message: str
    key: str
    series: str = ""


def draft_events(observed: Observation, status: VLLMDeploymentStatus, crashes: Crashes, plan: Plan | None) -> tuple[EventDraft, ...]:
    """Draft the events for the changes since the previous status, in order. `plan` is the plan with the backends that the logs name."""
    return (
        *_planning(observed, status, plan),
        *_changed_messages(observed, status),
        *_claim(observed, status),
        *_long_stages(observed),
        *_stuck(observed, status),
        *_crash(observed, crashes),
        *_caches(observed, status),
        *_remediation(observed, status),
        *_started(observed, status),
    )


def _planning(observed: Observation, status: VLLMDeploymentStatus, plan: Plan | None) -> Iterator[EventDraft]:
    generation, previous = observed.resource.metadata.generation, observed.previous
    for type in (ACCEPTED, PLANNED):
        condition, before = _both(observed, status, type)
        if condition is None or condition.status is ConditionStatus.TRUE or condition.reason == Reason.NOT_ACCEPTED:
            continue
        if before is not None and (before.reason, previous.observed_generation) == (condition.reason, generation):
            continue  # already reported
        yield EventDraft(type=WARNING, reason=condition.reason, message=condition.message, key=f"{condition.reason}-{generation}")
    if observed.outcome.plan is None or plan is None:
        return
    before_plan = previous_plan(observed)
    identity, before_identity = _identify(plan), _identify(before_plan) if before_plan is not None else None
    is_asked_for = previous.observed_generation != generation  # the condition reports a new spec
    if not is_asked_for and identity != before_identity:
        message = observed.messages.say("event.planned", text=observed.outcome.planned.message)
        yield EventDraft(type=NORMAL, reason="Planned", message=message, key=f"planned-{_digest(*identity)}")
    names = observed.knowledge.logged_names
    differences = mismatches(plan, names)
    if differences and differences != mismatches(before_plan, names):
        message = observed.messages.say("planned.mismatch", differences="; ".join(differences))
        yield EventDraft(type=WARNING, reason="BackendMismatch", message=message, key=f"mismatch-{_digest(*identity, *differences)}")


def _identify(plan: Plan) -> tuple[int | None, str | None, str]:
    """Return the identity of a plan; it differs between successive plans."""
    return (plan.observed_generation, plan.replan_token, plan.cache_key)


def _both(observed: Observation, status: VLLMDeploymentStatus, type: str) -> tuple[Condition | None, Condition | None]:
    """Return the new and the previous condition of a type."""
    return find_condition(status.conditions, type), find_condition(observed.previous.conditions, type)


def _changed_messages(observed: Observation, status: VLLMDeploymentStatus) -> Iterator[EventDraft]:
    """Draft events about conditions that have one of these reasons and another message than before."""
    for type, reason, name, series in _BY_MESSAGE:
        now, before = _both(observed, status, type)
        if now is not None and now.reason == reason and (before is None or before.message != now.message):
            yield EventDraft(type=WARNING, reason=reason, message=now.message, key=f"{name}-{_digest(now.message)}", series=series)


def _long_stages(observed: Observation) -> Iterator[EventDraft]:
    """Draft events about the long stages that the leading Pod has completed since the previous status."""
    before = observed.previous.startup
    if before is None or not before.pods or before.stage not in list(Stage):
        return
    lead = before.pods[0]
    view = next(
        (v for v in (*observed.pod_facts, *observed.primer_facts) if v.name == lead.name and v.restarts == (lead.restarts or 0)), None
    )
    if view is None or view.phase not in (Phase.STARTING, Phase.READY):
        return
    for stage, begun, ended in _completed(observed, view, Stage(before.stage), reading.moment(before.stage_since)):
        seconds = (ended - begun).total_seconds()
        if seconds > LONG_STAGE_SECONDS:
            message = observed.messages.say("event.stage", pod=view, what=observed.messages.stages[stage], seconds=seconds)
            key, series = f"stage-{view.uid}-{view.restarts}-{stage}", f"stage-{view.uid}-{stage}"
            yield EventDraft(type=NORMAL, reason="StageCompleted", message=message, key=key, series=series)


def _completed(observed: Observation, view: PodFacts, stage: Stage, since: datetime | None) -> Iterator[tuple[Stage, datetime, datetime]]:
    """Yield the stages that a Pod has completed since it was in `stage`. Waiting for a node is omitted: it has a separate warning."""
    state, order = view.state, list(Stage)
    has_pulled = view.phase is Phase.READY or order.index(view.stage) > order.index(Stage.IMAGE_PULL)
    if stage is Stage.IMAGE_PULL and has_pulled and since is not None and view.started_at is not None:
        yield (stage, since, view.started_at)
    if state is not None:
        current = order.index(state.stage)
        yield from (done for done in completed_stages(state) if order.index(stage) <= order.index(done[0]) < current)


def _stuck(observed: Observation, status: VLLMDeploymentStatus) -> Iterator[EventDraft]:
    now, before = _both(observed, status, PROGRESSING)
    if now is None or now.reason not in _STUCK or not observed.unhealthy:
        return
    worst = observed.unhealthy[0]
    if before is not None and before.reason == now.reason and worst.name in before.message:
        return
    series = f"{now.reason}-{worst.uid}"
    yield EventDraft(type=WARNING, reason=now.reason, message=now.message, key=f"{series}-{worst.restarts}-{worst.stage}", series=series)


def _claim(observed: Observation, status: VLLMDeploymentStatus) -> Iterator[EventDraft]:
    now, before = _both(observed, status, CACHE_WARM)
    if now is None or now.reason not in CLAIM_PROBLEMS or (before is not None and before.reason == now.reason):
        return
    uid = reading.text(observed.claim, "metadata", "uid") or observed.claim_name
    yield EventDraft(type=WARNING, reason=now.reason, message=now.message, key=f"{now.reason}-{uid}")


def _caches(observed: Observation, status: VLLMDeploymentStatus) -> Iterator[EventDraft]:
    """Draft events about caches that a Pod starts to fill, that were not filled before a rollout, or that are quarantined."""
    now, before = _both(observed, status, CACHE_WARM)
    if now is None or status.cache is None:
        return
    if now.reason in (Reason.PRIMING, Reason.QUARANTINED) and (before is None or before.reason != now.reason):
        kind = WARNING if now.reason == Reason.QUARANTINED else NORMAL
        yield EventDraft(
            type=kind, reason=now.reason, message=now.message, key=f"{now.reason}-{status.cache.key}-{status.cache.generation}"
        )
    skipped = status.cache.priming_skipped
    if skipped and (observed.previous.cache is None or observed.previous.cache.priming_skipped != skipped):
        yield EventDraft(type=NORMAL, reason="PrimingSkipped", message=now.message, key=f"skipped-{status.cache.key}")


def _crash(observed: Observation, crashes: Crashes) -> Iterator[EventDraft]:
    if not crashes.is_new or crashes.last is None:
        return
    crash = crashes.last
    uid = next((view.uid for view in observed.pod_facts if view.name == crash.pod), crash.pod)
    message = observed.messages.say("event.crashed", crash=crash, times=(crash.restarts or 0) + 1)
    word = reason_of(crash.signature)
    yield EventDraft(type=WARNING, reason=word, message=message, key=f"crash-{uid}-{crash.restarts or 0}", series=f"crash-{uid}-{word}")


def _remediation(observed: Observation, status: VLLMDeploymentStatus) -> Iterator[EventDraft]:
    now, before = status.remediation, observed.previous.remediation
    generation = observed.resource.metadata.generation
    kept = current(observed.resource)
    applied, earlier = (len(s.applied) if s else 0 for s in (now, kept))
    if now is not None and applied > earlier:
        yield EventDraft(type=NORMAL, reason="RemedyApplied", message=now.message or "", key=f"remedy-{generation}-{applied}")
    if before is not None and before.applied and kept is None:
        message = observed.messages.say("event.undone", changes="; ".join(in_words(remedy.changes) for remedy in before.applied))
        yield EventDraft(type=NORMAL, reason="RemediesUndone", message=message, key=f"undone-{generation}")
    for state, reason in ((RemediationState.GAVE_UP, "RemedyGaveUp"), (RemediationState.STOPPED, "Stopped")):
        if now is not None and now.state is state and (before is None or before.state is not state):
            yield EventDraft(type=WARNING, reason=reason, message=now.message or "", key=f"{reason}-{generation}")
    for pod in now.stalled_pods if now is not None else ():
        if kept is None or pod not in kept.stalled_pods:
            message = observed.messages.say("event.stall_restart", stalled=pod)
            yield EventDraft(type=WARNING, reason="RestartedStalled", message=message, key=f"stall-{pod}")


def _started(observed: Observation, status: VLLMDeploymentStatus) -> Iterator[EventDraft]:
    now, before = _both(observed, status, PROGRESSING)
    ready = sorted(
        (view for view in observed.pod_facts if view.phase is Phase.READY), key=lambda v: (reading.stamp(v.ready_at) or "", v.name)
    )
    if now is None or now.reason != Reason.STARTED or not ready:
        return
    had_started = before is None or before.reason in (Reason.STARTED, Reason.NOT_PLANNED)
    if had_started and (observed.previous.ready_replicas or 0) >= observed.serving:
        return
    start, last = last_start(observed), ready[-1]
    message = observed.messages.say(
        "event.started",
        serving=observed.serving,
        wanted=observed.wanted,
        seconds=_seconds(start, last, before),
        caches="" if start is None else "warm" if start.is_warm else "cold",
    )
    yield EventDraft(type=NORMAL, reason="Started", message=message, key=f"started-{last.uid}-{last.restarts}")


def _seconds(start: Start | None, view: PodFacts, before: Condition | None) -> float | None:
    """Return the seconds of a start: from its log, else from the start of the container until the Pod was first Ready."""
    if start is not None and start.seconds is not None:
        return start.seconds
    again = before is not None and before.reason == Reason.NOT_RESPONDING
    return None if again or view.started_at is None or view.ready_at is None else (view.ready_at - view.started_at).total_seconds()


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]
