"""The reaction to crashes, stalled starts and damaged caches. `rollback` decides about revisions, `bad_nodes` about avoided nodes.

A decision is written to the status first. The next reconciliation carries it out from there (`remedies`), so an operator that exits in
between continues after its restart, and repeated observations give one decision. Only stalled Pods are deleted by the same reconciliation,
right after the status is written. Remedies are applied on top of the current plan, and end when the spec changes in a field that a plan
depends on. After giving up, only such a change starts a new attempt, so there are no loops.
"""

from dataclasses import dataclass
from functools import partial

from vllm_operator.api import reading
from vllm_operator.api.operation import RemediationSpec
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import AppliedRemedy, RemediationStatus, RemedyChange
from vllm_operator.catalog.startup import Remedy, Severity, Signature
from vllm_operator.planning.pinning import planned_generation
from vllm_operator.pods.view import Phase
from vllm_operator.status import remedies
from vllm_operator.status.cache_damage import CacheDamage, assess_cache_damage
from vllm_operator.status.crashes import Crashes, Finding
from vllm_operator.status.observation import Observation, PodFacts
from vllm_operator.status.remedies import Engine, remediation_in_force

DEFAULT_MAX_ATTEMPTS = 2
DEFAULT_MAX_STALL_RESTARTS = 2
UNRECOVERABLE_RUNS = 5
"""A Pod whose runs end in the same crash this often cannot recover. With the kubelet's back-off, this takes about five minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """The reaction to an observation."""

    remediation: RemediationStatus | None  # `status.remediation`; None if nothing was decided for the current spec
    cache_damage: CacheDamage
    pods_to_delete: tuple[PodFacts, ...]  # stalled Pods to delete after the status is written
    is_unrecoverable: bool  # every start ends in the same crash until the spec changes


def react(observed: Observation, crashes: Crashes) -> Reaction:
    """Decide how to react. Earlier decisions for the same spec remain in force."""
    plan, finding = observed.outcome.plan, crashes.most_informative
    if finding is not None and finding.status.signature not in observed.knowledge.signatures:
        finding = None
    remediation = _with_stalled(observed, _decide_remediation(observed, plan, finding))
    listed = remediation.stalled_pods if remediation is not None else []
    is_stopped = remediation is not None and remediation.state == "Stopped"
    return Reaction(
        remediation=remediation,
        cache_damage=assess_cache_damage(observed, plan, crashes) if plan is not None else CacheDamage(),
        pods_to_delete=tuple(view for view in observed.starting if view.start_name in listed and view.is_stalled),
        is_unrecoverable=is_stopped or (finding is not None and _ends_every_start(observed, finding, remediation)),
    )


def stall_restarts_left(observed: Observation) -> int | None:
    """Return how many more stalled starts may be restarted; None unless `spec.startup.onStall` is Restart."""
    startup = observed.resource.spec.startup
    if startup is None or startup.on_stall != "Restart":
        return None
    decided = remediation_in_force(observed.resource)
    return max(0, (startup.max_stall_restarts or DEFAULT_MAX_STALL_RESTARTS) - len(decided.stalled_pods if decided else ()))


def _with_stalled(observed: Observation, status: RemediationStatus | None) -> RemediationStatus | None:
    decided = remediation_in_force(observed.resource)
    listed = decided.stalled_pods if decided else []
    names = [view.start_name for view in observed.starting if view.is_stalled]
    pods = [name for name in names if name not in listed][: stall_restarts_left(observed) or 0]
    if not pods:
        return status
    base = status or RemediationStatus(observed_generation=planned_generation(observed.resource))
    return base.model_copy(update={"stalled_pods": [*base.stalled_pods, *pods]})


def _decide_remediation(observed: Observation, plan: Plan | None, finding: Finding | None) -> RemediationStatus | None:
    resource = observed.resource
    if plan is None and resource.pinned is None and resource.status.revision is not None:
        return remedies.last_written(resource)  # the plan cannot be read now
    if plan is None or finding is None:
        return remedies.without_suggestion(resource)
    decided = decide_about_crash(observed, plan, finding)
    return decided if decided.state is not None or decided.applied or decided.stalled_pods else None


def decide_about_crash(observed: Observation, plan: Plan, finding: Finding) -> RemediationStatus:
    """Decide about a crash in force that the catalog knows. `plan` is the current plan without remedies."""
    resource, crash = observed.resource, finding.status
    kept = remediation_in_force(resource) or RemediationStatus(observed_generation=planned_generation(resource))
    is_same = (kept.pod, kept.restarts or 0, kept.signature) == (crash.pod, finding.restarts, crash.signature)
    if kept.state == "Stopped" or (is_same and not finding.during_start) or is_superseded(kept, finding):
        return kept
    engine = Engine.of(resource.spec, remedies.remedied(plan, kept), observed.knowledge.versions)
    signature, remedy = observed.knowledge.signatures[crash.signature], observed.knowledge.remedies.get(crash.signature)
    if remedy is not None and not remedy.fits(engine.plan.engine_version, engine.plan.architecture):
        remedy = None
    only = remedy.select(signature) if remedy is not None else None
    changes = remedies.exact_changes(engine, signature, dict(finding.captures), only)
    has_failed = any(applied.signature == crash.signature for applied in kept.applied)
    others_serve = any(it.is_current and it.phase is Phase.READY for it in observed.pod_facts)  # and would be replaced, too
    command = None if has_failed or others_serve or _settings(resource).mode == "Off" else remedies.patch_command(resource, changes)
    state = "Suggested" if command is not None else "Applied" if kept.applied else None
    about = {"signature": crash.signature, "pod": crash.pod, "restarts": crash.restarts}
    suggested = kept.model_copy(update={**about, "state": state, "command": command, "message": None})
    if kept.state == "GaveUp":
        return _stopped_if_permanent(observed, finding, suggested.model_copy(update={"state": kept.state, "message": kept.message}))
    if not finding.during_start or not signature.auto_safe or any(engine.is_users(change) for change in changes):
        changes = ()  # none of them is safe
    changed = _apply_remedy(observed, finding, suggested, remedy, changes)
    return changed if len(changed.applied) > len(kept.applied) else _stopped_if_permanent(observed, finding, changed)


def _apply_remedy(
    observed: Observation, finding: Finding, suggested: RemediationStatus, remedy: Remedy | None, safe: tuple[RemedyChange, ...]
) -> RemediationStatus:
    settings, crash, say = _settings(observed.resource), finding.status, partial(observed.messages.say, limit=1024)
    if settings.mode != "Auto":
        return suggested
    former = next((applied for applied in suggested.applied if applied.signature == crash.signature), None)
    if former is not None:
        message = say("remediation.not_helped", changes=remedies.in_words(former.changes))
        return suggested.model_copy(update={"state": "GaveUp", "message": message})
    if remedy is None or not safe:
        return suggested
    limit = settings.max_attempts or DEFAULT_MAX_ATTEMPTS
    if len(suggested.applied) >= limit:
        message = say("remediation.exhausted", limit_of_remedies=limit)
        return suggested.model_copy(update={"state": "GaveUp", "message": message})
    entry = AppliedRemedy(
        attempt=len(suggested.applied) + 1,
        signature=crash.signature,
        changes=list(safe),
        reason=say("remediation.reason", crash=crash, costs=remedy.costs),
        since=reading.stamp(observed.now) or "",
    )
    message = say("remediation.applied", crash=crash, costs=remedy.costs, changes=remedies.in_words(safe))
    return suggested.model_copy(update={"state": "Applied", "applied": [*suggested.applied, entry], "message": message})


def _stopped_if_permanent(observed: Observation, finding: Finding, status: RemediationStatus) -> RemediationStatus:
    is_asked, runs = _settings(observed.resource).on_unrecoverable_crash == "ScaleToZero", finding.restarts + 1
    is_certain = runs >= UNRECOVERABLE_RUNS and is_permanent(observed.knowledge.signatures[finding.status.signature])
    if not is_asked or observed.serving or not is_certain:
        return status
    message = observed.messages.say("remediation.stopped", runs=runs, crash=finding.status)
    stopped = {"state": "Stopped", "observed_generation": observed.resource.metadata.generation}
    return status.model_copy(update={**stopped, "message": message})


def _settings(resource: VLLMDeployment) -> RemediationSpec:
    return resource.spec.remediation or RemediationSpec()


def _ends_every_start(observed: Observation, finding: Finding, kept: RemediationStatus | None) -> bool:
    """Return whether every start ends in this crash, and neither a restart nor the operator can prevent it."""
    is_certain = finding.restarts + 1 >= UNRECOVERABLE_RUNS or (kept is not None and kept.state == "GaveUp")
    counts = finding.view in observed.primer_facts or not (observed.serving or is_superseded(kept, finding))  # a primer has the new plan
    return is_certain and counts and is_permanent(observed.knowledge.signatures[finding.status.signature])


def is_permanent(signature: Signature) -> bool:
    """Return whether a restart cannot fix such a crash."""
    return signature.severity is Severity.FATAL and not (signature.retryable or signature.is_echo or signature.origin == "node")


def is_superseded(kept: RemediationStatus | None, finding: Finding) -> bool:
    """Return whether the crashed Pod is older than the last change, so that its crash does not show the change's effect."""
    if not finding.view.is_current:
        return True
    if kept is None or not kept.applied:
        return False
    applied_at = reading.moment(kept.applied[-1].since)
    return applied_at is None or finding.view.created_at is None or finding.view.created_at < applied_at
