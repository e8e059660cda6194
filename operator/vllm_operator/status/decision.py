"""Decide how to react to crashes, stalled starts and damaged caches: one `Decision`. `decide` is the only place for such decisions.

A decision is written to the status first. The next reconciliation carries it out from there (`remedies`), so an operator that exits in
between continues after its restart, and repeated observations give one decision. Only stalled Pods are deleted by the same reconciliation,
right after the status is written. Remedies are applied on top of the pinned plan and end with the next generation of the spec. After giving
up, only a change of the spec starts a new attempt, so there are no loops.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from vllm_operator.api import reading
from vllm_operator.api.operation import OnStall, OnUnrecoverableCrash, RemediationMode, RemediationSpec
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import AppliedRemedy, RemediationState, RemediationStatus, RemedyChange
from vllm_operator.catalog.startup import Remedy, Severity, Signature, load_remedies
from vllm_operator.catalog.versions import Versions, load_versions
from vllm_operator.planning.pinning import planned_generation
from vllm_operator.status.cache_damage import CacheDamage, assess_cache_damage
from vllm_operator.status.crashes import Crashes
from vllm_operator.status.observation import ObservedState, PodFacts
from vllm_operator.status.remedies import Engine, current, exact_changes, in_words, patch_command, recorded, remedied, settled, with_stalled

DEFAULT_MAX_ATTEMPTS = 2
DEFAULT_MAX_STALL_RESTARTS = 2
UNRECOVERABLE_RUNS = 5
"""A Pod whose runs end in the same crash this often cannot recover. With the kubelet's back-off, this takes about five minutes."""


