"""`status.remediation`: from crashes and stalls to what is suggested and done about them."""

from vllm_operator.api.operation import OnStall, StartupSpec
from vllm_operator.api.status import RemediationStatus
from vllm_operator.planning.remediation.in_force import current, settled, with_stalled
from vllm_operator.planning.remediation.remediator import Case
from vllm_operator.reporting import reading, rollout
from vllm_operator.reporting.crashes import Crashes
from vllm_operator.reporting.pods import PodView
from vllm_operator.reporting.scene import Scene

DEFAULT_MAX_STALL_RESTARTS = 2


def remediation_status(scene: Scene, crashes: Crashes) -> RemediationStatus | None:
    """Decide what to do; what was decided before for this spec stays decided."""
    return with_stalled(scene.observation.resource, _about_crashes(scene, crashes), _newly_stalled(scene))


def pods_to_restart(scene: Scene, status: RemediationStatus | None) -> tuple[PodView, ...]:
    """The stalled Pods that are to be deleted: those that are noted as such, and still there."""
    noted = status.stalled_pods if status is not None else []
    return tuple(view for view in scene.starting if view.name in noted and scene.stalled(view))


def stall_restarts_left(scene: Scene) -> int | None:
    """How many more stalled starts may be restarted; None where that is not wished."""
    startup = scene.observation.resource.spec.startup or StartupSpec()
    if startup.on_stall is not OnStall.RESTART:
        return None
    decided = current(scene.observation.resource)
    return max(0, (startup.max_stall_restarts or DEFAULT_MAX_STALL_RESTARTS) - len(decided.stalled_pods if decided else ()))


def _about_crashes(scene: Scene, crashes: Crashes) -> RemediationStatus | None:
    resource, plan, finding = scene.observation.resource, scene.observation.outcome.plan, crashes.telling
    signature = scene.knowledge.signatures.get(finding.status.signature) if finding is not None else None
    if plan is None or finding is None or signature is None:
        return settled(resource)
    case = Case(
        signature=signature,
        pod=finding.view.name,
        restarts=finding.run,
        now=reading.stamp(scene.observation.now) or "",
        captures=dict(finding.captures),
        during_start=finding.during_start,
        is_current=rollout.is_current(scene, finding.view),
        created_at=finding.view.created_at,
        serving=scene.serving,
    )
    decided = scene.knowledge.remediator.decide(resource, plan, case)
    return decided if decided.state is not None or decided.applied or decided.stalled_pods else None


def _newly_stalled(scene: Scene) -> list[str]:
    left = stall_restarts_left(scene) or 0
    decided = current(scene.observation.resource)
    noted = decided.stalled_pods if decided else []
    return [view.name for view in scene.starting if scene.stalled(view) and view.name not in noted][:left]
