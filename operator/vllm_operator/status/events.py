"""Events: relevant differences between the previous status and the new one.

The key of an event identifies the occurrence. If the operator exits between the event and the status, it drafts the same event again, with
the same key, and no second event is created. Repeated occurrences, such as the crashes of one Pod, are a series: one event with a count and
the latest message.
"""

import hashlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from vllm_operator.api import conditions, reading
from vllm_operator.api.conditions import FALSE, NORMAL, WARNING, Change, EventDraft, Reason, find_condition
from vllm_operator.api.labels import GATE_ANNOTATION
from vllm_operator.api.plan import Plan
from vllm_operator.api.status import Condition, VLLMDeploymentStatus
from vllm_operator.caches.measurement import read_gate_record
from vllm_operator.pods.view import Phase
from vllm_operator.rendering.revision import find_revision
from vllm_operator.status.claims import CLAIM_PROBLEMS
from vllm_operator.status.crashes import Crashes, reason_of
from vllm_operator.status.knowledge import Messages
from vllm_operator.status.observation import Observation
from vllm_operator.status.planned import Backends, backends_logged_before, ignored_fields, mismatches
from vllm_operator.status.ready import ALL_STARTED
from vllm_operator.status.remedies import in_words, remediation_in_force
from vllm_operator.status.rollback import describe_failed
from vllm_operator.status.starts import last_start

_NOT_YET = (Reason.NOT_COMPILED, Reason.WAITING_FOR_ROLLOUT)
"""Reasons of a part of the spec that comes into effect by itself."""
_STUCK = (Reason.NO_PROGRESS, Reason.UNSCHEDULABLE, Reason.IMAGE_PULL_FAILED, Reason.CONTAINER_CONFIG_FAILED, Reason.NODE_LOST)
_BY_MESSAGE = (
    # the message may contain a port, an amount or the name of a Pod that differs at each attempt
    (conditions.READY, Reason.APPLY_FAILED, "apply", "apply"),
    (conditions.READY, Reason.POD_REFUSED, "refused", "refused"),
    (conditions.PLAN_DRIFTED, Reason.ROLLED_BACK, "rollback", ""),
    (conditions.HUNG, Reason.ENGINE_HUNG, "hung", "hung"),
    (conditions.READING_IMAGE, Reason.IMAGE_UNREADABLE, "image", ""),
)
"""Conditions and reasons whose message alone identifies the occurrence; the name in the key, and the series."""
_COMPLETE = (*ALL_STARTED, *conditions.REFUSALS, Reason.SCALED_TO_ZERO, Reason.APPLY_FAILED, Reason.OPERATOR_FAILED)
"""Reasons of Ready that do not tell of a rollout."""


def draft_events(observed: Observation, status: VLLMDeploymentStatus, crashes: Crashes, logged: Backends) -> tuple[EventDraft, ...]:
    """Draft the events for the changes since the previous status, in order. `logged` are the backends in the logs."""
    return (
        *_planning(observed, status, logged),
        *_changed_messages(observed, status),
        *_stuck(observed, status),
        *_measured(observed),
        *_raced(observed, status),
        *_parts(observed, status),
        *_crash(observed, crashes),
        *_caches(observed, status),
        *_remediation(observed, status),
        *_rollback(observed, status),
        *_avoided(observed, status),
        *_started(observed, status),
    )


def describe_restored(restored: Iterable[tuple[str, str, Change]], messages: Messages, now: datetime) -> Iterator[EventDraft]:
    """Draft the events about children that somebody else had changed: at most one per hour for a field, however often it is changed."""
    for kind, name, change in restored:
        known = (field for part, field in messages.restored.items() if kind == "Deployment" and f"{part}." in f"{change.field}.")
        facts: dict[str, Any] = {"change": change, "time": reading.moment(change.time), "instead": next(known, "")}
        text = messages.say("event.restored", child=f"{kind} {name}", **facts)
        yield EventDraft(WARNING, "Restored", text, f"restored-{_digest(kind, name, change.field, now.strftime('%Y%m%d%H'))}")


def _both(observed: Observation, status: VLLMDeploymentStatus, type: str) -> tuple[Condition | None, Condition | None]:
    return find_condition(status.conditions, type), find_condition(observed.previous.conditions, type)