@dataclass(frozen=True, slots=True)
class PodReference:
    """A Pod by name and UID."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The reaction to an observation.

    Attributes:
        remediation: `status.remediation`: the suggested or applied remedy, a stop (scale to zero), restarts of stalled starts. None if
            nothing was decided for the current spec.
        cache_damage: Whether the caches of the plan are damaged and replaced by an empty directory; None without a plan.
        restart_pods: Stalled Pods to delete after the status is written.
        is_unrecoverable: Whether every start ends in the same crash until the spec changes.
    """

    remediation: RemediationStatus | None = None
    cache_damage: CacheDamage | None = None
    restart_pods: tuple[PodReference, ...] = ()
    is_unrecoverable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A crash that is in force, and the facts for a decision about it.

    Attributes:
        signature: The crash.
        pod: Name of the Pod that crashed.
        restarts: Number of restarts of the Pod before the run that crashed.
        now: The current time, RFC 3339 in seconds.
        captures: Values from the line of the log that names the crash.
        during_start: Whether the log was read and shows that the run had not become ready.
        is_current: Whether the Pod has the current Pod template.
        created_at: When the Pod was created.
        serving: Number of replicas that serve.
    """

    signature: Signature
    pod: str
    restarts: int
    now: str
    captures: Mapping[str, str]
    during_start: bool = False
    is_current: bool = True
    created_at: datetime | None = None
    serving: int = 0


@dataclass(frozen=True, slots=True)
class Remediator:
    """Decides about crashes. `remedies` are the remedies that may be applied automatically, by signature."""

    versions: Versions
    remedies: Mapping[str, Remedy]

    def decide(self, resource: VLLMDeployment, plan: Plan, case: Case) -> RemediationStatus:
        """Decide about a crash. `plan` is the pinned plan without remedies."""
        kept = current(resource) or RemediationStatus(observed_generation=planned_generation(resource))
        if kept.state is RemediationState.STOPPED or _is_decided(kept, case) or _is_superseded(kept, case):
            return kept
        fresh = kept.model_copy(
            update={"signature": case.signature.id, "pod": case.pod, "restarts": case.restarts or None, "command": None}
        )
        engine = Engine.of(resource.spec, remedied(plan, kept), self.versions)
        suggested = self._suggest(resource, engine, case, fresh)
        if kept.state is RemediationState.GAVE_UP:
            return _stop(resource, case, suggested.model_copy(update={"state": kept.state, "message": kept.message}))
        acted = self._act(resource, engine, case, suggested)
        if acted.state is RemediationState.APPLIED and len(acted.applied) > len(kept.applied):
            return acted
        return _stop(resource, case, acted)

    def _suggest(self, resource: VLLMDeployment, engine: Engine, case: Case, fresh: RemediationStatus) -> RemediationStatus:
        has_failed = any(remedy.signature == case.signature.id for remedy in fresh.applied)
        if _settings(resource).mode is RemediationMode.OFF or has_failed:
            return fresh.model_copy(update={"state": RemediationState.APPLIED if fresh.applied else None, "message": None})
        listed = self.remedies.get(case.signature.id)
        only = listed.select(case.signature) if listed is not None and self._fits(listed, engine) else None
        changes = exact_changes(engine, case.signature, case.captures, only)
        command = patch_command(resource, changes)
        if command is None:
            return fresh.model_copy(update={"state": RemediationState.APPLIED if fresh.applied else None, "message": None})
        return fresh.model_copy(update={"state": RemediationState.SUGGESTED, "command": command, "message": None})

    def _act(self, resource: VLLMDeployment, engine: Engine, case: Case, suggested: RemediationStatus) -> RemediationStatus:
        """Apply a remedy if the mode is Auto and it is safe."""
        settings = _settings(resource)
        if settings.mode is not RemediationMode.AUTO:
            return suggested
        former = next((remedy for remedy in suggested.applied if remedy.signature == case.signature.id), None)
        if former is not None:
            return _given_up(suggested, f"Remedy {in_words(former.changes)} did not help: the same crash happened again.")
        if not case.during_start:
            return suggested
        remedy = self.remedies.get(case.signature.id)
        if remedy is None or not case.signature.auto_safe or not self._fits(remedy, engine):
            return suggested
        changes = exact_changes(engine, case.signature, case.captures, remedy.select(case.signature))
        if not changes or any(engine.is_users(change) for change in changes):
            return suggested
        limit = settings.max_attempts or DEFAULT_MAX_ATTEMPTS
        if len(suggested.applied) >= limit:
            return _given_up(suggested, f"The engine still crashes after {limit} remedies (spec.remediation.maxAttempts).")
        return _applied(suggested, case, remedy, changes)

    @staticmethod
    def _fits(remedy: Remedy, engine: Engine) -> bool:
        return remedy.fits(engine.plan.engine_version, engine.plan.architecture)


def load_remediator() -> Remediator:
    """Load the shipped remedies and version tables."""
    return Remediator(load_versions(), load_remedies())


def decide(observed: ObservedState, crashes: Crashes, remediator: Remediator) -> Decision:
    """Decide how to react to crashes, stalled starts and damaged caches.

    Earlier decisions for the same spec remain in force.
    """
    resource, plan = observed.resource, observed.outcome.plan
    case = _case(observed, crashes)
    remediation = with_stalled(resource, _about_crash(resource, plan, case, remediator), _newly_stalled(observed))
    is_stopped = remediation is not None and remediation.state is RemediationState.STOPPED
    return Decision(
        remediation=remediation,
        cache_damage=assess_cache_damage(observed, plan, crashes) if plan is not None else None,
        restart_pods=tuple(PodReference(view.name, view.uid) for view in _pods_to_restart(observed, remediation)),
        is_unrecoverable=is_stopped or (case is not None and ends_every_start(case, remediation)),
    )


def stall_restarts_left(observed: ObservedState) -> int | None:
    """Return how many more stalled starts may be restarted; None unless `spec.startup.onStall` is Restart."""
    startup = observed.resource.spec.startup
    if startup is None or startup.on_stall is not OnStall.RESTART:
        return None
    decided = current(observed.resource)
    return max(0, (startup.max_stall_restarts or DEFAULT_MAX_STALL_RESTARTS) - len(decided.stalled_pods if decided else ()))


def _case(observed: ObservedState, crashes: Crashes) -> Case | None:
    """Return the crash to decide about; None if no known crash is in force."""
    finding = crashes.most_informative
    signature = observed.knowledge.signatures.get(finding.status.signature) if finding is not None else None
    if finding is None or signature is None:
        return None
    return Case(
        signature=signature,
        pod=finding.view.name,
        restarts=finding.run,
        now=reading.stamp(observed.now) or "",
        captures=dict(finding.captures),
        during_start=finding.during_start,
        is_current=finding.view.is_current,
        created_at=finding.view.created_at,
        serving=observed.serving,
    )


def _about_crash(resource: VLLMDeployment, plan: Plan | None, case: Case | None, remediator: Remediator) -> RemediationStatus | None:
    if plan is None and resource.pinned is None and resource.status.pinned_plan is not None:
        return recorded(resource)  # the plan cannot be read now
    if plan is None or case is None:
        return settled(resource)
    decided = remediator.decide(resource, plan, case)
    return decided if decided.state is not None or decided.applied or decided.stalled_pods else None


def _newly_stalled(observed: ObservedState) -> list[str]:
    left = stall_restarts_left(observed) or 0
    decided = current(observed.resource)
    listed = decided.stalled_pods if decided else []
    return [view.name for view in observed.starting if view.is_stalled and view.name not in listed][:left]


def _pods_to_restart(observed: ObservedState, status: RemediationStatus | None) -> tuple[PodFacts, ...]:
    """Return the stalled Pods to delete: Pods listed in the status that still exist and are still stalled."""
    listed = status.stalled_pods if status is not None else []
    return tuple(view for view in observed.starting if view.name in listed and view.is_stalled)


def ends_every_start(case: Case, kept: RemediationStatus | None) -> bool:
    """Return whether every start ends in this crash, and neither a restart nor the operator can prevent it."""
    if case.serving or not _is_permanent(case.signature) or _is_superseded(kept, case):
        return False
    return case.restarts + 1 >= UNRECOVERABLE_RUNS or (kept is not None and kept.state is RemediationState.GAVE_UP)


def _settings(resource: VLLMDeployment) -> RemediationSpec:
    return resource.spec.remediation or RemediationSpec()


def _is_decided(kept: RemediationStatus, case: Case) -> bool:
    """Return whether this crash was already decided about and no new facts are known."""
    return not case.during_start and (kept.pod, kept.restarts or 0, kept.signature) == (case.pod, case.restarts, case.signature.id)


def _is_permanent(signature: Signature) -> bool:
    """Return whether a restart of the same engine crashes again."""
    return signature.severity is Severity.FATAL and not signature.retryable and not signature.is_echo


def _is_superseded(kept: RemediationStatus | None, case: Case) -> bool:
    """Return whether the crashed Pod is older than the last change, so that its crash does not show the change's effect."""
    if not case.is_current:
        return True
    if kept is None or not kept.applied:
        return False
    if case.created_at is None:
        return True
    applied_at = reading.moment(kept.applied[-1].since)
    return applied_at is None or case.created_at < applied_at


