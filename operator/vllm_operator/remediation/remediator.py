"""What to do about a crash: nothing, suggest a change, apply one, give up, or stop.

The decision is written to the status first and carried out afterwards, from the status: an operator that ends in
between goes on where it was, and one that looks twice decides once. What was applied lies on top of the pinned plan
and is gone with the next generation of the spec. There is no way back from giving up but a change of the spec, so
nothing can go round in circles.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from vllm_operator.api.operation import OnHopelessCrash, RemediationMode, RemediationSpec
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import AppliedRemedy, Plan, RemediationState, RemediationStatus, RemedyChange
from vllm_operator.catalog.signatures import Remedy, Severity, Signature, load_remedies
from vllm_operator.catalog.versions import Versions, load_versions
from vllm_operator.planning.pinning import planned_generation
from vllm_operator.pods import reading
from vllm_operator.remediation.changes import Engine, exact_changes
from vllm_operator.remediation.command import patch_command
from vllm_operator.remediation.in_force import current, in_words, remedied

DEFAULT_MAX_ATTEMPTS = 2
HOPELESS_RUNS = 5
"""Runs of one Pod that end the same way before it counts as hopeless: five minutes of a kubelet's back-off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A crash that is in force, and what must be known to decide about it.

    `restarts` counts the restarts of its Pod before the run that crashed; `during_start`: the log was read, and shows
    that the run had not become ready; `is_current`: its Pod is of the present spec; `created_at` is when its Pod was
    created; `now` is RFC 3339, in seconds.
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
    """Decides. `remedies` are those that may be applied without asking, by signature."""

    versions: Versions
    remedies: Mapping[str, Remedy]

    def decide(self, resource: VLLMDeployment, plan: Plan, case: Case) -> RemediationStatus:
        """Decide about a crash; `plan` is the pinned one, without remedies."""
        kept = current(resource) or RemediationStatus(observed_generation=planned_generation(resource))
        if kept.state is RemediationState.STOPPED or _is_decided(kept, case) or _is_superseded(kept, case):
            return kept
        fresh = kept.model_copy(update={"signature": case.signature.id, "pod": case.pod, "restarts": case.restarts, "command": None})
        engine = Engine.of(resource.spec, remedied(plan, kept), self.versions)
        suggested = self._suggest(resource, engine, case, fresh)
        if kept.state is RemediationState.GAVE_UP:
            return _stop(resource, case, suggested.model_copy(update={"state": kept.state, "message": kept.message}))
        acted = self._act(resource, engine, case, suggested)
        if acted.state is RemediationState.APPLIED and len(acted.applied) > len(kept.applied):
            return acted
        return _stop(resource, case, acted)

    def _suggest(self, resource: VLLMDeployment, engine: Engine, case: Case, fresh: RemediationStatus) -> RemediationStatus:
        """Write down the change as a command."""
        has_failed = any(remedy.signature == case.signature.id for remedy in fresh.applied)
        if _settings(resource).mode is RemediationMode.OFF or has_failed:
            return fresh.model_copy(update={"state": RemediationState.APPLIED if fresh.applied else None, "message": None})
        listed = self.remedies.get(case.signature.id)
        only = listed.select(case.signature) if listed is not None and self._fits(listed, engine) else None
        changes = exact_changes(engine, case.signature, case.captures, only)
        command = patch_command(resource, changes)
        if command is None:
            return fresh.model_copy(update={"state": RemediationState.APPLIED if fresh.applied else None, "message": None})
        return fresh.model_copy(
            update={"state": RemediationState.SUGGESTED, "command": command, "message": f"Suggested: {in_words(changes)}."}
        )

    def _act(self, resource: VLLMDeployment, engine: Engine, case: Case, suggested: RemediationStatus) -> RemediationStatus:
        """Apply a remedy, if that is wished and safe."""
        settings = _settings(resource)
        if settings.mode is not RemediationMode.AUTO:
            return suggested
        former = next((remedy for remedy in suggested.applied if remedy.signature == case.signature.id), None)
        if former is not None:
            words = f"Remedy {in_words(former.changes)} did not help: the same crash happened again."
            return _given_up(suggested, words)
        if not case.during_start:
            return suggested
        remedy = self.remedies.get(case.signature.id)
        if remedy is None or not case.signature.auto_safe or not self._fits(remedy, engine):
            return suggested
        changes = exact_changes(engine, case.signature, case.captures, remedy.select(case.signature))
        if not changes or any(engine.is_users(change) for change in changes):
            return suggested
        most = settings.max_attempts or DEFAULT_MAX_ATTEMPTS
        if len(suggested.applied) >= most:
            return _given_up(suggested, f"The engine still crashes after {most} remedies (spec.remediation.maxAttempts).")
        return _applied(suggested, case, remedy, changes)

    @staticmethod
    def _fits(remedy: Remedy, engine: Engine) -> bool:
        return remedy.fits(engine.plan.engine_version, engine.plan.architecture)


def load_remediator() -> Remediator:
    """Read the remedies and version tables that ship with the package."""
    return Remediator(load_versions(), load_remedies())


def _settings(resource: VLLMDeployment) -> RemediationSpec:
    return resource.spec.remediation or RemediationSpec()


def _is_decided(kept: RemediationStatus, case: Case) -> bool:
    """Whether this crash was decided about, and nothing is known now that was not known then."""
    return not case.during_start and (kept.pod, kept.restarts, kept.signature) == (case.pod, case.restarts, case.signature.id)


def ends_every_start(case: Case, kept: RemediationStatus | None) -> bool:
    """Whether all starts end in this crash, and neither a restart nor the operator can change that."""
    if case.serving or not _is_permanent(case.signature) or _is_superseded(kept, case):
        return False
    return case.restarts + 1 >= HOPELESS_RUNS or (kept is not None and kept.state is RemediationState.GAVE_UP)


def _is_permanent(signature: Signature) -> bool:
    """Whether a restart of the same engine crashes again."""
    return signature.severity is Severity.FATAL and not signature.retryable and not signature.is_echo


def _is_superseded(kept: RemediationStatus | None, case: Case) -> bool:
    """Whether the crashed Pod is older than the last change, so that its crash says nothing about it."""
    if not case.is_current:
        return True
    if kept is None or not kept.applied:
        return False
    if case.created_at is None:
        return True
    since = reading.moment(kept.applied[-1].since)
    return since is None or case.created_at < since


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


def _given_up(status: RemediationStatus, words: str) -> RemediationStatus:
    message = f"{words} The operator tries nothing more until the spec changes."
    return status.model_copy(update={"state": RemediationState.GAVE_UP, "message": message[:1024]})


def _stop(resource: VLLMDeployment, case: Case, status: RemediationStatus) -> RemediationStatus:
    """Scale to zero, if that is the policy and no restart can help."""
    is_asked = _settings(resource).on_hopeless_crash is OnHopelessCrash.SCALE_TO_ZERO
    if not is_asked or case.serving or not _is_permanent(case.signature) or case.restarts + 1 < HOPELESS_RUNS:
        return status
    message = (
        f"Scaled to zero after {case.restarts + 1} crashes of Pod {case.pod} ({case.signature.id}), because a restart cannot help. "
        "The GPUs are free. Change the spec to start it again."
    )
    stopped = {"state": RemediationState.STOPPED, "observed_generation": resource.metadata.generation}
    return status.model_copy(update={**stopped, "message": message})