def _planning(observed: Observation, status: VLLMDeploymentStatus, logged: Backends) -> Iterator[EventDraft]:
    generation, previous, plan = observed.resource.metadata.generation, observed.previous, observed.outcome.plan
    if plan is None:
        now, before = _both(observed, status, conditions.READY)
        if now is not None and (before is None or (before.reason, previous.observed_generation) != (now.reason, generation)):
            type = NORMAL if now.reason == Reason.READING_IMAGE else WARNING
            yield EventDraft(type, now.reason, now.message, f"{now.reason}-{generation}")
        return
    identity, pinned = _identify(plan), observed.resource.pinned
    is_new_spec = previous.observed_generation != generation  # the status reports it
    if not is_new_spec and (pinned is None or identity != _identify(pinned)):
        message = observed.messages.say("event.planned", why=plan.chosen_again, text=observed.outcome.planned.message)
        yield EventDraft(NORMAL, "Planned", message, f"planned-{_digest(*identity, *((observed.revision,) if plan.chosen_again else ()))}")
    names = observed.knowledge.logged_names
    differences = mismatches(plan, logged, names)
    if differences and differences != mismatches(pinned, backends_logged_before(observed), names):
        message = observed.messages.say("planned.mismatch", differences="; ".join(differences))
        yield EventDraft(WARNING, "BackendMismatch", message, f"mismatch-{_digest(*identity, *differences)}")
    drifted = find_condition(previous.conditions, conditions.PLAN_DRIFTED)
    said = drifted.message if drifted is not None else previous.plan or ""
    if (ignored := ignored_fields(observed)) and ignored not in said:
        yield EventDraft(WARNING, "FieldsIgnored", ignored, f"ignored-{_digest(ignored)}")


def _identify(plan: Plan) -> tuple[int | None, str | None, str]:
    return (plan.observed_generation, plan.replan_token, plan.cache_key)


def _changed_messages(observed: Observation, status: VLLMDeploymentStatus) -> Iterator[EventDraft]:
    for type, reason, name, series in _BY_MESSAGE:
        now, before = _both(observed, status, type)
        if now is not None and now.reason == reason and (before is None or before.message != now.message):
            yield EventDraft(WARNING, reason, now.message, f"{name}-{_digest(now.message)}", series)


def _rollback(observed: Observation, status: VLLMDeploymentStatus) -> Iterator[EventDraft]:
    now, before = status.rollback, observed.previous.rollback
    if now is None or (before is not None and (before.failed, before.revision) == (now.failed, now.revision)):
        return
    rolled_back = find_condition(status.conditions, conditions.ROLLED_BACK)
    message = rolled_back.message if rolled_back is not None else describe_failed(observed, now)
    reason = Reason.ROLLED_BACK if now.revision else Reason.REVISION_FAILED
    yield EventDraft(WARNING, reason, message, f"rollback-{_digest(now.failed, now.revision)}")


def _stuck(observed: Observation, status: VLLMDeploymentStatus) -> Iterator[EventDraft]:
    now, before = _both(observed, status, conditions.READY)
    if now is not None and now.reason == Reason.ROLLOUT_HELD and (before is None or before.reason != now.reason):
        yield EventDraft(WARNING, now.reason, now.message, f"held-{observed.resource.metadata.generation}")
    told = (view for view in (*observed.unhealthy, *observed.primer_facts) if now is not None and view.name in now.message)
    if now is None or now.reason not in _STUCK or (worst := next(told, next(iter(observed.unhealthy), None))) is None:
        return
    if before is None or before.reason != now.reason or worst.name not in before.message:
        series = f"{now.reason}-{worst.uid}"
        yield EventDraft(WARNING, now.reason, now.message, f"{series}-{worst.restarts}-{worst.stage}", series)


def _measured(observed: Observation) -> Iterator[EventDraft]:
    before = find_condition(observed.previous.conditions, conditions.READY)
    if before is None or before.reason != Reason.MEASURING or (observed.activity.gate is not None and observed.activity.gate.is_held):
        return
    revision = find_revision(observed.revisions, observed.revision)
    record = read_gate_record(reading.text(revision, "metadata", "annotations", GATE_ANNOTATION))
    if record is not None and record.is_over and not record.worse and not record.failure:
        figures = [figure.text for figure in record.figures]
        text = observed.messages.say("event.measured", skipped=record.skipped, figures=figures, load=record.load)
        yield EventDraft(WARNING if record.skipped else NORMAL, "Measured", text, f"measured-{observed.revision}")


def _raced(observed: Observation, status: VLLMDeploymentStatus) -> Iterator[EventDraft]:
    record = observed.activity.race.record if observed.activity.race is not None else None
    if record is not None and record.next_entrant is None and status.race is not None and status.race != observed.previous.race:
        type = WARNING if record.skipped else NORMAL
        yield EventDraft(type, "Raced", status.race, f"raced-{record.key}-{reading.stamp(record.started)}")


def _parts(observed: Observation, status: VLLMDeploymentStatus) -> Iterator[EventDraft]:
    """Draft a warning for each part of the spec that is not in effect: when its reason changes, and again when all replicas serve."""
    serves, served = (it is not None and it.reason in ALL_STARTED for it in _both(observed, status, conditions.READY))
    for type in conditions.WHILE_ASKED:
        now, before = _both(observed, status, type)
        if now is None or now.status is not FALSE or now.reason in (_NOT_YET if serves else (*_NOT_YET, Reason.ROUTE_NOT_ACCEPTED)):
            continue
        if (serves and not served) or before is None or (before.status, before.reason) != (now.status, now.reason):
            yield EventDraft(WARNING, now.reason, now.message, f"{type}-{observed.resource.metadata.generation}-{_digest(now.message)}")