def _applied(status: RemediationStatus, case: Case, remedy: Remedy, changes: tuple[RemedyChange, ...]) -> RemediationStatus:
    reason = f"Remedy for crash {case.signature.id} of Pod {case.pod}. Cost: {remedy.costs}."
    entry = AppliedRemedy(
        attempt=len(status.applied) + 1, signature=case.signature.id, changes=list(changes), reason=reason[:1024], since=case.now
    )
    message = f"Applied {in_words(changes)} because of {case.signature.id}. Cost: {remedy.costs}. A change of the spec reverts it."
    return status.model_copy(
        update={
            "state": RemediationState.APPLIED,
            "applied": [*status.applied, entry],
            "message": message[:1024],
            "command": status.command,
        }
    )


def _given_up(status: RemediationStatus, reason: str) -> RemediationStatus:
    message = f"{reason} The operator tries nothing more until the spec changes."
    return status.model_copy(update={"state": RemediationState.GAVE_UP, "message": message[:1024]})


def _stop(resource: VLLMDeployment, case: Case, status: RemediationStatus) -> RemediationStatus:
    """Scale to zero if that is the policy and no restart can help."""
    is_asked = _settings(resource).on_unrecoverable_crash is OnUnrecoverableCrash.SCALE_TO_ZERO
    if not is_asked or case.serving or not _is_permanent(case.signature) or case.restarts + 1 < UNRECOVERABLE_RUNS:
        return status
    message = (
        f"Scaled to zero after {case.restarts + 1} crashes of Pod {case.pod} ({case.signature.id}), because a restart cannot help. "
        "The GPUs are free. Change the spec to start it again."
    )
    stopped = {"state": RemediationState.STOPPED, "observed_generation": resource.metadata.generation}
    return status.model_copy(update={**stopped, "message": message})
