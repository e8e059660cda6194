"""What a user can do about a refusal of the scheduler or of admission, chosen by its text.

Kubernetes gives both as text only: the message of the condition PodScheduled, and of ReplicaFailure. What is looked for
are the phrases of kube-scheduler's plugins and of the admission plugins of Kubernetes 1.35.
"""

from vllm_operator.status.taints import Obstacle

_REFUSALS = (
    ("violates PodSecurity", "refused.pod_security"),
    ("exceeded quota", "refused.quota"),
    ("must specify", "refused.must_specify"),
    ("RuntimeClass", "refused.runtime_class"),
    ("not found", "refused.not_found"),
    ("was found", "refused.not_found"),  # "no service account was found", say
)


def unschedulable_advice(message: str, obstacle: Obstacle | None, *, has_other_plan: bool) -> str:
    """Choose the message that says what to do about a Pod that no node fits.

    Args:
        message: What the scheduler says.
        obstacle: The taints of the nodes that have the planned GPU; None if none keeps the Pod off.
        has_other_plan: Whether a new plan would take another GPU than the plan in force.
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


def refusal_advice(message: str) -> str:
    """Choose the message that says what to do about Pods that admission refuses."""
    return next((name for phrase, name in _REFUSALS if phrase in message), "refused.policy")