def _crash(observed: Observation, crashes: Crashes) -> Iterator[EventDraft]:
    if not crashes.is_new or crashes.last is None:
        return
    crash, runs, reason = crashes.last, crashes.last.restarts or 0, reason_of(crashes.last.signature)
    view = next((view for view in observed.pod_facts if view.name == crash.pod), None)
    uid = view.uid if view is not None else crash.pod
    of_all = uid if view is None or view.group is None else crash.pod  # the next Pods of a group have the same names
    message = observed.messages.say("event.crashed", crash=crash, times=runs + 1)
    yield EventDraft(WARNING, reason, message, f"crash-{uid}-{runs}", series=f"crash-{of_all}-{reason}")


def _caches(observed: Observation, status: VLLMDeploymentStatus) -> Iterator[EventDraft]:
    cache, previous, (ready, _) = status.cache, observed.previous.cache, _both(observed, status, conditions.READY)
    if cache is None:
        return
    reason = cache.reason if previous is None or previous.reason != cache.reason else None
    message = cache.message or (ready.message if ready is not None else "")
    if reason in CLAIM_PROBLEMS:
        uid = reading.text(observed.claim, "metadata", "uid") or observed.claim_name
        yield EventDraft(WARNING, reason, message, f"{reason}-{uid}")
    if reason in (Reason.COMPILING, Reason.QUARANTINED):
        yield EventDraft(WARNING if reason == Reason.QUARANTINED else NORMAL, reason, message, f"{reason}-{cache.key}-{cache.generation}")
    if cache.priming_skipped and (previous is None or previous.priming_skipped != cache.priming_skipped):
        message = observed.messages.say("event.skipped", why=cache.priming_skipped)
        yield EventDraft(NORMAL, "CachesNotCompiled", message, f"skipped-{cache.key}")


def _remediation(observed: Observation, status: VLLMDeploymentStatus) -> Iterator[EventDraft]:
    now, before = status.remediation, observed.previous.remediation
    generation, kept = observed.resource.metadata.generation, remediation_in_force(observed.resource)
    if now is not None and (applied := len(now.applied)) > (len(kept.applied) if kept else 0):
        yield EventDraft(NORMAL, "RemedyApplied", now.message or "", f"remedy-{generation}-{applied}")
    if before is not None and before.applied and kept is None:
        message = observed.messages.say("event.undone", changes="; ".join(in_words(remedy.changes) for remedy in before.applied))
        yield EventDraft(NORMAL, "RemediesUndone", message, f"undone-{generation}")
    if now is None:
        return
    reason = {"GaveUp": "RemedyGaveUp", "Stopped": "Stopped"}.get(now.state) if now.state else None
    if reason is not None and (before is None or before.state != now.state):
        yield EventDraft(WARNING, reason, now.message or "", f"{reason}-{generation}")
    for pod in now.stalled_pods:
        if kept is None or pod not in kept.stalled_pods:
            yield EventDraft(WARNING, "RestartedStalled", observed.messages.say("event.stall_restart", stalled=pod), f"stall-{pod}")


def _avoided(observed: Observation, status: VLLMDeploymentStatus) -> Iterator[EventDraft]:
    before = observed.previous.avoided_nodes or ()
    for node in status.avoided_nodes or ():
        if node not in before:
            message = observed.messages.say("event.avoided", avoided=node, crash=status.last_crash)
            yield EventDraft(WARNING, "NodeAvoided", message, f"avoided-{_digest(node.name, node.boot_id)}")


def _started(observed: Observation, status: VLLMDeploymentStatus) -> Iterator[EventDraft]:
    now, before = _both(observed, status, conditions.READY)
    ready = [view for view in observed.pod_facts if view.phase is Phase.READY]
    if find_condition(status.conditions, conditions.CRASHED) is not None or now is None or now.reason not in ALL_STARTED or not ready:
        return
    was_complete = before is None or before.reason in _COMPLETE
    if was_complete and (observed.previous.ready_replicas or 0) >= observed.serving:
        return
    start, last = last_start(observed), max(ready, key=lambda view: (reading.stamp(view.ready_at) or "", view.name))
    seconds: float | None = start.seconds if start is not None else None
    was_ready = before is not None and before.reason in (Reason.NOT_RESPONDING, Reason.ENGINE_HUNG)
    if seconds is None and not was_ready and last.started_at is not None and last.ready_at is not None:
        seconds = (last.ready_at - last.started_at).total_seconds()  # the log says nothing
    caches = "" if start is None else "warm" if start.state.cache.is_warm else "cold" if start.state.cache.is_cold else "partly warm"
    message = observed.messages.say("event.started", serving=observed.serving, wanted=observed.wanted, seconds=seconds, caches=caches)
    yield EventDraft(NORMAL, "Started", message, f"started-{last.uid}-{last.restarts}")


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]
