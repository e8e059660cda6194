"""Advice about Pods that the scheduler or an admission plugin refuses.

Kubernetes gives both as text only: the message of the Pod condition PodScheduled, and of the Deployment condition ReplicaFailure. The
phrases come from the plugins of kube-scheduler and the admission plugins in Kubernetes 1.35.
"""

from collections import Counter
from dataclasses import dataclass

from vllm_operator.api import reading
from vllm_operator.api.labels import COMPONENT_LABEL
from vllm_operator.api.resource import Role
from vllm_operator.inventory.taints import GPU_TAINT, Taint
from vllm_operator.pods.view import PodView
from vllm_operator.status.observation.observation import ObservedState

_MAX_NAMED_TAINTS = 3
_REFUSALS = (
    ("violates PodSecurity", "refused.pod_security"),
    ("exceeded quota", "refused.quota"),
    ("must specify", "refused.must_specify"),
    ("RuntimeClass", "refused.runtime_class"),
    ("not found", "refused.not_found"),
    ("was found", "refused.not_found"),  # for example "no service account was found"
)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The taints on the nodes with the fewest untolerated taints. `node` is one of `nodes` nodes with exactly these."""

    node: str
    nodes: int
    taints: tuple[Taint, ...]

    @property
    def tolerations(self) -> str:
        """Return the tolerations to add to the Pods."""
        return ", ".join(taint.toleration for taint in self.taints[:_MAX_NAMED_TAINTS])

    @property
    def names(self) -> str:
        """Return the taints in words."""
        return " and ".join(str(taint) for taint in self.taints[:_MAX_NAMED_TAINTS])

    @property
    def is_passing(self) -> bool:
        """Whether Kubernetes removes one of the taints when the node has recovered."""
        return any(taint.is_passing for taint in self.taints)

    @property
    def is_usually_tolerated(self) -> bool:
        """Whether the operator tolerates one of the taints by default."""
        return any(taint.key == GPU_TAINT for taint in self.taints)


def find_obstacle(observed: ObservedState, view: PodView) -> Obstacle | None:
    """Return the taints that keep a Pod off the nodes with its GPUs; None if there are none or they are unknown."""
    pod = next((pod for pod in observed.observation.pods if reading.text(pod, "metadata", "name") == view.name), None)
    tolerations = reading.mapping(pod, "spec").get("tolerations")
    untolerated = {
        node: tuple(taint for taint in taints if not taint.is_tolerated(tolerations))
        for node, taints in observed.observation.taints.items()
    }
    tainted = {node: taints for node, taints in untolerated.items() if taints}
    if not tainted:
        return None
    node = min(tainted, key=lambda name: (len(tainted[name]), name))
    return Obstacle(node, Counter(tainted.values())[tainted[node]], tainted[node])


def unschedulable_advice(message: str, obstacle: Obstacle | None, *, has_other_plan: bool) -> str:
    """Choose the message with the advice for a Pod that fits no node.

    Args:
        message: The scheduler's message.
        obstacle: The taints of the nodes that have the planned GPU; None if no taint keeps the Pod off.
        has_other_plan: Whether a new plan would use another GPU than the pinned plan.
    """
    if obstacle is not None and "taint" in message:
        if obstacle.is_passing:
            return "unschedulable.taint_passing"
        return "unschedulable.taint_usually_tolerated" if obstacle.is_usually_tolerated else "unschedulable.taint"
    if "untolerated taint" in message:
        return "unschedulable.unknown_taint"
    if "Insufficient nvidia.com" in message:
        return "unschedulable.gpus"
    if "Insufficient cpu" in message or "Insufficient memory" in message:
        return "unschedulable.cpu_or_memory"
    return "unschedulable.other_plan" if has_other_plan else "unschedulable.anything"


def why_no_pod(observed: ObservedState, role: Role) -> str:
    """Return why a Job of the operator has no Pod: it has failed, or its Pod was refused. Empty if unknown."""
    jobs = (job for job in observed.observation.jobs if reading.text(job, "metadata", "labels", COMPONENT_LABEL) == role.value)
    for job in jobs:
        failed = reading.named(job, "Failed", "status", "conditions")
        if failed.get("status") == "True":
            return reading.text(failed, "message") or reading.text(failed, "reason")
        uid, name = reading.text(job, "metadata", "uid"), reading.text(job, "metadata", "name")
        refused = observed.log.latest(uid=uid, name=name, kind="Job", reasons={"FailedCreate"})
        if refused is not None:
            return refused.message
    return ""


def refusal_advice(message: str) -> str:
    """Choose the message with the advice for Pods that an admission plugin refuses."""
    return next((name for phrase, name in _REFUSALS if phrase in message), "refused.policy")
