"""What the operator does about what it observed: one `Decision`, made in one place.

A decision is written to the status before it is carried out, so an operator that ends in between carries out the same one
after its restart. The next reconciliation renders what the status says (`vllm_operator.remediation.in_force`).
"""

from dataclasses import dataclass

from vllm_operator.api.operation import OnStall, StartupSpec
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import Plan, RemediationState, RemediationStatus
from vllm_operator.observation import rollout
from vllm_operator.observation.crashes import Crashes
from vllm_operator.observation.state import ObservedState
from vllm_operator.pods import reading
from vllm_operator.pods.view import PodView
from vllm_operator.remediation.cache_damage import CacheDamage, assess_cache_damage
from vllm_operator.remediation.in_force import current, settled, with_stalled
from vllm_operator.remediation.remediator import Case, Remediator, ends_every_start

DEFAULT_MAX_STALL_RESTARTS = 2


@dataclass(frozen=True, slots=True)
class PodReference:
    """A Pod by name and UID."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do now.

    Attributes:
        remediation: `status.remediation`: the suggested or applied remedy, a stop (scale to zero), the restarts of stalled starts.
            None if nothing was decided for the present spec.
        cache_damage: Whether the caches of the plan are damaged and replaced by an empty directory; None without a plan.
        restart_pods: Pods to delete, because their start has stalled, after the status is written.
        is_hopeless: Whether all starts end in the same crash until the spec changes.
    """

    remediation: RemediationStatus | None = None
    cache_damage: CacheDamage | None = None
    restart_pods: tuple[PodReference, ...] = ()
    is_hopeless: bool = False


def decide(observed: ObservedState, crashes: Crashes, remediator: Remediator) -> Decision:
    """Decide what to do about crashes, stalled starts and damaged caches.

    Decisions made before for the same spec stand.
    """
    resource, plan = observed.observation.resource, observed.observation.outcome.plan
    case = _case(observed, crashes)
    remediation = with_stalled(resource, _about_crash(resource, plan, case, remediator), _newly_stalled(observed))
    is_stopped = remediation is not None and remediation.state is RemediationState.STOPPED
    return Decision(
        remediation=remediation,
        cache_damage=assess_cache_damage(observed, plan, crashes) if plan is not None else None,
        restart_pods=tuple(PodReference(view.name, view.uid) for view in _pods_to_restart(observed, remediation)),
        is_hopeless=is_stopped or (case is not None and ends_every_start(case, remediation)),
    )


def _pods_to_restart(observed: ObservedState, status: RemediationStatus | None) -> tuple[PodView, ...]:
    """The stalled Pods that are to be deleted: those that are noted as such, and still there."""
    noted = status.stalled_pods if status is not None else []
    return tuple(view for view in observed.starting if view.name in noted and observed.stalled(view))


def stall_restarts_left(observed: ObservedState) -> int | None:
    """How many more stalled starts may be restarted; None where that is not wished."""
    startup = observed.observation.resource.spec.startup or StartupSpec()
    if startup.on_stall is not OnStall.RESTART:
        return None
    decided = current(observed.observation.resource)
    return max(0, (startup.max_stall_restarts or DEFAULT_MAX_STALL_RESTARTS) - len(decided.stalled_pods if decided else ()))


def _case(observed: ObservedState, crashes: Crashes) -> Case | None:
    """The crash to decide about; None if no known crash is in force."""
    finding = crashes.most_informative
    signature = observed.knowledge.signatures.get(finding.status.signature) if finding is not None else None
    if finding is None or signature is None:
        return None
    return Case(
        signature=signature,
        pod=finding.view.name,
        restarts=finding.run,
        now=reading.stamp(observed.observation.now) or "",
        captures=dict(finding.captures),
        during_start=finding.during_start,
        is_current=rollout.is_current(observed, finding.view),
        created_at=finding.view.created_at,
        serving=observed.serving,
    )


def _about_crash(resource: VLLMDeployment, plan: Plan | None, case: Case | None, remediator: Remediator) -> RemediationStatus | None:
    if plan is None or case is None:
        return settled(resource)
    decided = remediator.decide(resource, plan, case)
    return decided if decided.state is not None or decided.applied or decided.stalled_pods else None


def _newly_stalled(observed: ObservedState) -> list[str]:
    left = stall_restarts_left(observed) or 0
    decided = current(observed.observation.resource)
    noted = decided.stalled_pods if decided else []
    return [view.name for view in observed.starting if observed.stalled(view) and view.name not in noted][:left]
